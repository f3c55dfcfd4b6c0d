"""Rewards inside an engine's actor: asked for with a time limit, checked, and asked for again."""

import asyncio
import concurrent.futures
import math
import os
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

PAUSE = 0.5  # seconds before the second attempt; every later pause is twice the one before
THREAD = "reward"  # name of the threads in which reward functions run
MOST_THREADS = 128  # of them; at most 32 are waited for, so the others have hung


class Failure(Exception):
    """An error whose message says everything, in one line."""


class Rewards:
    """The reward function or the reward servers of an executor of OpenRLHF.

    Args:
        executor: OpenRLHF's SingleTurnAgentExecutor.
        timeout: seconds for one call; a function's wait for a thread is not part of it.
        retries: further attempts.
        note_failure: is called, in the task that asked, with the reason why there is no reward after all attempts.
    """

    def __init__(self, executor, timeout: float, retries: int, note_failure: Callable[[str], None]):
        self._executor = executor
        self._timeout = timeout
        self._retries = retries
        self._note_failure = note_failure
        self._threads = asyncio.Semaphore(min(32, (os.cpu_count() or 1) + 4))  # as many as asyncio.to_thread has

    async def fetch(self, queries: list, prompts: list, labels: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is None."""
        return await asyncio.gather(*map(self._fetch_one, queries, prompts, labels))

    async def _fetch_one(self, query, prompt, label) -> dict:
        for attempt in range(self._retries + 1):
            await pause_before(attempt)
            try:
                return await self._ask({"query": [query], "prompts": [prompt], "labels": [label]})
            except Exception as error:
                failure = describe(error)
        self._note_failure(failure)
        return {"rewards": None}

    async def _ask(self, sample: dict) -> dict:
        if self._executor.reward_func:
            async with self._threads:
                if sum(thread.name == THREAD for thread in threading.enumerate()) >= MOST_THREADS:
                    raise Failure(f"{MOST_THREADS} calls of the reward function hang, so that no more are made")
                return await self._answer("the reward function", _in_thread(self._executor.reward_func, sample))
        url = next(self._executor._reward_endpoint_cycle)
        return await self._answer(f"the reward server {url}", _post(url, sample))

    async def _answer(self, who: str, call: Awaitable) -> dict:
        """The answer with `rewards`, and `scores` if given, as finite floats."""
        try:
            answer = await asyncio.wait_for(call, self._timeout)
        except asyncio.TimeoutError:
            raise Failure(f"{who} did not answer within {self._timeout:g} s") from None
        if not isinstance(answer, dict):
            raise Failure(f"{who} returned a {type(answer).__name__} instead of a dict")
        if "rewards" not in answer:
            raise Failure(f"{who} returned no 'rewards' but {list(answer)!r:.100}")
        answer = {**answer, "rewards": finite_number(answer["rewards"], who, "reward")}
        if answer.get("scores") is not None:
            answer["scores"] = finite_number(answer["scores"], who, "score")
        return answer


async def pause_before(attempt: int) -> None:
    """Wait before an attempt, counted from 0, unless it is the first."""
    if attempt:
        await asyncio.sleep(PAUSE * 2 ** (attempt - 1))


def finite_number(value: Any, who: str, name: str) -> float:
    """The finite number in a scalar, tensor, array or list of one.

    Raises:
        Failure: there is none; the line says who returned what.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise Failure(f"{who} returned {len(value)} {name}s for 1 sample")
        return finite_number(value[0], who, name)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Failure(f"{who} returned {name} {value!r:.100}")
    return float(value)


def describe(error: BaseException, where: str | None = None) -> str:
    """One line: the error's type, its message, shortened, and where it was raised, by default file and line."""
    if isinstance(error, Failure):
        return str(error)
    message = " ".join(str(error).split())[:300]
    if where is None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {message} ({where})"


async def _post(url: str, sample: dict) -> Any:
    """The server's answer, parsed."""
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            async with session.post(url, json=sample) as response:
                response.raise_for_status()
                return await response.json()
    except Exception as error:
        raise Failure(describe(error, where=url)) from error


async def _in_thread(function: Callable, sample: dict) -> Any:
    """What the function returns, from a daemon thread of its own: one that hangs blocks neither a pool nor the exit."""
    outcome: concurrent.futures.Future = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # a caller that gives up can no longer cancel it, which `run` would trip over

    def run() -> None:
        try:
            outcome.set_result(function(*sample.values()))
        except BaseException as error:
            outcome.set_exception(Failure(describe(error)))  # not as it is: futures cannot pass a StopIteration on

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(outcome)
