"""What runs inside an engine's Ray actor: rollouts that are timed, can be stopped, and say why they have no reward."""

import asyncio
import concurrent.futures
import math
import os
import threading
import time
import traceback
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4
from weakref import WeakKeyDictionary

import aiohttp
from openrlhf.utils.agent import SingleTurnAgentExecutor

PAUSE = 0.5  # seconds before the second attempt; every later pause is twice the one before
THREAD = "reward"  # name of the threads in which reward functions run
MOST_THREADS = 128  # of these, most of which have hung, as at most 32 are waited for


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
        stopping.add_done_callback(lambda stopping: stopping.result())  # which logs what it raises


def keep_first(engine_actor, count: int | None) -> None:
    """Run in an engine's actor after `watch_rollouts`: of the rollouts of a prompt that is dispatched from now on, the
    first `count` to finish with a reward stop the others; None lets all of them finish.
    """
    engine_actor.executor.keep = count


class RolloutExecutor:
    """Agent executor of OpenRLHF around another one; arguments as for `watch_rollouts`.

    Rewards of a function or server are checked, and asked for again; a function's wait for a thread is not part of
    `timeout`. Agents that raise or return no reward run again as a whole; they have no timeout, since their time is
    also generation. Subclasses of OpenRLHF's executor that fetch rewards in a way of their own keep it.
    """

    def __init__(self, executor, llm, timeout: float, retries: int):
        self.executor = executor
        self.loop: asyncio.AbstractEventLoop | None = None  # known with the first rollout
        self._llm = llm
        self._timeout = timeout
        self._retries = retries
        self.keep: int | None = None  # see `keep_first`
        self._running: set[_Rollout] = set()
        self._groups: WeakKeyDictionary[asyncio.Task, _Group] = WeakKeyDictionary()
        self._threads = asyncio.Semaphore(min(32, (os.cpu_count() or 1) + 4))  # as many as asyncio.to_thread has
        self._single_turn = type(executor) is SingleTurnAgentExecutor
        self._reward_model = self._single_turn and not executor.reward_endpoints
        for name in ("_fetch_rewards_via_func", "_fetch_rewards_via_http"):
            if getattr(type(executor), name, None) is getattr(SingleTurnAgentExecutor, name):
                setattr(executor, name, self._fetch_rewards)

    def execute(self, *args, llm_engine, **kwargs):
        """What the inner executor returns, reward and scores as floats, with these fields added:

        - `seconds` from the dispatch inside the engine's actor to the finished response with its reward; of these,
          `queue_seconds` is what the rollout's requests waited for vLLM's scheduler;
        - `tokens` of the response; of one that is not complete, those generated so far in its last attempt;
        - `stopped`: whether `stop` or its group ended it. If so, the rest is only prompt, label and images as in `kwargs`;
        - `failure`: None, or in one line why there is no reward after all attempts; reward and scores are then None.
          If the failure is an agent's, the rest is as for a stopped one.

        Raises:
            Exception: of OpenRLHF's own single-turn executor outside of the reward, or of any once vLLM is dead.
        """
        # OpenRLHF calls this for all rollouts of a prompt in one task.
        task = asyncio.current_task()
        assert task is not None
        group = self._groups.setdefault(task, _Group(self.keep))
        return self._execute(group, llm_engine, args, kwargs)

    async def _execute(self, group: "_Group", llm_engine, args: tuple, kwargs: dict) -> dict:
        self.loop = asyncio.get_running_loop()
        rollout = _Rollout(llm_engine)
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
        if group.finished == group.keep:
            await self._stop(group.running)
        if response is None:
            response = {name: kwargs.get(name) for name in ("prompt", "label", "images")}
        response["seconds"] = seconds
        response["queue_seconds"] = rollout.queue_seconds
        response["tokens"] = rollout.tokens
        response["stopped"] = rollout.stopped
        response["failure"] = None if rollout.stopped else rollout.failure
        return response

    async def stop(self) -> None:
        """End all rollouts, also those that begin meanwhile; when it returns none is left, and new ones run normally."""
        await self._stop(self._running)

    async def _stop(self, rollouts: set["_Rollout"]) -> None:
        """End all of them, also those added meanwhile."""
        while running := [rollout for rollout in rollouts if not rollout.ended.done()]:
            for rollout in running:
                rollout.stop()
            await self._llm.abort([request for rollout in running for request in rollout.requests])
            # Again soon: a request that was just being submitted is not yet among vLLM's.
            await asyncio.wait([rollout.ended for rollout in running], timeout=0.005)

    async def _sample(self, rollout: "_Rollout", args: tuple, kwargs: dict) -> dict | None:
        """The inner executor's response with its reward checked; None if an agent failed."""
        _current.set(rollout)
        for attempt in range(self._retries + 1):
            await _pause(attempt)
            rollout.tokens, rollout.failure = 0, None
            try:
                response = await self.executor.execute(*args, llm_engine=rollout, **kwargs)
                rollout.tokens = sum(end - start for start, end in response["action_ranges"])
                if self._reward_model or (rollout.failure and response.get("reward") is None):
                    return response
                response["reward"] = _number(response.get("reward"), "the agent", "reward")
                if response.get("scores") is not None:
                    response["scores"] = _number(response["scores"], "the agent", "score")
                rollout.failure = None  # it may do without the reward that could not be fetched
                return response
            except (Exception, asyncio.CancelledError) as error:  # an agent's tool may raise the latter by itself
                if rollout.stopped:
                    break
                cancelled = rollout.task.cancelling()
                if cancelled or self._llm.errored or (self._single_turn and not isinstance(error, _Failure)):
                    raise
                rollout.failure = _describe(error)
        return None

    async def _fetch_rewards(self, queries: list, prompts: list, labels: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is None."""
        return await asyncio.gather(*map(self._fetch_reward, queries, prompts, labels))

    async def _fetch_reward(self, query, prompt, label) -> dict:
        for attempt in range(self._retries + 1):
            await _pause(attempt)
            try:
                return await self._ask({"query": [query], "prompts": [prompt], "labels": [label]})
            except Exception as error:
                failure = _describe(error)
        _current.get().failure = failure  # for `_sample`: raised in here it would cost the response
        return {"rewards": None}

    async def _ask(self, sample: dict) -> dict:
        if self.executor.reward_func:
            async with self._threads:
                if sum(thread.name == THREAD for thread in threading.enumerate()) >= MOST_THREADS:
                    raise _Failure(f"{MOST_THREADS} calls of the reward function hang, so that no more are made")
                return await self._answer("the reward function", _in_thread(self.executor.reward_func, sample))
        url = next(self.executor._reward_endpoint_cycle)
        return await self._answer(f"the reward server {url}", _post(url, sample))

    async def _answer(self, who: str, call) -> dict:
        """The answer with `rewards`, and `scores` if given, as finite floats."""
        try:
            answer = await asyncio.wait_for(call, self._timeout)
        except asyncio.TimeoutError:
            raise _Failure(f"{who} did not answer within {self._timeout:g} s") from None
        if not isinstance(answer, dict):
            raise _Failure(f"{who} returned a {type(answer).__name__} instead of a dict")
        if "rewards" not in answer:
            raise _Failure(f"{who} returned no 'rewards' but {list(answer)!r:.100}")
        answer = {**answer, "rewards": _number(answer["rewards"], who, "reward")}
        if answer.get("scores") is not None:
            answer["scores"] = _number(answer["scores"], who, "score")
        return answer


@dataclass(eq=False)
class _Group:
    """The rollouts of one prompt."""

    keep: int | None
    finished: int = 0
    running: set["_Rollout"] = field(default_factory=set)


class _Rollout:
    """The engine as one rollout sees it: counts tokens and seconds in vLLM's queue, and can end the rollout."""

    def __init__(self, engine):
        self._engine = engine
        self.requests: set[str] = set()  # in vLLM or on the way there
        self.tokens = 0
        self.queue_seconds = 0.0
        self.failure: str | None = None
        self.stopped = False
        self.task: asyncio.Task  # which is made with this and set at once
        self.ended = asyncio.get_running_loop().create_future()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, *args, **kwargs):
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
        if stats is not None:  # None where vLLM logs no statistics; all 0 where it was aborted before its first token
            wait = stats.scheduled_ts - stats.queued_ts if stats.scheduled_ts else time.perf_counter() - start
            self.queue_seconds += max(wait, 0.0)
        if self.stopped or output.outputs[0].finish_reason == "abort":
            self.stopped = True
            if not self.requests:
                self.end()
            raise asyncio.CancelledError  # which agents let pass, and which ends the task in any case
        return output

    def stop(self) -> None:
        """Mark it as stopped, and end it unless vLLM still owes it the tokens of a request."""
        if not self.task.done():
            self.stopped = True
            if not self.requests:
                self.task.cancel()
                self.end()

    def end(self, _task=None) -> None:
        """Let `execute` return, whatever the task does."""
        if not self.ended.done():
            self.ended.set_result(None)


_current: ContextVar[_Rollout] = ContextVar("rollout")


class _Failure(Exception):
    """Its message says everything, in one line."""


async def _pause(attempt: int) -> None:
    if attempt:
        await asyncio.sleep(PAUSE * 2 ** (attempt - 1))


async def _post(url: str, sample: dict):
    """The server's answer, parsed."""
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            async with session.post(url, json=sample) as response:
                response.raise_for_status()
                return await response.json()
    except Exception as error:
        raise _Failure(_describe(error, where=url)) from error


async def _in_thread(function, sample: dict):
    """What the function returns, from a daemon thread of its own: one that hangs blocks neither a pool nor the exit."""
    outcome: concurrent.futures.Future = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # no longer cancelled by a caller that gives up: `run` would trip over that

    def run():
        try:
            outcome.set_result(function(*sample.values()))
        except BaseException as error:
            outcome.set_exception(_Failure(_describe(error)))  # not as it is: futures cannot pass a StopIteration on

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _number(value, who: str, name: str) -> float:
    """The finite number in a scalar, tensor, array or list of one."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise _Failure(f"{who} returned {len(value)} {name}s for 1 sample")
        return _number(value[0], who, name)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _Failure(f"{who} returned {name} {value!r:.100}")
    return float(value)


def _describe(error: BaseException, where: str | None = None) -> str:
    """One line: the error's type, its message, shortened, and where it was raised (by default file and line)."""
    if isinstance(error, _Failure):
        return str(error)
    message = " ".join(str(error).split())[:300]
    if where is None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {message} ({where})"
