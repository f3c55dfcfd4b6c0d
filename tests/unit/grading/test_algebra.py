import concurrent.futures
import os
import subprocess
import sys
import time

import psutil
import pytest

from openrlhf_sagc.grading import algebra

HANGS = "9^{9^{9^{9}}}"


@pytest.fixture
def new_pool(monkeypatch):
    """The next comparison starts two processes, which end with the test."""
    monkeypatch.setattr(algebra, "PROCESSES", 2)
    algebra._started_pool.cache_clear()
    algebra.equal_by_algebra.cache_clear()
    yield
    if algebra._started_pool.cache_info().currsize:
        pool = algebra._started_pool()
        pool.stop()
        pool.join()
    algebra._started_pool.cache_clear()
    algebra.equal_by_algebra.cache_clear()


def test_threads_get_verdicts_and_a_comparison_that_hangs_is_stopped(new_pool, monkeypatch):
    monkeypatch.setattr(algebra, "COMPARISON_SECONDS", 4)
    pairs = {("1", r"\frac{2}{2}"): True, ("1", "2-2"): False, ("1", HANGS): None, ("x+1", "1+x"): True}
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        verdicts = threads.map(lambda pair: algebra.equal_by_algebra(*pair), list(pairs) * 2)
        assert list(verdicts) == list(pairs.values()) * 2
    started = time.monotonic()
    assert algebra.equal_by_algebra("1", HANGS) is None  # remembered
    assert time.monotonic() - started < 1
    assert algebra.equal_by_algebra("3", "1+2")  # another process has taken the place of the one that was stopped


def test_a_wait_for_a_process_ends(new_pool, monkeypatch):
    monkeypatch.setattr(algebra, "PROCESSES", 1)
    monkeypatch.setattr(algebra, "WAITING_SECONDS", 2)
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        algebra._pool()
        started = time.monotonic()
        verdicts = threads.map(lambda i: algebra.equal_by_algebra(str(i), HANGS), range(8))
        assert list(verdicts) == [None] * 8 and time.monotonic() - started < 4


def test_processes_that_cannot_work_are_no_wrong_answers(new_pool, monkeypatch):
    monkeypatch.setattr(algebra, "prepare_worker", os.abort)  # as with a library that cannot be loaded
    monkeypatch.setattr(algebra, "START_SECONDS", 20)
    with pytest.raises(RuntimeError, match="math-verify cannot be run in a process of its own"):
        algebra.equal_by_algebra("1", r"\frac{2}{2}")


def test_processes_end_with_an_engine_that_is_killed():
    code = f"""if True:
        import psutil, time
        from openrlhf_sagc.grading import algebra
        algebra.COMPARISON_SECONDS = 100
        assert algebra.equal_by_algebra("1", "2-1")
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        algebra.COMPARISON_SECONDS = 2
        algebra.equal_by_algebra("1", {HANGS!r})
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as engine:
        children = [psutil.Process(int(pid)) for pid in engine.stdout.readline().split()]
        assert len(children) >= algebra.PROCESSES
        engine.kill()
    gone, alive = psutil.wait_procs(children, timeout=60)
    for child in alive:
        child.kill()
    assert not alive
