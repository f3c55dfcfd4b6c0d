"""Rewards inside an engine's actor: asked for with a time limit, checked, and asked for again."""

import asyncio
import concurrent.futures
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from openrlhf_sagc.actors.answers import Failure, Missing, check_scores, describe
from openrlhf_sagc.actors.attempts import own_copy
from openrlhf_sagc.actors.extra_logs import LOGS, as_logs
from openrlhf_sagc.actors.reward_server import ServerAway, own_error, post, shortened
from openrlhf_sagc.redaction import without_secrets

PAUSE = 0.5  # seconds before the second attempt; every later pause is twice the one before
LONGEST_PAUSE = 30.0  # seconds
PATIENCE = 60.0  # seconds in which a server that is away is asked again, which count as no attempt
THREAD = "reward"  # name of the threads in which reward functions run
MOST_HUNG = 96  # calls past their time; with those in time, at most 32, a process has at most 128 such threads


class Rewards:
    """The reward function or the reward servers of an executor of OpenRLHF.

    Args:
        executor: OpenRLHF's SingleTurnAgentExecutor.
        timeout: seconds for one call; a function's wait for a thread is not part of it.
        retries: further attempts.
        jitter: spreads the pauses before them.
        note_failure: is called, in the task that asked, with the reason why there is no reward after all attempts.
    """

    def __init__(
        self,
        executor,
        timeout: float,
        retries: int,
        jitter: random.Random,
        note_failure: Callable[[str], None],
    ):
        self._executor = executor
        self._timeout = timeout
        self._retries = retries
        self._jitter = jitter
        self._note_failure = note_failure
        self._slots = asyncio.Semaphore(min(32, (os.cpu_count() or 1) + 4))  # as many threads as asyncio.to_thread has
        self._running: set[asyncio.Task] = set()  # calls of the function that are in time
        self._holding: set[asyncio.Task] = set()  # those of them that have a slot
        self._large = asyncio.Semaphore(1)  # see `post`
        self._hung = 0

    async def fetch(self, queries_list: list, prompts_list: list, labels_list: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is `Missing`."""
        return await asyncio.gather(*map(self._fetch_one, queries_list, prompts_list, labels_list))

    async def _fetch_one(self, query, prompt, label) -> dict:
        attempts = again = 0
        away_since = None  # seconds on the clock
        while attempts <= self._retries:
            await pause_before(attempts + again, self._jitter)  # without a slot
            try:
                return await self._ask({"query": [query], "prompts": [own_copy(prompt)], "labels": [own_copy(label)]})
            except Exception as error:
                failure = describe(error)
                now = time.monotonic()
                away_since = (away_since or now) if isinstance(error, ServerAway) else None
                if away_since is not None and now - away_since < PATIENCE:
                    again += 1
                else:
                    attempts += 1
        self._note_failure(failure)
        return {"rewards": Missing(failure)}

    async def _ask(self, sample: dict) -> dict:
        if self._executor.reward_func:
            return await self._answer("the reward function", self._call_function(sample))
        url = next(self._executor._reward_endpoint_cycle)
        call = asyncio.wait_for(post(url, sample, self._large), self._timeout)
        return await self._answer(f"the reward server {without_secrets(url)}", call)

    async def _answer(self, who: str, call: Awaitable) -> dict:
        """The answer with `rewards` and `scores` as numbers, and `extra_logs` as a dict.

        Without a dict the answer is the reward itself, as it was before OpenRLHF 0.8.1.
        """
        try:
            answer = await call
        except asyncio.TimeoutError:
            raise Failure(f"{who} did not answer within {self._timeout:g} s") from None
        if isinstance(answer, (list, tuple, int, float)) or hasattr(answer, "tolist"):
            answer = {"rewards": answer}
        if not isinstance(answer, dict):
            raise Failure(f"{who} returned a {type(answer).__name__} instead of a number or a dict")
        if "rewards" not in answer:
            said = own_error(answer)
            but = shortened(said) if said else without_secrets(repr(list(answer)))[:100]
            raise Failure(f"{who} returned no 'rewards' but {but}")
        answer = dict(answer)
        check_scores(answer, who, "rewards")
        answer[LOGS] = as_logs(answer.get(LOGS))
        return answer

    async def _call_function(self, sample: dict) -> Any:
        """What the function returns, from a thread. The call of a caller that is cancelled gives its slot to the next one.

        It keeps the slot where as many calls run without one as may, so that threads do not pile up.
        """
        await self._slots.acquire()
        if self._hung >= MOST_HUNG:
            self._slots.release()
            raise Failure(f"{MOST_HUNG} calls of the reward function hang, so that no more are made")
        call = asyncio.create_task(self._in_time(sample))
        self._running.add(call)
        self._holding.add(call)
        call.add_done_callback(self._running.remove)
        call.add_done_callback(self._free_slot)
        call.add_done_callback(_seen)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if self._hung + len(self._running) - len(self._holding) < MOST_HUNG:
                self._free_slot(call)
            raise

    def _free_slot(self, call: asyncio.Task) -> None:
        """The slot of this call, if it still has one, is for another."""
        if call in self._holding:
            self._holding.remove(call)
            self._slots.release()

    async def _in_time(self, sample: dict) -> Any:
        """One call, which counts as hung from the end of its time until it returns.

        Raises:
            TimeoutError: its time is over.
        """
        call = _in_thread(self._executor.reward_func, sample)
        await asyncio.wait([call], timeout=self._timeout)
        if call.done():
            return call.result()
        self._hung += 1
        call.add_done_callback(self._has_returned)
        raise asyncio.TimeoutError

    def _has_returned(self, call: asyncio.Future) -> None:
        """A call that hung is over."""
        self._hung -= 1
        _seen(call)


def _seen(call: asyncio.Future) -> None:
    """Whoever waited for the call may be gone; asyncio would report an error that nobody asked for."""
    if not call.cancelled():
        call.exception()


async def pause_before(attempt: int, jitter: random.Random) -> None:
    """Wait before an attempt, counted from 0, unless it is the first.

    The pause doubles up to LONGEST_PAUSE. Samples that fail together ask again at different times.
    """
    if attempt:
        longest = min(PAUSE * 2.0 ** min(attempt - 1, 100), LONGEST_PAUSE)
        await asyncio.sleep(longest * jitter.uniform(0.5, 1.0))


def _in_thread(function: Callable, sample: dict) -> asyncio.Future:
    """What the function returns, from a daemon thread of its own: one that hangs blocks neither a pool nor the exit."""
    outcome: concurrent.futures.Future = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # nobody can cancel it any more, which `run` would trip over

    def run() -> None:
        try:
            outcome.set_result(function(*sample.values()))
        except BaseException as error:
            outcome.set_exception(Failure(describe(error)))  # not as it is: futures cannot pass a StopIteration on

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return asyncio.wrap_future(outcome)
