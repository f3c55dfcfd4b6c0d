"""What agents ask of the engine and do not wait for: it ends with its rollout, and before the weights change."""

import asyncio
import threading

import pytest
from engine_actor import ENDLESS, Actor, Agent, answer_of, run

import openrlhf_sagc.engine.rollouts as rollouts
from openrlhf_sagc.decisions.records import ROLLOUT
from openrlhf_sagc.engine.rollouts import stop_left_over

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


class Drafts(Agent):
    """Asks for three drafts and returns the first; `begun` of the others have reached vLLM by then."""

    def __init__(self, begun=True):
        self.begun, self.outcomes = begun, []

    async def execute(self, llm_engine, sampling_params, **kwargs):
        drafts = []
        for tokens in (5, ENDLESS, ENDLESS):
            sampling_params.max_tokens = tokens
            drafts.append(asyncio.create_task(llm_engine.generate([1], sampling_params)))
            drafts[-1].add_done_callback(lambda draft: self.outcomes.append(draft.cancelled()))
            await asyncio.sleep(0.01 if self.begun else 0)
        output = await drafts[0]
        return answer_of(output)


@pytest.mark.parametrize("submit", [0.0, 0.2])
@pytest.mark.parametrize("begun", [True, False])
def test_drafts_that_an_agent_does_not_wait_for_end_with_its_rollout(submit, begun):
    """Also one that vLLM does not know yet; and they change nothing of the rollout."""

    async def check():
        actor = Actor(Drafts(begun), submit=submit)
        response, other = await asyncio.gather(actor.rollout(), actor.rollout())
        assert not actor.requests
        for rollout in (response[ROLLOUT], other[ROLLOUT]):
            assert rollout.finished and not rollout.stopped and rollout.tokens == 5 and rollout.failure is None
        assert actor.executor.executor.outcomes.count(True) == 4

    run(check())


class AsksInAThread(Agent):
    """Its thread goes on asking when the rollout is over."""

    def __init__(self):
        self.refused = threading.Event()

    async def execute(self, llm_engine, sampling_params, **kwargs):
        output = await llm_engine.generate([1], sampling_params)
        sampling_params.max_tokens = ENDLESS

        async def ask():
            for _ in range(2):
                await llm_engine.generate([1], sampling_params)

        def asks():
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(ask())
            self.refused.set()

        threading.Thread(target=asks, daemon=True).start()
        while not llm_engine.requests:
            await asyncio.sleep(0.005)
        return answer_of(output)


class GoesAroundUs(Agent):
    """It asks vLLM's own object."""

    async def execute(self, llm_engine, sampling_params, **kwargs):
        output = await llm_engine.generate([1], sampling_params)
        llm_engine._actor.requests["of its own"] = asyncio.Event()
        return answer_of(output)


@pytest.mark.parametrize("agent", [AsksInAThread, GoesAroundUs])
def test_what_is_left_over_in_an_engine_without_rollouts_is_stopped(agent):
    async def check():
        actor = Actor(agent())
        assert await asyncio.to_thread(stop_left_over, actor) == 0  # nothing ever ran
        await actor.rollout()
        assert actor.requests
        while await asyncio.to_thread(stop_left_over, actor):
            await asyncio.sleep(0.01)
        assert not actor.requests
        if agent is AsksInAThread:
            assert await asyncio.to_thread(actor.executor.executor.refused.wait, 20)
            assert not actor.requests and (await actor.rollout())["reward"] == 1.0

    run(check())


def test_an_engine_whose_rollouts_go_on_keeps_their_requests():
    async def check():
        actor = Actor(Agent(1.0))
        rollout = asyncio.create_task(actor.rollout(max_tokens=100))
        while not actor.requests:
            await asyncio.sleep(0.005)
        assert await asyncio.to_thread(stop_left_over, actor) == 0
        await asyncio.sleep(0.05)
        assert (await rollout)[ROLLOUT].tokens > 5

    run(check())


def test_a_reset_of_the_prefix_cache_is_tried_again_and_then_ends_the_step(monkeypatch):
    monkeypatch.setattr(rollouts, "RESET_PAUSE", 0.001)

    async def check():
        actor = Actor(Agent(1.0))
        actor.resets = iter([False, False, True, "not asked"])
        await actor.llm.reset_prefix_cache()  # as OpenRLHF's actor calls it
        assert next(actor.resets) == "not asked"
        actor.resets = iter([False] * 1000)
        with pytest.raises(
            RuntimeError, match="the prefix cache of a vLLM engine could not be reset in .* requests hold it"
        ):
            await actor.llm.reset_prefix_cache()

    run(check())


class CancelsItself(Agent):
    """As a tool that cancels all tasks that it sees, and goes on or not."""

    def __init__(self, then):
        self.then = then

    async def execute(self, llm_engine, sampling_params, **kwargs):
        output = await llm_engine.generate([1], sampling_params)
        asyncio.current_task().cancel()
        if self.then == "return":
            return answer_of(output)
        if self.then == "await":
            await asyncio.sleep(1)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        raise ValueError("tool failed")


@pytest.mark.parametrize("then", ["return", "await", "raise"])
def test_an_agent_that_cancels_its_own_task_costs_its_sample(then):
    measured = run(Actor(CancelsItself(then)).rollout())[ROLLOUT]
    assert measured.failure and not measured.finished and not measured.stopped
