"""Rollouts in the engine's actor, without Ray or vLLM: their tokens and seconds, and OpenRLHF's executors."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from engine_actor import UNFINISHED_FIELDS, Actor, Agent, Tokenizer, run
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from transformers import PreTrainedTokenizerFast
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from openrlhf_sagc.decisions.records import ROLLOUT, Collect, CountDrafts, Dispatch, Prompt, Share
from openrlhf_sagc.engine.rollouts import RolloutExecutor, watch_rollouts

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_rollouts_side_by_side_have_their_own_seconds():
    class TwoTurns(Agent):
        async def execute(self, label, llm_engine, **kwargs):
            for _ in range(2):
                await llm_engine.generate([1], kwargs["sampling_params"], multi_modal_data=None)
                await asyncio.sleep(label)  # the tool
            return {"reward": 1.0, "observation_tokens": [1] * 14, "action_ranges": [(1, 6), (9, 14)]}

    async def group():
        actor = Actor(TwoTurns())
        return await asyncio.gather(actor.rollout(0.0), actor.rollout(0.5))

    quick, slow = run(group())
    assert quick["reward"] == 1.0 and quick[ROLLOUT].failure is None
    assert quick[ROLLOUT].finished and not quick[ROLLOUT].stopped
    assert quick[ROLLOUT].tokens == slow[ROLLOUT].tokens == 10
    assert 0.05 <= quick[ROLLOUT].seconds < 1.0 <= slow[ROLLOUT].seconds
    assert quick[ROLLOUT].queue_seconds == slow[ROLLOUT].queue_seconds == pytest.approx(0.6)


@pytest.mark.parametrize("reward", [torch.tensor(0.5), np.array([0.5]), np.float32(0.5), 0.5, [0.5], (1,), True])
def test_openrlhfs_multi_turn_executor_runs_as_it_is_whatever_kind_of_number_the_reward_is(reward):
    class Instance(AgentInstanceBase):
        def __init__(self):
            self.turn = 0

        async def step(self, states):
            self.turn += 1
            return {"rewards": reward, "environment_feedback": "go on", "done": self.turn == 2}

    class FiveTokens(MultiTurnAgentExecutor):
        async def execute(self, *args, llm_engine, **kwargs):
            async def generate(tokens, sampling_params, multi_modal_data):
                sampling_params.max_tokens = 5
                return await llm_engine.generate(tokens, sampling_params, multi_modal_data)

            return await super().execute(*args, llm_engine=SimpleNamespace(generate=generate), **kwargs)

    response = run(Actor(FiveTokens(Instance)).rollout())
    assert response["reward"] == 2 * float(np.ravel(reward)[0]) and response[ROLLOUT].failure is None
    assert response[ROLLOUT].tokens == 10 and response["action_ranges"] == [(3, 8), (11, 16)]


@pytest.mark.parametrize(
    "result, failure",
    [
        ({"rewards": "0.5"}, "the agent returned reward '0.5'"),
        ({"rewards": [0.5, 1.0]}, "the agent returned 2 rewards for 1 sample"),
        ({"reward": 0.5}, "KeyError: 'rewards'"),
        ([0.5], "TypeError: "),
    ],
)
def test_a_step_of_an_agent_without_one_number_as_its_reward_is_a_failure(result, failure):
    class Instance(Turns):
        async def step(self, states):
            return result

    actor = Actor(MultiTurnAgentExecutor(Instance))
    request = actor.request() | {"max_length": 30}
    assert run(actor.executor.execute(**request))[ROLLOUT].failure.startswith(failure)


def test_with_a_reward_model_the_engine_gives_no_reward():
    response = run(Actor(SingleTurnAgentExecutor(None)).rollout())
    assert response["reward"] is None and response[ROLLOUT].failure is None and response[ROLLOUT].tokens == 5


def test_an_engine_of_a_vision_model_knows_the_tokens_of_images():
    class Vision(Actor):
        _mm_pad_token_ids = {7}  # which vLLM samples here

    response = run(Vision(Agent(1.0)).rollout())
    assert "the id 7, a token that stands for an image" in response[ROLLOUT].failure and "reward" not in response


def test_an_agents_groups_have_a_tokenizer_each_and_single_turns_share_one():
    class Keeps(Agent):
        async def execute(self, label, hf_tokenizer, **kwargs):
            seen.setdefault(label, []).append(hf_tokenizer)
            return await super().execute(**kwargs)

    async def two_groups(actor):
        await asyncio.gather(*(actor.group(group, *[5] * count, label=group) for group, count in ((0, 2), (1, 1))))

    seen = {}
    run(two_groups(Actor(Keeps(1.0, 1.0, 1.0))))
    assert seen[0][0] is seen[0][1] is not seen[1][0] and isinstance(seen[1][0], Tokenizer)

    actor, encoded = Actor(SingleTurnAgentExecutor(None)), []
    actor.hf_tokenizer.note = encoded.append
    run(two_groups(actor))
    assert encoded == ["prompt"] * 3


def test_watching_twice_is_watching_once():
    actor = Actor(Agent(1.0))
    executor = actor.executor
    watch_rollouts(actor, timeout=1.0, retries=1)
    assert actor.executor is executor and isinstance(executor, RolloutExecutor)


@pytest.mark.parametrize("executor", [SingleTurnAgentExecutor("http://unused"), Agent(1.0)])
@pytest.mark.parametrize("errored, error", [(True, ConnectionError("gone")), (False, EngineDeadError())])
def test_a_dead_vllm_ends_the_run(executor, errored, error):
    actor = Actor(executor, retries=2)
    actor.llm.errored = errored
    requests = refusing(actor, error)
    with pytest.raises(type(error)):
        run(actor.rollout())
    assert len(requests) == 1


def refusing(actor, error):
    """Let vLLM raise the error for every request; the requests."""
    requests = []

    async def generate(*args, **kwargs):
        requests.append(args)
        raise error

    actor.generate = generate
    return requests


def raised_from(cause):
    error = EngineGenerateError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, line",
    [
        (
            VLLMValidationError("The decoder prompt cannot be empty"),
            "VLLMValidationError: The decoder prompt cannot be",
        ),
        (
            ValueError("Token id 9999 is out of vocabulary"),
            "ValueError: Token id 9999 is out of vocabulary (test_roll",
        ),
        (raised_from(ValueError("1 placeholder, 2 images")), "ValueError: 1 placeholder, 2 images"),
    ],
)
def test_a_request_that_vllm_refuses_is_a_failure_and_is_not_made_again(error, line):
    for executor in (SingleTurnAgentExecutor(None), SingleTurnAgentExecutor("http://unused")):
        actor = Actor(executor, retries=2)
        requests = refusing(actor, error)
        response = run(actor.rollout("label"))
        assert response[ROLLOUT].failure.startswith(line) and response.keys() == UNFINISHED_FIELDS
        assert not response[ROLLOUT].finished and not response[ROLLOUT].stopped and len(requests) == 1


class Turns(AgentInstanceBase):
    def __init__(self):
        pass

    async def step(self, states):
        return {"rewards": torch.tensor(1.0), "environment_feedback": "", "done": True}


class Resets(Turns):
    async def reset(self, states):
        return {"observation": " ".join(states["observation"])}


@pytest.mark.parametrize(
    "prompt, executor, failure",
    [
        ("", SingleTurnAgentExecutor(None), "the prompt is empty"),
        (" \n", SingleTurnAgentExecutor(None), "the prompt is blank"),
        (
            ["a", "b"],
            SingleTurnAgentExecutor(None),
            "the prompt is a list instead of a text: --data.apply_chat_template",
        ),
        (
            ["a", "b"],
            MultiTurnAgentExecutor(Turns),
            "the prompt is a list instead of a text: --data.apply_chat_template",
        ),
        (7, SingleTurnAgentExecutor(None), "the prompt is a int instead of a text"),
        (None, MultiTurnAgentExecutor(Turns), "the prompt is a NoneType instead of a text"),
        (["a", "b"], MultiTurnAgentExecutor(Resets), None),  # it makes a text of them
        ("", Agent(1.0), None),  # an environment may have no prompt
    ],
)
def test_a_prompt_that_openrlhf_would_misread_is_a_failure(prompt, executor, failure):
    actor = Actor(executor, retries=2)

    async def rollout():
        request = actor.request() | {"prompt": prompt, "max_length": 30}
        return await actor.executor.execute(**request)

    response = run(rollout())
    assert (response[ROLLOUT].failure or "").startswith(failure or "") and bool(failure) != response[ROLLOUT].finished
    assert response["prompt"] == prompt


class Spends(Agent):
    """An agent that uses up what it gets, and fails in its first attempt."""

    async def execute(self, label, images, sampling_params, hf_tokenizer, **kwargs):
        self.seen.append((label.pop(), images.pop(), sampling_params.max_tokens, hf_tokenizer.padding_side))
        sampling_params.max_tokens -= 2
        hf_tokenizer.padding_side = "left"
        return await super().execute(sampling_params=sampling_params, **kwargs)


def test_neither_siblings_nor_second_attempts_see_what_an_agent_does_to_what_it_gets():
    agent = Spends(OSError("tool"), OSError("tool"), 1.0, 1.0)
    agent.seen = []
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, padding_side="right")

    async def group():
        actor = Actor(agent, retries=1, tokenizer=tokenizer)
        share = Share(0, Prompt("prompt", ["x", "y"], ["1.png", "2.png"], 1), (0, 1))
        await actor.executor.execute(**actor.request() | {"prompt": Dispatch([share])})
        ended = []
        while len(ended) < 2:
            ended += await actor.executor.execute(prompt=Collect(), llm_engine=actor)
        return [rollout.response for rollout in ended]

    responses = run(group())
    assert agent.seen == [("y", "2.png", 5, "right")] * 4
    assert [(r["label"], r["images"], r[ROLLOUT].tokens) for r in responses] == [
        (["x", "y"], ["1.png", "2.png"], 3)
    ] * 2


def test_what_has_ended_is_collected_in_one_answer_and_the_next_one_waits():
    """Two groups of one dispatch; what ended while nobody asked comes at once."""

    async def main():
        actor = Actor(SingleTurnAgentExecutor(None))
        shares = [
            Share(number, Prompt("prompt", number, None, 1), places) for number, places in ((7, (0, 2)), (8, (1,)))
        ]
        await actor.executor.execute(**actor.request(max_tokens=3) | {"prompt": Dispatch(shares)})
        await asyncio.sleep(0.2)
        together = await actor.executor.execute(prompt=Collect(), llm_engine=actor)
        assert sorted((ended.number, ended.place, ended.response["label"]) for ended in together) == [
            *[(7, 0, 7), (7, 2, 7), (8, 1, 8)]
        ]
        later = asyncio.create_task(actor.executor.execute(prompt=Collect(), llm_engine=actor))
        await asyncio.sleep(0.05)
        assert not later.done() and not actor.executor._dispatched
        await actor.executor.execute(**actor.request(max_tokens=3) | {"prompt": Dispatch(shares[1:])})
        ((number, place, response),) = await asyncio.wait_for(later, 10)
        assert (number, place, response[ROLLOUT].tokens) == (8, 1, 3)

    run(main())


def test_an_answer_has_no_more_rollouts_than_the_driver_handles_at_once(monkeypatch):
    monkeypatch.setattr("openrlhf_sagc.engine.rollouts.MOST_COLLECTED", 2)

    async def main():
        actor = Actor(SingleTurnAgentExecutor(None))
        share = Share(7, Prompt("prompt", 7, None, 1), tuple(range(5)))
        await actor.executor.execute(**actor.request(max_tokens=3) | {"prompt": Dispatch([share])})
        await asyncio.sleep(0.2)
        answers = [await actor.executor.execute(prompt=Collect(), llm_engine=actor) for _ in range(3)]
        assert [len(ended) for ended in answers] == [2, 2, 1]
        assert sorted(ended.place for answer in answers for ended in answer) == [0, 1, 2, 3, 4]

    run(main())


def test_a_dead_vllm_is_heard_of_by_who_waits_for_what_has_ended():
    async def main():
        actor = Actor(SingleTurnAgentExecutor(None))
        refusing(actor, EngineDeadError())
        share = Share(0, Prompt("prompt", "", None, 1), (0,))
        await actor.executor.execute(**actor.request() | {"prompt": Dispatch([share])})
        with pytest.raises(EngineDeadError):
            await actor.executor.execute(prompt=Collect(), llm_engine=actor)

    run(main())


def test_earlier_responses_reach_the_engine_before_the_rollouts_that_are_drafted_from_them():
    async def check():
        actor, earlier = Actor(Agent()), [(b"prompt", [b"one", b"two"])]
        at_call = []
        rpc = actor.llm.collective_rpc

        async def noted(*args, **kwargs):
            at_call.append(len(actor.requests))
            return await rpc(*args, **kwargs)

        actor.llm.collective_rpc = noted
        shares = [Share(0, Prompt("prompt", "", None, 1), (0,))]
        await actor.executor.execute(**actor.request(max_tokens=1) | {"prompt": Dispatch(shares, False, earlier)})
        assert actor.called == [("remember_responses", earlier)] and at_call == [0]
        await actor.executor.execute(**actor.request(max_tokens=1) | {"prompt": Dispatch(shares)})
        assert len(actor.called) == 1
        assert await actor.executor.execute(prompt=CountDrafts(), llm_engine=actor) == [{"tokens": 5}]

    run(check())
