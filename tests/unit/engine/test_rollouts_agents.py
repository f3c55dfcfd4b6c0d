"""Agents in the engine's actor, without Ray or vLLM: those that keep the engine, serve it themselves, or hang."""

import asyncio
import threading
import time

import pytest
from engine_actor import ENDLESS, UNFINISHED_FIELDS, Actor, Agent, answer_of, run, until

from openrlhf_sagc.decisions.records import ROLLOUT
from openrlhf_sagc.engine.rollouts import stop_rollouts

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


class KeepsTheEngine:
    """An agent that uses the engine of its first call for all later ones."""

    engine = None

    async def execute(self, llm_engine, sampling_params, **kwargs):
        self.engine = self.engine or llm_engine
        output = await self.generate(sampling_params)
        return answer_of(output)

    async def generate(self, sampling_params):
        return await self.engine.generate([1], sampling_params)


class Serves(KeepsTheEngine):
    """One that passes its requests to a server of its own, which has a thread and an event loop."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def generate(self, sampling_params):
        request = self.engine.generate([1], sampling_params)
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self.loop)))


def test_an_agent_may_keep_the_engine_of_its_first_rollout():
    """After that one was stopped the others run, with their own tokens; a stop of the others ends their requests."""

    async def check():
        actor = Actor(KeepsTheEngine())
        first = [actor.rollout(max_tokens=ENDLESS)]
        await actor.stopped_when(until(lambda: actor.requests), first)
        assert (await actor.rollout(max_tokens=7))[ROLLOUT].tokens == 7
        later = [actor.rollout(max_tokens=ENDLESS) for _ in range(3)]
        responses = await actor.stopped_when(until(lambda: len(actor.requests) == 3), later)
        assert all(response[ROLLOUT].tokens > 0 for response in responses) and not actor.requests

    run(check())


def test_a_stop_ends_the_requests_of_an_agents_own_server():
    async def check():
        actor = Actor(Serves())
        rollouts = [actor.rollout(max_tokens=ENDLESS) for _ in range(3)]
        await actor.stopped_when(until(lambda: len(actor.requests) == 3), rollouts)
        response = await actor.rollout(max_tokens=7)  # one that begins while the stop still ends requests
        assert response["reward"] == 1.0 and response[ROLLOUT].tokens == 7
        while actor.requests or actor.executor._engine.requests:
            await asyncio.sleep(0.005)

    run(check())


class Hangs(Agent):
    """An agent whose label says what it does after its request: hang, ignore its end, work on, or return."""

    ignored = 0

    async def execute(self, label, llm_engine, sampling_params, **kwargs):
        output = await llm_engine.generate([1], sampling_params)
        try:
            while label in ("hang", "ignore"):
                await asyncio.sleep(30)
        except asyncio.CancelledError:
            if label == "hang":
                raise
            self.ignored += 1
            with pytest.raises(asyncio.CancelledError):  # no request of a rollout that is over
                await llm_engine.generate([1], sampling_params)
        for _ in range(4 if label == "work" else 0):
            await asyncio.sleep(0.3)
            output = await llm_engine.generate([1], sampling_params)
        return answer_of(output)


@pytest.mark.parametrize("label", ["hang", "ignore"])
def test_an_agent_that_hangs_is_a_failure_with_its_reason_and_is_not_tried_again(label):
    async def check():
        actor, start = Actor(Hangs(), retries=2, agent_timeout=0.5), time.monotonic()
        response, other = await asyncio.gather(actor.rollout(label), actor.rollout("return"))
        assert time.monotonic() - start < 5 and other["reward"] == 1.0
        assert response.keys() == UNFINISHED_FIELDS and response[ROLLOUT].tokens == 5
        assert not response[ROLLOUT].finished and not response[ROLLOUT].stopped
        await asyncio.sleep(0.05)
        assert actor.executor.executor.ignored == (label == "ignore")
        return response[ROLLOUT].failure

    assert run(check()) == "the agent made no request to the engine for 0.5 s and did not return"


def test_neither_many_short_tools_nor_a_long_generation_reach_the_deadline():
    async def check():
        actor = Actor(Hangs(), agent_timeout=1.0)
        working, generating = await asyncio.gather(actor.rollout("work"), actor.rollout("return", max_tokens=250))
        assert working["reward"] == generating["reward"] == 1.0
        assert working[ROLLOUT].seconds > 1.0 and generating[ROLLOUT].seconds > 1.0

    run(check())


@pytest.mark.parametrize("limits", [{}, {"agent_timeout": 30.0}])
@pytest.mark.parametrize("label", ["hang", "ignore"])
def test_a_stop_ends_an_agent_that_hangs(label, limits):
    async def check():
        actor = Actor(Hangs(), **limits)
        rollout = asyncio.create_task(actor.rollout(label))
        done = until(lambda: not actor.requests)
        await asyncio.sleep(0.1)
        await actor.stopped_when(done, [rollout])

    run(check())


def test_the_deadline_waits_for_requests_that_an_agents_server_makes_in_its_thread():
    class Served(Agent):
        async def execute(self, llm_engine, sampling_params, **kwargs):
            serve = lambda: asyncio.run(llm_engine.generate([1], sampling_params))  # noqa: E731
            output = await asyncio.get_running_loop().run_in_executor(None, serve)
            return answer_of(output)

    async def check():
        response = await Actor(Served(), agent_timeout=0.3).rollout(max_tokens=200)
        assert response["reward"] == 1.0 and response[ROLLOUT].failure is None and response[ROLLOUT].seconds > 0.6

    run(check())


def test_an_agent_that_hangs_before_its_first_request_reaches_the_deadline_too():
    class HangsAtOnce(Agent):
        async def execute(self, **kwargs):
            await asyncio.sleep(30)

    async def check():
        actor = Actor(HangsAtOnce(), agent_timeout=0.2)
        response = await actor.rollout()
        await asyncio.to_thread(stop_rollouts, actor)  # of a rollout that is over
        return response[ROLLOUT]

    rollout = run(check())
    assert rollout.failure and rollout.tokens == 0 and not rollout.stopped
