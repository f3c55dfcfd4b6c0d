"""Whose turn it is; what children and their deaths mean is in test_algebra.py, what they may do in test_sandbox.py."""

import os
import time

import pytest

from openrlhf_sagc.grading import process
from openrlhf_sagc.grading.process import TRIES, Comparison


@pytest.fixture
def comparisons(monkeypatch):
    """Comparisons of three processes, whose children only sleep; `said` are their lines."""
    monkeypatch.setattr(process.Comparisons, "_compare_and_exit", lambda *_: time.sleep(1000))
    running = process.Comparisons(lambda gold, answer: True, None, 3, lambda line: running.said.append(line))
    running.said, running.now = [], time.monotonic()
    monkeypatch.setattr(process.time, "monotonic", lambda: running.now)
    yield running
    for comparison in list(running.busy.values()):
        running._bury(comparison)


def later(running, seconds):
    """So much later, late ones end and others start; returns (id, try) of those at work."""
    running.now += seconds
    running.end_late_ones()
    running.start_what_may_run()
    return [(one.id, one.tries) for one in running.busy.values()]


def test_fresh_ones_go_first_and_last_tries_leave_them_a_process(comparisons):
    for number in range(4):
        comparisons.add(Comparison(number, "1", "2"))
    assert later(comparisons, 0) == [(0, 1), (1, 1), (2, 1)]
    assert later(comparisons, 0.9 * TRIES[0]) == [(0, 1), (1, 1), (2, 1)]
    assert later(comparisons, 0.2 * TRIES[0]) == [(3, 1), (0, 2), (1, 2)]
    comparisons.add(Comparison(4, "1", "2"))
    assert later(comparisons, TRIES[0]) == [(0, 2), (1, 2), (4, 1)]
    assert later(comparisons, TRIES[0]) == [(0, 2), (1, 2), (2, 2)]
    assert later(comparisons, TRIES[1]) == [(3, 2), (4, 2), (0, 3)]
    assert later(comparisons, TRIES[1]) == [(0, 3), (1, 3)]  # 2, 3 and 4 wait, and the third process stays free
    comparisons.add(Comparison(5, "1", "2"))
    assert later(comparisons, 0) == [(0, 3), (1, 3), (5, 1)] and not comparisons.said


def test_a_last_try_that_is_late_is_none(comparisons):
    comparisons.add(Comparison(7, "1", "2"))
    assert [later(comparisons, seconds) for seconds in (0, *TRIES[:-1])] == [[(7, number)] for number in (1, 2, 3)]
    assert later(comparisons, 0.9 * TRIES[-1]) == [(7, 3)] and not comparisons.said
    assert later(comparisons, 0.2 * TRIES[-1]) == [] and comparisons.said == [{"id": 7, "verdict": None}]


def test_no_child_is_left_over(comparisons, monkeypatch):
    open_before, children = set(os.listdir("/proc/self/fd")), []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: children.append(fork()) or children[-1])
    comparisons.add(Comparison(0, "1", "2"))
    comparisons.add(Comparison(1, "1", "2"))
    assert [len(later(comparisons, seconds)) for seconds in (0, *TRIES)] == [2, 2, 2, 0] and len(children) == 6
    assert set(os.listdir("/proc/self/fd")) <= open_before  # threads of other tests may have closed some of theirs
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
