"""Rollouts in the engine's actor, without Ray or vLLM: their tokens and seconds, and OpenRLHF's executors."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from engine_actor import Actor, Agent, Tokenizer, run
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

from openrlhf_sagc.actors.rollouts import RolloutExecutor, watch_rollouts
from openrlhf_sagc.decisions.records import ROLLOUT, Labelled

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_rollouts_side_by_side_have_their_own_seconds():
    class TwoTurns(Agent):
        async def execute(self, label, llm_engine, **kwargs):
            for _ in range(2):
                await llm_engine.generate([1], kwargs["sampling_params"], multi_modal_data=None)
                await asyncio.sleep(label)  # the tool
            return {"reward": 1.0, "action_ranges": [(1, 6), (9, 14)]}

    async def group():
        actor = Actor(TwoTurns())
        return await asyncio.gather(actor.rollout(0.0), actor.rollout(0.5))

    quick, slow = run(group())
    assert quick["reward"] == 1.0 and quick[ROLLOUT].failure is None
    assert quick[ROLLOUT].finished and not quick[ROLLOUT].stopped
    assert quick[ROLLOUT].tokens == slow[ROLLOUT].tokens == 10
    assert 0.05 <= quick[ROLLOUT].seconds < 1.0 <= slow[ROLLOUT].seconds
    assert quick[ROLLOUT].queue_seconds == slow[ROLLOUT].queue_seconds == pytest.approx(0.6)


def test_openrlhfs_multi_turn_executor_runs_as_it_is():
    class Instance(AgentInstanceBase):
        def __init__(self):
            self.turn = 0

        async def step(self, states):
            self.turn += 1
            return {"rewards": torch.tensor(0.5), "environment_feedback": "go on", "done": self.turn == 2}

    class FiveTokens(MultiTurnAgentExecutor):
        async def execute(self, *args, llm_engine, **kwargs):
            async def generate(tokens, sampling_params, multi_modal_data):
                sampling_params.max_tokens = 5
                return await llm_engine.generate(tokens, sampling_params, multi_modal_data)

            return await super().execute(*args, llm_engine=SimpleNamespace(generate=generate), **kwargs)

    response = run(Actor(FiveTokens(Instance)).rollout())
    assert response["reward"] == 1.0 and response[ROLLOUT].failure is None
    assert response[ROLLOUT].tokens == 10 and response["action_ranges"] == [(3, 8), (11, 16)]


def test_with_a_reward_model_the_engine_gives_no_reward():
    response = run(Actor(SingleTurnAgentExecutor(None)).rollout())
    assert response["reward"] is None and response[ROLLOUT].failure is None and response[ROLLOUT].tokens == 5


@pytest.mark.parametrize("own", [None, "its own"])
def test_a_rollout_has_the_engines_tokenizer_or_the_one_that_it_was_sent_with(own):
    class Keeps(Agent):
        async def execute(self, hf_tokenizer, **kwargs):
            self.tokenizer = hf_tokenizer
            return await super().execute(**kwargs)

    agent = Keeps(1.0)
    run(Actor(agent).rollout(tokenizer=own))
    assert agent.tokenizer == own if own else isinstance(agent.tokenizer, Tokenizer)


def test_an_agents_groups_have_a_tokenizer_each_and_single_turns_share_one():
    class Keeps(Agent):
        async def execute(self, label, hf_tokenizer, **kwargs):
            seen.setdefault(label, []).append(hf_tokenizer)
            return await super().execute(**kwargs)

    async def two_groups(actor):
        await asyncio.gather(*(actor.rollout(Labelled(group, group)) for group in (0, 0, 1)))

    seen = {}
    run(two_groups(Actor(Keeps(1.0, 1.0, 1.0))))
    assert seen[0][0] is seen[0][1] is not seen[1][0]

    actor, encoded = Actor(SingleTurnAgentExecutor(None)), []
    tokenizer = actor.executor._tokenizer
    tokenizer.note = encoded.append
    run(two_groups(actor))
    assert encoded == ["prompt"] * 3


def test_watching_twice_is_watching_once():
    actor = Actor(Agent(1.0))
    executor = actor.executor
    watch_rollouts(actor, tokenizer=None, timeout=1.0, retries=1)
    assert actor.executor is executor and isinstance(executor, RolloutExecutor)


@pytest.mark.parametrize("executor, dead", [(SingleTurnAgentExecutor("http://unused"), False), (Agent(1.0), True)])
def test_an_error_of_vllm_ends_the_run(executor, dead):
    actor = Actor(executor, retries=2)
    actor.llm.errored = dead
    requests = []

    async def generate(*args, **kwargs):
        requests.append(args)
        raise ConnectionError("EngineCore died")

    actor.generate = generate
    with pytest.raises(ConnectionError, match="EngineCore died"):
        run(actor.rollout())
    assert len(requests) == 1
