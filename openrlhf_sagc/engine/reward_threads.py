"""In an engine's actor: calls of a reward function, in long-lived threads. One that hangs costs its thread, no other."""

import asyncio
import concurrent.futures
import os
import queue
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from openrlhf_sagc.engine.answers import Failure, describe

THREAD = "reward"  # name of the threads
MOST_HUNG = 96  # calls that were given up; with those in time, at most 32, a process has at most 128 such threads
LOOKS = 20  # at a call in its time, or more
LONGEST_PAUSE = 1.0  # seconds between two looks
QUIET = 0.001  # of the time between two looks: a call that computes less only wakes up to wait on


class RewardThreads:
    """Threads in which a reward function runs, as many at a time as asyncio.to_thread has.

    A thread lives on after its call, so that what a function keeps in `threading.local` is made once a thread. A call that
    is given up keeps its thread until it returns; the next call that finds none gets a new one.

    Args:
        timeout: seconds that a call may compute, and seconds that it may do nothing at all.
    """

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._most = min(32, (os.cpu_count() or 1) + 4)
        self._slots = asyncio.Semaphore(self._most)
        self._running: set[asyncio.Task] = set()  # calls that are in time
        self._holding: set[asyncio.Task] = set()  # those of them that have a slot
        self._hung = 0
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._idle: list[bool] = []  # an entry for each thread that waits for a call

    async def call(self, function: Callable, *arguments: Any) -> Any:
        """What the function returns. The call of a caller that is cancelled gives its slot to the next one.

        It keeps the slot where as many calls run without one as may, so that threads do not pile up.

        Raises:
            Failure: the function raised, or the call was given up, or too many have been.
        """
        await self._slots.acquire()
        if self._hung >= MOST_HUNG:
            self._slots.release()
            raise Failure(f"{MOST_HUNG} calls of the reward function hang, so that no more are made")
        call = asyncio.create_task(self._in_time(partial(function, *arguments)))
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

    async def _in_time(self, function: Callable) -> Any:
        """One call, which counts as hung from when it is given up until it returns."""
        call = _Call(function)
        self._calls.put(call)
        try:
            self._idle.pop()
        except IndexError:
            work = partial(_work, self._calls, self._idle, self._most)
            threading.Thread(target=work, name=THREAD, daemon=True).start()  # one that hangs does not block the exit
        outcome = asyncio.wrap_future(call.outcome)
        failure = await _why_given_up(call, outcome, self._timeout)
        if failure is None:
            return await outcome
        self._hung += 1
        outcome.add_done_callback(_seen)
        outcome.add_done_callback(lambda _: setattr(self, "_hung", self._hung - 1))
        raise Failure(failure)


class _Call:
    """A call and the processor's time that its thread takes for it."""

    def __init__(self, function: Callable):
        self.outcome: concurrent.futures.Future = concurrent.futures.Future()
        self.outcome.set_running_or_notify_cancel()  # nobody can cancel it any more, which a thread would trip over
        self._function = partial(copy_context().run, function)  # as asyncio.to_thread does
        self._clock: int | None = None
        self._start = 0.0

    def run(self) -> Callable[[], None]:
        """Make the call, in this thread; what is returned sets its outcome."""
        self._start = time.thread_time()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            return partial(self.outcome.set_result, self._function())
        except BaseException as error:  # not as it is: futures cannot pass a StopIteration on
            return partial(self.outcome.set_exception, Failure(describe(error)))

    def computed(self) -> float | None:
        """Seconds that the thread has computed for this call, whatever others do; None before it begins and after its end."""
        if self._clock is None:
            return None
        try:
            return time.clock_gettime(self._clock) - self._start
        except OSError:  # the thread is gone
            return None


def _work(calls: queue.SimpleQueue, idle: list[bool], most: int) -> None:
    """Make one call after the other in this thread, until there are as many threads without one as may be."""
    stays = True
    while stays:
        call = calls.get()
        set_outcome = call.run()
        stays = len(idle) < most
        if stays:
            idle.append(True)  # first, so that who waits for the outcome finds this thread for the next call
        set_outcome()
        del call, set_outcome  # or what it returned would be kept until the next call


async def _why_given_up(call: _Call, outcome: asyncio.Future, timeout: float) -> str | None:
    """Wait until the call is over, has computed for `timeout` seconds, or has done nothing for so long; None in the first case.

    Both are seconds of its own thread. Other calls' work, which may keep it from the interpreter, counts for neither.
    """
    pause = min(timeout / LOOKS, LONGEST_PAUSE)
    now, seen, quiet = time.monotonic(), 0.0, 0.0
    while True:
        await asyncio.wait([outcome], timeout=pause)
        before, now = now, time.monotonic()
        passed = min(now - before, 2 * pause)  # where even this loop was held up for longer, so was the call
        computed = call.computed()
        if call.outcome.done():
            return None
        if computed is None:
            continue
        quiet = quiet + passed if computed - seen <= QUIET * passed else 0.0
        seen = computed
        if computed >= timeout:
            return f"the reward function did not answer within {timeout:g} s of computing"
        if quiet >= timeout:
            return f"the reward function did not answer within {timeout:g} s in which it computed nothing"


def _seen(call: asyncio.Future) -> None:
    """Whoever waited for the call may be gone; asyncio would report an error that nobody asked for."""
    if not call.cancelled():
        call.exception()
