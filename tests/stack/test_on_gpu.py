"""The checks of a GPU node that have the CPU stack's form, on the real stack: those of eval/on_gpu.py's dry run."""

import json
import sys

import pytest
from cpu_stack import ROOT
from real_runs import PORT_TAKEN, why_it_ended

pytestmark = pytest.mark.stack
IN_TURNS = pytest.mark.in_turns


@pytest.fixture
def report(task, run_command, monkeypatch, tmp_path):
    """report(*names) -> the command's report of a dry run of these checks, by their names."""
    monkeypatch.setenv("TASK", str(task))

    def run(*names):
        for _ in range(3):
            command = [sys.executable, ROOT / "eval/on_gpu.py", "--dry-run", "--output", tmp_path / "out"]
            code, output = run_command([*command, "--checks", *names])
            logs = "".join(log.read_text(errors="replace") for log in (tmp_path / "out").glob("*.log"))
            if code == 0 or not PORT_TAKEN.search(logs):
                break
        assert code == 0, output + why_it_ended(logs)
        text = (tmp_path / "out/report.json").read_text()
        assert str(tmp_path) not in text and str(ROOT) not in text
        return {check["check"]: check for check in json.loads(text)["checks"]}

    return run


def test_a_recipe_trains_resumes_and_ends_with_its_engine(report):
    checks = report("resume_and_kill")
    assert [check["status"] for check in checks.values()] == ["skipped", "pass", "pass", "pass"]
    assert "stands in" in checks["attention"]["reason"]
    assert checks["recipe"]["details"]["steps"] >= 2 and checks["recipe"]["number"] < 0.1
    assert checks["resume_and_kill"]["bound"] == "<= 150"


def test_an_engine_that_is_stopped_again_and_again_has_nothing_left(report):
    checks = report("stops", "compiler", "adam")
    assert {name for name, check in checks.items() if check["status"] == "pass"} == {"stops", "compiler", "adam"}
    assert checks["stops"]["reason"] == "64 rollouts in 4 stops"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=IN_TURNS) for name in ("two_ranks", "asynchronous", "one_call")]
)
def test_a_check_of_two_gpus_has_flags_that_train(name, task, run_command, monkeypatch, tmp_path):
    """In gloo, and in workers that vLLM starts without Ray. The command skips it on a CPU, as this is not what it is for."""
    monkeypatch.setenv("TASK", str(task))
    child = [
        "bash",
        ROOT / "train_scripts/on_cpu.sh",
        "cpu-patched",
        "python",
        ROOT / "eval/on_gpu.py",
        "--child",
        name,
    ]
    for _ in range(3):
        code, output = run_command([*child, "--dry-run", "--output", tmp_path / "out"])
        log = (tmp_path / f"out/{name}.log").read_text(errors="replace")
        if not PORT_TAKEN.search(log):
            break
    found = json.loads((tmp_path / f"out/{name}.json").read_text())
    assert code == 0 and found["status"] == "pass", f"{found} {output} {why_it_ended(log)}"
