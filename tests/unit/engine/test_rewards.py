"""Rewards in the engine's actor, without Ray or vLLM: functions and agents that fail."""

import asyncio
import random
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from engine_actor import UNFINISHED_FIELDS, Actor, Agent, answer_of, calls, run, until
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.engine.rewards as rewards
from openrlhf_sagc.advantages import ESTIMATORS, group_advantages
from openrlhf_sagc.decisions.records import ROLLOUT, Collect, Dispatch, Ended, Prompt, Share
from openrlhf_sagc.engine.answers import LARGEST
from openrlhf_sagc.engine.running_rollouts import current_rollout

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_a_reward_that_fails_after_its_rollout_is_over_says_nothing_of_it():
    def fails(queries, prompts, labels):
        raise ValueError

    counts = {"waits_for_its_reward": nullcontext, "refused": 0, "retried": 0}
    over = [SimpleNamespace(closed=closed, failure="it took too long", **counts) for closed in (True, False)]

    async def fetch(rollout):
        current_rollout.set(rollout)
        await rewards.Rewards(SimpleNamespace(reward_func=fails), 30.0, 0, random.Random(0)).fetch(["q"], ["p"], ["l"])

    for rollout in over:
        run(fetch(rollout))
    assert over[0].failure == "it took too long" and "ValueError" in over[1].failure


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize(
    "reward",
    ["torch.tensor([0.5])", "torch.tensor(0.5, dtype=torch.bfloat16)", "[torch.tensor([0.5])]", "(0.5,)"]
    + ["numpy.float32(0.5)", "numpy.array([[0.5]])", "[[0.5]]", "0.5"],
)
def test_one_number_of_any_kind_is_a_reward(reward_file, reward, is_bare):
    """Without a dict it is the reward itself, as before OpenRLHF 0.8.1."""
    body = (
        f"return {reward}"
        if is_bare
        else f"return dict(rewards={reward}, scores=True, extra_logs={{'kept': {reward}}})"
    )
    response = run(Actor(reward_file(body)).rollout("label"))
    assert (response["reward"], response["scores"]) == (0.5, 0.5 if is_bare else 1.0)
    assert type(response["reward"]) is type(response["scores"]) is float
    assert response["extra_logs"] == ({} if is_bare else {"kept": 0.5}) and response[ROLLOUT].failure is None


@pytest.mark.parametrize(
    "body, failure",
    [
        ("raise ValueError('no\\n  answer')", "ValueError: no answer (reward.py:5)"),
        ("raise ValueError('long ' * 200)", "ValueError: " + "long " * 60 + " (reward.py:5)"),
        ("next(iter([]))", "StopIteration:  (reward.py:5)"),
        ("raise SystemExit(3)", "SystemExit: 3 (reward.py:5)"),
        ("return dict(rewards=float('nan'))", "the reward function returned reward nan"),
        ("return dict(rewards=torch.tensor([float('inf')]))", "the reward function returned reward inf"),
        ("return dict(rewards=0.0, scores=float('nan'))", "the reward function returned score nan"),
        ("return dict(rewards=1e39)", "the reward function returned reward 1e+39"),
        ("return dict(rewards=-10**400)", "the reward function returned reward -1" + "0" * 98),
        ("return dict(rewards=0.5, scores=-1e31)", "the reward function returned score -1e+31"),
        ("return dict(rewards=[0.5, 1.0])", "the reward function returned 2 rewards for 1 sample"),
        ("return dict(rewards=torch.tensor([]))", "the reward function returned 0 rewards for 1 sample"),
        ("return dict(rewards=None)", "the reward function returned reward None"),
        ("return dict(rewards='0.5')", "the reward function returned reward '0.5'"),
        (
            "class Odd(Exception):\n        def __str__(self):\n            return self.text\n    raise Odd",
            "Odd: an error whose message cannot be made (reward.py:8)",
        ),
        ("return dict(rewards=1j)", "the reward function returned reward 1j"),
        (
            "return dict(rewards=(item := [], item.append(item))[0])",
            "the reward function returned reward [[[[[[[...]]]]]]]",
        ),
        ("raise GeneratorExit", "GeneratorExit:  (reward.py:5)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt:  (reward.py:5)"),
        ("return dict(reward=0.5)", "the reward function returned no 'rewards' but ['reward']"),
        ("return '0.5'", "the reward function returned a str instead of a number or a dict"),
        ("return None", "the reward function returned a NoneType instead of a number or a dict"),
        ("return [0.5, 0.25]", "the reward function returned 2 rewards for 1 sample"),
        ("return torch.tensor([float('nan')])", "the reward function returned reward nan"),
    ],
)
def test_the_failure_line_says_what_the_function_did(reward_file, body, failure):
    executor = reward_file(body)
    response = run(Actor(executor, retries=1).rollout())
    assert response[ROLLOUT].failure == failure
    assert response["reward"] is None and response["scores"] is None and not response[ROLLOUT].stopped
    assert response[ROLLOUT].tokens == 5 and len(response["observation_tokens"]) == 8
    assert len(calls(executor)) == 2


def test_a_function_that_recovers_gives_its_reward(reward_file):
    response = run(Actor(reward_file("return dict(rewards=[0.0] if len(calls) > 2 else 1 / 0)"), retries=2).rollout())
    assert response["reward"] == 0.0 and response[ROLLOUT].failure is None


def test_a_rollout_tells_how_long_it_waited_for_its_reward_and_how_often_it_asked(reward_file):
    """A function that fails once and then takes 0.2 s; the wait is no part of the running seconds."""
    body = "if len(calls) == 1: raise OSError('once')\n    time.sleep(0.2)\n    return {'rewards': 1.0}"
    response = run(Actor(reward_file(body), retries=1, statistics=False).rollout())
    rollout = response[ROLLOUT]
    assert response["reward"] == 1.0 and (rollout.refused, rollout.retried) == (0, 1)
    assert 0.2 <= rollout.reward_seconds <= rollout.seconds
    assert rollout.running_seconds == rollout.seconds - rollout.reward_seconds


def test_requests_that_a_server_refuses_are_counted():
    response = run(Actor(SingleTurnAgentExecutor("http://127.0.0.1:9/away"), retries=2).rollout())
    rollout = response[ROLLOUT]
    assert rollout.failure and (rollout.refused, rollout.retried) == (3, 2)


@pytest.mark.parametrize("tells", [True, False])
def test_an_engine_says_which_rollouts_only_wait_for_their_reward(reward_file, tells):
    async def check():
        executor = reward_file("free.wait()\n    return {'rewards': 1.0}")
        actor = Actor(executor)
        dispatch = Dispatch([Share(7, Prompt("prompt", "label", None, 1), (3,))], tells)
        await actor.executor.execute(**actor.request() | {"prompt": dispatch})
        collect = asyncio.create_task(actor.executor.execute(prompt=Collect(), llm_engine=actor))
        while not calls(executor):
            await asyncio.sleep(0.005)
        if tells:
            assert await collect == [Ended(7, 3, None)]
            collect = asyncio.create_task(actor.executor.execute(prompt=Collect(), llm_engine=actor))
        assert not collect.done()
        executor.reward_func.__globals__["free"].set()
        ((number, place, response),) = await collect
        return (number, place), response["reward"]

    assert run(check()) == ((7, 3), 1.0)


def test_a_rollout_that_is_stopped_while_it_waits_tells_so_too(reward_file):
    async def check():
        executor = reward_file("free.wait()\n    return {'rewards': 1.0}")
        actor = Actor(executor)
        waits = until(lambda: calls(executor))
        (response,) = await actor.stopped_when(waits, [actor.rollout()])
        return response[ROLLOUT]

    rollout = run(check())
    assert 0 < rollout.reward_seconds <= rollout.seconds and rollout.tokens == 5


def test_pauses_double_up_to_half_a_minute_and_differ_between_samples(monkeypatch):
    monkeypatch.setattr(rewards, "PAUSE", 0.5)
    jitter = random.Random(3)
    first, *pauses = [rewards.pause_before(attempt, jitter) for attempt in [0, 1, 2, 3, 4, 9, 10, 10, 10, 5000]]
    assert first == 0
    longest = [0.5, 1.0, 2.0, 4.0, 30.0, 30.0, 30.0, 30.0, 30.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    assert len({pause / most for pause, most in zip(pauses, longest, strict=True)}) == len(pauses)


def test_an_agent_that_recovers_gives_its_response():
    response = run(Actor(Agent(OSError("tool"), float("nan"), torch.tensor([1])), retries=2).rollout())
    assert (response["reward"], response[ROLLOUT].tokens, response[ROLLOUT].failure) == (1.0, 5, None)
    assert response[ROLLOUT].queue_seconds == pytest.approx(0.9)


@pytest.mark.parametrize(
    "attempt, failure",
    [
        (ValueError("no tool"), "ValueError: no tool (engine_actor.py:"),
        (None, "the agent returned reward None"),
        (float("nan"), "the agent returned reward nan"),
        (asyncio.CancelledError("by a tool's client"), "CancelledError: by a tool's client (engine_actor.py:"),
        (SystemExit(2), "SystemExit: 2 (engine_actor.py:"),
        (KeyboardInterrupt(), "KeyboardInterrupt:  (engine_actor.py:"),
        (type("TimedOut", (BaseException,), {})("30 s"), "TimedOut: 30 s (engine_actor.py:"),  # as func_timeout's
    ],
)
def test_an_agent_without_a_reward_is_a_failure(attempt, failure):
    agent = Agent(attempt, attempt, "not tried")
    response = run(Actor(agent, retries=1).rollout("label"))
    assert response[ROLLOUT].failure.startswith(failure)
    assert response.keys() == UNFINISHED_FIELDS and response["label"] == "label"
    assert not response[ROLLOUT].stopped and not response[ROLLOUT].finished  # so that it has no length yet
    assert response[ROLLOUT].tokens == 5
    assert next(agent.attempts) == "not tried"


def test_an_agent_on_openrlhfs_rewards_is_not_rerun_for_them(reward_file):
    """Its reward has had its attempts, and the response is there; one that makes do with another reward is fine."""

    class MakesDo(SingleTurnAgentExecutor):
        async def execute(self, *args, label, **kwargs):
            response = await super().execute(*args, label=label, **kwargs)
            return {**response, "reward": label, "scores": label}

    body = "raise ValueError('no answer')"
    path = reward_file(body).reward_endpoints[0]
    executor = MakesDo(path)
    response = run(Actor(executor, retries=1).rollout(None))
    assert response[ROLLOUT].failure == "ValueError: no answer (reward.py:5)" and response[ROLLOUT].tokens == 5
    assert "observation_tokens" in response and len(calls(executor)) == 2
    response = run(Actor(MakesDo(path)).rollout(0.25))
    assert response["reward"] == 0.25 and response[ROLLOUT].failure is None


def test_an_agent_that_fetches_rewards_in_its_own_way_keeps_it(reward_file):
    class Own(SingleTurnAgentExecutor):
        async def _fetch_rewards_via_func(self, queries, prompts, labels):
            return [{"rewards": 0.75}]

    assert run(Actor(Own(reward_file("pass").reward_endpoints[0])).rollout())["reward"] == 0.75


def test_openrlhf_makes_a_sample_of_every_answer_that_is_let_through(reward_file):
    response = run(Actor(reward_file("return dict(rewards=-1e30)")).rollout("label"))
    sample = SamplesGenerator._process_response_into_experience(None, response, max_len=64)
    assert torch.isfinite(sample.rewards).all() and sample.scores.equal(sample.rewards)


@pytest.mark.parametrize(
    "logs",
    ["'text'", "numpy.ones(0)", "[1, 2]", "{'note': None}", "{7: 0.5}", "{'info': {'steps': 3}}", "{'big': 10**400}"],
)
def test_no_reward_is_lost_because_of_a_log(reward_file, logs):
    response = run(Actor(reward_file(f"return dict(rewards=0.5, extra_logs={logs})")).rollout())
    assert (response["reward"], response["extra_logs"], response[ROLLOUT].failure) == (0.5, {}, None)
    assert response["extra_logs_left_out"].startswith("extra_logs[")


def test_neither_siblings_nor_further_attempts_see_what_a_function_does_to_its_label(reward_file):
    body = "labels[0]['answers'].pop()\n    return dict(rewards=1.0) if len(calls) > 2 else None"
    executor, label = reward_file(body), {"answers": [1, 2]}

    async def group():
        actor = Actor(executor, retries=2)
        return await asyncio.gather(actor.rollout(label), actor.rollout(label))

    assert [response[ROLLOUT].failure for response in run(group())] == [None, None]
    assert calls(executor) == [[{"answers": [1]}]] * 4 and label == {"answers": [1, 2]}


def test_a_subclass_may_ask_for_rewards_by_openrlhfs_names(reward_file):
    class Named(SingleTurnAgentExecutor):
        async def execute(self, **kwargs):
            response = await super().execute(**kwargs)
            (answer,) = await self._fetch_rewards_via_func(queries_list=[""], prompts_list=[""], labels_list=[""])
            return {**response, "reward": answer["rewards"] + 1}

    executor = Named(reward_file("return dict(rewards=0.5)").reward_endpoints[0])
    assert run(Actor(executor).rollout())["reward"] == 1.5


def test_the_reason_of_a_reward_that_failed_in_an_agents_own_thread_is_kept(reward_file):
    class InThread(SingleTurnAgentExecutor):
        def answer(self):
            self.answers += asyncio.run(self._fetch_rewards_via_func([""], [""], [""]))

        async def execute(self, llm_engine, sampling_params, **kwargs):
            self.answers = []
            thread = threading.Thread(target=self.answer)
            thread.start()
            output = await llm_engine.generate([1, 2], sampling_params)
            await asyncio.to_thread(thread.join)
            return answer_of(output) | {"reward": self.answers[0]["rewards"]}

    executor = InThread(reward_file("raise ValueError('no parse')").reward_endpoints[0])
    response = run(Actor(executor).rollout())
    assert response[ROLLOUT].failure == "ValueError: no parse (reward.py:5)" and response["reward"] is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_largest_reward_has_room_in_the_advantages(estimator):
    rewards_N = torch.tensor([LARGEST, -LARGEST, 0.0, LARGEST] * 8)
    assert group_advantages(rewards_N, [2, 2, 4, 24], estimator).abs().max() <= 4 * LARGEST
