"""Whose turn it is; what children and their deaths mean is in test_algebra.py, what they may do in test_sandbox.py."""

import os
import time
from multiprocessing import Pipe
from signal import SIGALRM

import pytest

from openrlhf_sagc.grading import process


@pytest.fixture
def comparisons(monkeypatch):
    """Comparisons of three processes, whose children only sleep; `said` is the other end of their connection."""
    monkeypatch.setattr(process, "confine", lambda *_: time.sleep(1000))
    said, connection = Pipe()
    running = process.Comparisons(3, None, connection)
    running.said = said
    yield running
    late(running)


def asked(running, requests=""):
    """Who is at work then, with the tries before this one: "a0 b1"."""
    running.waiting[0].extend(request.encode() for request in requests)
    running.start_what_may_run()
    return " ".join(f"{request.decode()}{tries}" for _, tries, request in running.busy.values())


def late(running, requests="abcdefg"):
    """The kernel ends their children."""
    for pipe, (pid, _, request) in list(running.busy.items()):
        if request.decode() in requests:
            os.kill(pid, SIGALRM)
            running.hear(pipe)


def test_fresh_ones_go_first_and_last_tries_leave_them_a_process(comparisons):
    assert asked(comparisons, "abcd") == "a0 b0 c0"
    for requests, then in {"abc": "d0 a1 b1", "da": "b1 e0 c1", "bec": "d1 e1", "de": "a2 b2"}.items():
        assert asked(comparisons, "e" * (requests == "da")) and not late(comparisons, requests)
        assert asked(comparisons) == then
    assert asked(comparisons, "f") == "a2 b2 f0" and not comparisons.said.poll()


def test_a_last_try_that_is_late_is_none_and_no_child_is_left_over(comparisons, monkeypatch):
    open_before, children = set(os.listdir("/proc/self/fd")), []
    monkeypatch.setattr(os, "fork", lambda fork=os.fork: children.append(fork()) or children[-1])
    for tries in range(3):
        assert asked(comparisons, "g" * (not tries)) == f"g{tries}" and not comparisons.said.poll()
        late(comparisons)
    assert asked(comparisons) == "" and comparisons.said.recv_bytes() == b"?g" and len(children) == 3
    assert set(os.listdir("/proc/self/fd")) <= open_before  # threads of other tests may have closed some of theirs
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


@pytest.mark.parametrize("module, name", [(os, "fork"), (process, "Pipe")])
def test_where_no_process_or_descriptor_is_left_they_wait(comparisons, monkeypatch, module, name):
    open_before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(module, name, lambda **_: os.open("/nowhere", 0))  # an OSError
        assert asked(comparisons, "a") == "" and set(os.listdir("/proc/self/fd")) <= open_before
    assert asked(comparisons) == "a0"
