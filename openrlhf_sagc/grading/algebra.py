"""Comparison of answers by math-verify, in processes with a deadline, from any thread.

math-verify limits its own time by an alarm, which only a process's main thread can set, while OpenRLHF calls reward
functions in threads. Without a limit an answer such as 9^{9^{9^{9}}} would hold its thread for ever.
"""

import logging
import resource
import signal
import threading
from functools import lru_cache
from multiprocessing import get_context

import psutil  # type: ignore[import-untyped]
from pebble import ProcessPool

COMPARISON_SECONDS = 10  # for one comparison, from where it begins
WAITING_SECONDS = 60  # for one comparison with its wait for a process; under --reward.timeout
START_SECONDS = 120  # for the first comparison, with the start of its process on a busy machine
PROCESSES = 4  # few answers need them, and every engine has its own
WORKER_BYTES = 4 << 30  # that a comparing process may allocate

_starting = threading.Lock()


def verified(pair: tuple[str, str], seconds: int | None = 5) -> bool:
    """Whether (gold, answer) are equal; not, if it takes longer to tell.

    Main thread only, as its limit is an alarm; `seconds` None is for a process that is stopped from outside.
    """
    from math_verify.errors import TimeoutException  # type: ignore[import-untyped]
    from math_verify.utils import timeout  # type: ignore[import-untyped]

    from openrlhf_sagc.grading.comparison import equal

    try:
        return timeout(seconds)(equal)(*pair)
    except TimeoutException:
        return False


def _verified_in_time(pair: tuple[str, str], seconds: int) -> bool:
    """The same in a process that ends a while after its time, even if the pool that should stop it was killed."""
    signal.alarm(seconds + 5)  # nobody handles it, so it ends the process
    try:
        return verified(pair, None)
    finally:
        signal.alarm(0)


def prepare_worker() -> None:
    """Bound the memory of this process and silence its log."""
    import math_verify  # type: ignore[import-untyped]  # noqa: F401  # its import takes seconds on a busy disk

    limit = psutil.Process().memory_info().vms + WORKER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)


@lru_cache(maxsize=100_000)  # the samples of a group often agree
def equal_by_algebra(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal; None if math-verify failed on them or was stopped.

    Raises:
        RuntimeError: no process can be started, or math-verify does not work there.
    """
    task = (gold, answer), COMPARISON_SECONDS
    comparison = _pool().schedule(_verified_in_time, args=task, timeout=COMPARISON_SECONDS)
    try:
        return bool(comparison.result(WAITING_SECONDS))
    except Exception:  # of sympy on odd input; the time or the memory is over, and the process is gone
        comparison.cancel()
        return None


def _pool() -> ProcessPool:
    """The processes, which the first call starts; others wait for it."""
    with _starting:
        return _started_pool()


@lru_cache(maxsize=1)
def _started_pool() -> ProcessPool:
    # Not fork: the caller has threads, and may have a GPU.
    pool = ProcessPool(PROCESSES, initializer=prepare_worker, context=get_context("spawn"))
    try:
        works = pool.schedule(verified, args=((r"\frac{1}{2}", "0.5"), None)).result(START_SECONDS)
    except Exception as error:
        pool.stop()
        raise RuntimeError(f"math-verify cannot be run in a process of its own: {error!r}") from None
    if not works:
        raise RuntimeError("math-verify does not find 0.5 equal to 1/2")
    return pool
