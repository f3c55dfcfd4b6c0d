"""What runs inside an engine's Ray actor: rollouts that are timed, can be stopped, and say why they have no reward."""

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import uuid4
from weakref import WeakKeyDictionary

from openrlhf.utils.agent import SingleTurnAgentExecutor

from openrlhf_sagc.actors.rewards import Failure, Rewards, describe, finite_number, pause_before
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout


def watch_rollouts(engine_actor, *, timeout: float, retries: int) -> None:
    """Run in an engine's actor: from now on its rollouts go through a `RolloutExecutor`; a second call does nothing.

    Args:
        engine_actor: OpenRLHF's RolloutRayActor.
        timeout: seconds for one call of the reward function or server.
        retries: further attempts at a reward, or at a whole sample of an agent.
    """
    if not isinstance(engine_actor.executor, RolloutExecutor):
        engine_actor.executor = RolloutExecutor(engine_actor.executor, engine_actor.llm, timeout, retries)


def stop_rollouts(engine_actor) -> None:
    """Run in an engine's actor after `watch_rollouts`: begin `RolloutExecutor.stop` and return at once."""
    executor = engine_actor.executor
    if executor.loop:  # Ray calls this in another thread
        stopping = asyncio.run_coroutine_threadsafe(executor.stop(), executor.loop)
        stopping.add_done_callback(lambda stopping: stopping.result())  # an error is logged from here


def keep_first(engine_actor, count: int | None) -> None:
    """Run in an engine's actor after `watch_rollouts`, before prompts are dispatched.

    Of the rollouts of each of these prompts, the first `count` to finish with a reward stop the others. None lets all of
    them finish.
    """
    engine_actor.executor.keep_first = count


class RolloutExecutor:
    """An agent executor of OpenRLHF around another one; the arguments are those of `watch_rollouts`.

    Rewards of a function or a server are checked, and asked for again. Agents that raise or return no reward run again as
    a whole. They have no time limit, since their time is also generation. Subclasses of OpenRLHF's executor that fetch
    rewards in a way of their own keep that way.
    """

    def __init__(self, executor, llm, timeout: float, retries: int):
        self.executor = executor
        self.keep_first: int | None = None  # of the rollouts of a prompt, see the function
        self.loop: asyncio.AbstractEventLoop | None = None  # known with the first rollout
        self._llm = llm
        self._retries = retries
        self._running: set[_RunningRollout] = set()
        self._groups: WeakKeyDictionary[asyncio.Task, _RunningGroup] = WeakKeyDictionary()
        self._single_turn = type(executor) is SingleTurnAgentExecutor
        self._reward_model = self._single_turn and not executor.reward_endpoints
        rewards = Rewards(executor, timeout, retries, note_failure)
        for name in ("_fetch_rewards_via_func", "_fetch_rewards_via_http"):
            if getattr(type(executor), name, None) is getattr(SingleTurnAgentExecutor, name):
                setattr(executor, name, rewards.fetch)

    def execute(self, *args, llm_engine, **kwargs):
        """What the inner executor returns, reward and scores as floats, and a `Rollout` under the key ROLLOUT.

        The tokens of a rollout that did not finish are those generated so far in its last attempt. Its response holds
        nothing else but prompt, label and images, as in `kwargs`. If the reward failed, reward and scores are None.

        Raises:
            Exception: of OpenRLHF's own single-turn executor outside of the reward, or any once vLLM is dead.
        """
        # OpenRLHF calls this for all rollouts of a prompt in one task.
        task = asyncio.current_task()
        assert task is not None
        group = self._groups.setdefault(task, _RunningGroup(self.keep_first))
        return self._execute(group, llm_engine, args, kwargs)

    async def _execute(self, group: "_RunningGroup", llm_engine, args: tuple, kwargs: dict) -> dict:
        self.loop = asyncio.get_running_loop()
        rollout = _RunningRollout(llm_engine)
        start = time.perf_counter()
        rollout.task = asyncio.create_task(self._sample(rollout, args, kwargs))
        rollout.task.add_done_callback(rollout.end)
        for running in (self._running, group.running):
            running.add(rollout)
        try:
            await rollout.ended
        except asyncio.CancelledError:
            rollout.task.cancel()
            raise
        finally:
            for running in (self._running, group.running):
                running.remove(rollout)
        seconds = time.perf_counter() - start
        response = None if rollout.stopped else rollout.task.result()
        group.finished += not rollout.stopped and rollout.failure is None
        if group.finished == group.keep_first:
            await self._stop(group.running)
        measured = Rollout(
            tokens=rollout.tokens,
            seconds=seconds,
            queue_seconds=rollout.queue_seconds,
            finished=response is not None,
            stopped=rollout.stopped,
            failure=None if rollout.stopped else rollout.failure,
        )
        if response is None:
            response = {name: kwargs.get(name) for name in ("prompt", "label", "images")}
        return {**response, ROLLOUT: measured}

    async def stop(self) -> None:
        """End all rollouts, also those that begin meanwhile. When it returns none is left, and new ones run normally."""
        await self._stop(self._running)

    async def _stop(self, rollouts: set["_RunningRollout"]) -> None:
        """End all of them, also those added meanwhile."""
        while running := [rollout for rollout in rollouts if not rollout.ended.done()]:
            for rollout in running:
                rollout.stop()
            await self._llm.abort([request for rollout in running for request in rollout.requests])
            # Again soon: vLLM does not know a request yet that is just being submitted.
            await asyncio.wait([rollout.ended for rollout in running], timeout=0.005)

    async def _sample(self, rollout: "_RunningRollout", args: tuple, kwargs: dict) -> dict | None:
        """The inner executor's response with its reward checked; None if an agent failed."""
        _current.set(rollout)
        for attempt in range(self._retries + 1):
            await pause_before(attempt)
            rollout.tokens, rollout.failure = 0, None
            try:
                response = await self.executor.execute(*args, llm_engine=rollout, **kwargs)
                rollout.tokens = sum(end - start for start, end in response["action_ranges"])
                if self._reward_model or (rollout.failure and response.get("reward") is None):
                    return response
                response["reward"] = finite_number(response.get("reward"), "the agent", "reward")
                if response.get("scores") is not None:
                    response["scores"] = finite_number(response["scores"], "the agent", "score")
                rollout.failure = None  # the agent may do without the reward that could not be fetched
                return response
            except (Exception, asyncio.CancelledError) as error:  # an agent's tool may raise the latter by itself
                if rollout.stopped:
                    break
                cancelled = rollout.task.cancelling()
                if cancelled or self._llm.errored or (self._single_turn and not isinstance(error, Failure)):
                    raise
                rollout.failure = describe(error)
        return None


@dataclass(eq=False)
class _RunningGroup:
    """The rollouts of one prompt; `finished` counts those with a reward."""

    keep_first: int | None
    finished: int = 0
    running: set["_RunningRollout"] = field(default_factory=set)


class _RunningRollout:
    """The engine as one rollout sees it: it counts tokens and seconds in vLLM's queue, and can end the rollout."""

    def __init__(self, engine):
        self._engine = engine
        self.requests: set[str] = set()  # in vLLM or on the way there
        self.tokens = 0
        self.queue_seconds = 0.0
        self.failure: str | None = None
        self.stopped = False
        self.task: asyncio.Task  # set right after this object is made
        self.ended = asyncio.get_running_loop().create_future()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, *args, **kwargs):
        """The engine's `generate`, with a request id of its own by which the request can be aborted."""
        if self.stopped:
            raise asyncio.CancelledError
        start, request = time.perf_counter(), uuid4().hex
        self.requests.add(request)
        try:
            output = await self._engine.generate(*args, request_id=request, **kwargs)
        finally:
            self.requests.remove(request)
        self.tokens += len(output.outputs[0].token_ids)
        stats = output.metrics
        if stats is not None:  # None if vLLM logs no statistics; all 0 if it was aborted before its first token
            wait = stats.scheduled_ts - stats.queued_ts if stats.scheduled_ts else time.perf_counter() - start
            self.queue_seconds += max(wait, 0.0)
        if self.stopped or output.outputs[0].finish_reason == "abort":
            self.stopped = True
            if not self.requests:
                self.end()
            raise asyncio.CancelledError  # agents do not catch this, so the task ends
        return output

    def stop(self) -> None:
        """Mark the rollout as stopped, and end it unless vLLM still owes it the tokens of a request."""
        if not self.task.done():
            self.stopped = True
            if not self.requests:
                self.task.cancel()
                self.end()

    def end(self, _task=None) -> None:
        """Let `execute` return, whatever the task does."""
        if not self.ended.done():
            self.ended.set_result(None)


_current: ContextVar[_RunningRollout] = ContextVar("rollout")


def note_failure(failure: str) -> None:
    """The reward of the rollout that this runs for has failed; raised instead, it would cost the response as well."""
    _current.get().failure = failure
