"""Whose turn it is; what children and their deaths mean is in test_algebra.py, what they may do in test_sandbox.py."""

import os
import time

import pytest

from openrlhf_sagc.grading import comparing_process as process


@pytest.fixture
def comparisons(monkeypatch):
    """Comparisons of three processes, whose children only sleep; `said` are their lines."""
    monkeypatch.setattr(process.Comparisons, "_compare_and_exit", lambda *_: time.sleep(1000))
    said = []
    running = process.Comparisons(lambda gold, answer: True, None, 3, said.append)
    running.said = said
    yield running
    for child in [*running._busy.values(), *running._ready]:
        running._bury(child)


def at_work(comparisons):
    return [(child.comparison.id, child.is_second) for child in comparisons._busy.values()]


def test_first_tries_go_first_and_second_ones_leave_them_a_process(comparisons, monkeypatch):
    for number in range(4):
        comparisons.add(process.Comparison(number, "1", "2"))
    comparisons.start_what_may_run()
    assert at_work(comparisons) == [(0, False), (1, False), (2, False)]
    now = time.monotonic()
    monkeypatch.setattr(process.time, "monotonic", lambda: now + process.FIRST_SECONDS)
    comparisons.end_late_ones()
    comparisons.start_what_may_run()
    assert at_work(comparisons) == [(3, False), (0, True), (1, True)]
    monkeypatch.setattr(process.time, "monotonic", lambda: now + 3 * process.FIRST_SECONDS)
    comparisons.end_late_ones()
    comparisons.start_what_may_run()
    assert at_work(comparisons) == [(0, True), (1, True)]  # the third stays free
    comparisons.add(process.Comparison(4, "1", "2"))
    comparisons.start_what_may_run()
    assert at_work(comparisons)[-1] == (4, False) and not comparisons.said


def test_a_second_try_that_is_late_is_no_verdict(comparisons, monkeypatch):
    comparisons.add(process.Comparison(0, "1", "2"))
    now = time.monotonic()
    for seconds in (0, process.FIRST_SECONDS, 2 * process.FIRST_SECONDS + process.LATEST_SECONDS):
        monkeypatch.setattr(process.time, "monotonic", lambda: now + seconds)
        comparisons.end_late_ones()
        comparisons.start_what_may_run()
    assert comparisons.said == [{"id": 0, "verdict": "late"}] and comparisons.idle


def test_no_child_is_left_over(comparisons, monkeypatch):
    open_before = set(os.listdir("/proc/self/fd"))
    children = []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: children.append(fork()) or children[-1])
    for number in range(3):
        comparisons.add(process.Comparison(number, "1", "2"))
    comparisons.start_what_may_run()
    for child in list(comparisons._busy.values()):
        comparisons._bury(child)
    comparisons.renew()
    assert set(os.listdir("/proc/self/fd")) <= open_before  # threads of other tests may have closed some of theirs
    assert len(children) == 4  # three at work and one ready; other tests' children of this process don't count
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
