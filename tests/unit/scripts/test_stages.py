"""The stages of tests/run.sh: all run, and the table and the exit code tell what failed."""

import subprocess

import pytest
from cpu_stack import ROOT


@pytest.fixture
def run(tmp_path):
    """run(line...) -> exit code and output of a script of stages."""
    (tmp_path / "build").mkdir()

    def run(*lines):
        script = ["set -euo pipefail", f". {ROOT}/tests/stages.sh", "trap table EXIT", *lines, "all_passed"]
        done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    return run


def rows(output):
    """stage -> passed, failed, skipped."""
    table = output[output.index("stage                        passed failed skipped seconds") + 1 :]
    return {line[:28].strip(): [int(number) for number in line[28:].split()[:3]] for line in table}


def pytest_says(line, code=0, before=""):
    return f'bash -c \'echo "{before}"; echo "{line}"; exit {code}\''


def test_all_stages_run_and_any_failure_is_the_exit_code(run):
    code, output = run("stage first false", "stage second true")
    assert code == 1 and rows(output) == {"first": [0, 1, 0], "second": [1, 0, 0]}
    assert "FAILED first: exit code 1" in output
    assert run("stage first true")[0] == 0


@pytest.mark.parametrize(
    "line, code, counts",
    [
        ("==== 12 passed in 0.21s ====", 0, [12, 0, 0]),
        ("= 1 failed, 4017 passed, 3 skipped, 37 warnings in 252.44s (0:04:12) =", 1, [4017, 1, 3]),
        ("= 2 failed, 5 passed, 4 errors in 2.00s =", 1, [5, 6, 0]),
        ("= 5 passed, 1 error in 2.00s =", 1, [5, 1, 0]),
        ("= 4 skipped in 0.10s =", 0, [0, 0, 4]),
        ("= 5 passed in 2.00s =", 3, [5, 1, 0]),  # it failed after its tests
        ("= no tests ran in 0.01s =", 5, [0, 1, 0]),
        ("INTERNALERROR> KeyError", 3, [0, 1, 0]),
    ],
)
def test_counts_are_those_of_pytests_end(run, line, code, counts):
    found, output = run(f"stage tests {pytest_says(line, code)}")
    assert rows(output) == {"tests": counts} and found == (counts[1] > 0)


def test_what_failed_and_what_was_skipped_stands_above_the_table(run):
    says = "FAILED tests/a.py::b - assert 1\nSKIPPED [1] tests/c.py:1: no GPU"
    _, output = run(f"stage tests {pytest_says('= 1 failed, 1 skipped in 1.00s =', 1, says)}", "stage more true")
    assert output[-5:-3] == ["SKIPPED [1] tests/c.py:1: no GPU", "FAILED tests/a.py::b - assert 1"]


def test_an_interrupted_run_has_the_table_of_what_has_ended(run):
    code, output = run("stage first false", "kill -TERM $$", "stage second true")
    assert code != 0 and rows(output) == {"first": [0, 1, 0]}
