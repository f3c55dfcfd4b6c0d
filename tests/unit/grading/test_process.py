"""The start of the process and of its children; what these may do is in test_walls.py, whose turn it is in test_algebra.py."""

import pytest
from compared_by import comparisons, until

from openrlhf_sagc.grading import algebra

RIGHT = "done = True"


def test_where_no_process_is_left_they_wait():
    lines = (
        "fork, errors = os.fork, [OSError()] * 3",
        "def fails():\n    if errors: raise errors.pop()\n    return fork()",
    )
    with comparisons(*lines, "os.fork = fails") as running:
        assert running.ask("", RIGHT).result(100) is True


BROKEN = {
    "exit code 1 RuntimeError: .*: apt-get install libseccomp2 && pip install pyseccomp": "sys.modules['pyseccomp'] = None",
    "no child compares under seccomp": "process.seccomp_filter = lambda: type('Rules', (), {'load': lambda self: None})()",
    "exit code -6": "os.abort()",
    "exit code -9": "time.sleep(1000)",
}


@pytest.mark.parametrize("message", BROKEN)
def test_processes_that_cannot_work_are_no_wrong_answers(message, monkeypatch):
    monkeypatch.setattr(algebra, "START_SECONDS", 1 if "-9" in message else 100)
    with comparisons(BROKEN[message]) as running:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="math-verify cannot be run in a process of its own: .*" + message):
                running.ask("1", RIGHT).result(100)


def test_the_process_has_no_environment_and_may_print_and_die_while_it_starts(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with comparisons("print('hello', flush=True)", "time.sleep(1)") as running:
        verdict = running.ask("", "import os; done = os.environ.keys() <= {'LC_CTYPE'}")  # which Python sets itself
        until(lambda: running._process).kill()
        assert verdict.result(100) is True
        with open(f"/proc/{running._process.pid}/environ", "rb") as file:
            assert file.read() == b""
