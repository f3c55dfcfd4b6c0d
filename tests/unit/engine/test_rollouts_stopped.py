"""Rollouts that are stopped in the engine's actor, without Ray or vLLM."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from engine_actor import ENDLESS, Actor, Agent, answer_of, calls, run, until
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.engine.rewards as rewards
from openrlhf_sagc.decisions.records import ROLLOUT
from openrlhf_sagc.engine.rollouts import stop_rollouts

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_stop_while_vllm_generates():
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"))
        rollouts = [actor.rollout("label", ENDLESS) for _ in range(3)]
        responses = await actor.stopped_when(until(lambda: len(actor.requests) == 3), rollouts)
        assert all(1 <= response[ROLLOUT].tokens < 200 for response in responses)
        assert (responses[0]["prompt"], responses[0]["label"]) == ("prompt", "label")
        assert responses[0][ROLLOUT].queue_seconds == pytest.approx(0.3)

    run(check())


def test_stop_before_the_request_is_submitted():
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"), submit=0.2)
        await actor.stopped_when(lambda: True, [actor.rollout(max_tokens=ENDLESS)])

    run(check())


def test_stop_while_the_reward_is_computed(reward_file):
    executor = reward_file("free.wait(20)")

    async def check():
        actor = Actor(executor)
        (response,) = await actor.stopped_when(until(lambda: calls(executor)), [actor.rollout()])
        assert response[ROLLOUT].tokens == 5
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "reward")

    run(check())


def test_stop_between_two_attempts_at_a_reward(reward_file, monkeypatch):
    monkeypatch.setattr(rewards, "PAUSE", 30)
    executor = reward_file("raise ValueError")

    async def check():
        actor = Actor(executor, retries=1)
        await actor.stopped_when(until(lambda: calls(executor)), [actor.rollout()])

    run(check())


def test_rollouts_that_begin_during_a_stop_are_stopped_and_later_ones_run(reward_file):
    async def check():
        actor = Actor(reward_file("return dict(rewards=1.0)"), submit=1.0)
        early = asyncio.create_task(actor.rollout(max_tokens=ENDLESS))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, actor)
        await asyncio.sleep(0.05)
        late = asyncio.create_task(actor.rollout(max_tokens=ENDLESS))
        assert all(response[ROLLOUT].stopped for response in await asyncio.gather(early, late))
        response = await actor.rollout()
        assert (response["reward"], response[ROLLOUT].tokens, response[ROLLOUT].stopped) == (1.0, 5, False)

    run(check())


def test_a_rollout_that_was_queued_all_the_time_has_no_seconds_of_its_own():
    async def check():
        actor = Actor(Agent())
        generate = actor.llm.generate

        async def queued(*args, **kwargs):
            async for output in generate(*args, **kwargs):
                output.outputs[0].token_ids, output.metrics = [], SimpleNamespace(queued_ts=0.0, scheduled_ts=0.0)
                yield output

        actor.llm.generate = queued
        (response,) = await actor.stopped_when(until(lambda: actor.requests), [actor.rollout(max_tokens=ENDLESS)])
        assert response[ROLLOUT].seconds >= response[ROLLOUT].queue_seconds > 0.015 and response[ROLLOUT].tokens == 0

    run(check())


def test_no_agent_turns_a_stop_into_a_response():
    """One that swallows the end of its request, and one that swallows the end of its tool and works on."""

    class Stubborn(Agent):
        napping = worked_on = False

        async def execute(self, label, llm_engine, sampling_params, **kwargs):
            try:
                await llm_engine.generate([1], sampling_params)
                self.napping = True
                await asyncio.sleep(30)
            except BaseException:
                pass
            if label == "tool":
                await asyncio.sleep(20)
                self.worked_on = True
            with pytest.raises(asyncio.CancelledError):
                await llm_engine.generate([1], sampling_params)
            return {"reward": 1.0, "observation_tokens": [1, 2], "action_ranges": [(1, 2)]}

    async def check():
        agent = Stubborn()
        actor = Actor(agent, retries=3)
        rollouts = [actor.rollout("tool", 5), actor.rollout("request", ENDLESS)]
        await actor.stopped_when(until(lambda: agent.napping), rollouts)
        assert not agent.worked_on and not actor.requests

    run(check())


def test_a_stopped_agent_cleans_up_undisturbed_and_is_not_rerun():
    class Careful(Agent):
        executed = cleaned = 0
        worked_on = False

        async def execute(self, llm_engine, sampling_params, **kwargs):
            self.executed += 1
            try:
                await llm_engine.generate([1], sampling_params)
                await asyncio.sleep(30)
            except Exception:
                self.worked_on = True
            finally:
                await asyncio.sleep(0.05)
                self.cleaned += 1
                raise OSError("the sandbox is gone")

    async def check():
        agent = Careful()
        actor = Actor(agent, retries=1)
        rollouts = [actor.rollout(max_tokens=1), actor.rollout(max_tokens=ENDLESS)]
        await actor.stopped_when(until(lambda: len(actor.requests) == 1), rollouts)
        while agent.cleaned < 2:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)  # in which it would be rerun
        assert agent.cleaned == agent.executed == 2 and not agent.worked_on

    run(check())


def test_stopping_before_the_first_rollout_and_between_rollouts_does_nothing():
    async def check():
        actor = Actor(Agent(0.0, 1.0))
        for reward in (0.0, 1.0):
            await asyncio.to_thread(stop_rollouts, actor)
            await asyncio.to_thread(stop_rollouts, actor, [0])
            await asyncio.sleep(0.02)
            assert (await actor.rollout())["reward"] == reward

    run(check())


def test_an_error_of_the_stop_is_logged(caplog):
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"))
        actor.llm.abort = None
        task = asyncio.create_task(actor.rollout(max_tokens=200))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, actor)
        assert (await task)[ROLLOUT].stopped

    run(check())
    assert "'NoneType' object is not callable" in caplog.text


def test_a_cancelled_rollout_is_cancelled_inside():
    class Waiting(Agent):
        state = None

        async def execute(self, **kwargs):
            self.state = "waiting"
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.state = "cancelled"
                raise

    async def check():
        agent = Waiting()
        actor = Actor(agent, retries=1)
        task = asyncio.create_task(actor.rollout())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
        assert agent.state == "cancelled"
        await actor.executor.stop()

    run(check())


def test_the_rollouts_of_one_group_are_stopped_alone_whatever_call_brought_them():
    """Two calls of group 0, one of group 1 and an evaluation's; group 5 never came. None of the labels shows its number."""

    async def main():
        actor = Actor(LabelledAgent())
        calls = [
            actor.group(0, ENDLESS, label="a"),
            actor.group(0, ENDLESS, 3, label="b"),
            actor.group(1, 60, label="c"),
        ]
        tasks = [asyncio.ensure_future(call) for call in [*calls, actor.rollout("d", 60)]]
        for count in (5, 4):  # requests: all run, then the short one is over
            while len(actor.requests) != count:
                await asyncio.sleep(0)
        await asyncio.to_thread(stop_rollouts, actor, [0, 5])
        (first,), (second, short), (other,), evaluated = await asyncio.wait_for(asyncio.gather(*tasks), 10)
        responses = first, second, short, other, evaluated
        assert [response[ROLLOUT].stopped for response in responses] == [True, True, False, False, False]
        assert [response["label"] for response in responses] == ["a", "b", "b", "c", "d"]
        assert not actor.requests and not actor.executor._groups

    run(main())


class LabelledAgent:
    async def execute(self, label, sampling_params, llm_engine, **kwargs):
        output = await llm_engine.generate([1], sampling_params)
        return answer_of(output)
