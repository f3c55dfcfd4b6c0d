"""The report of one run, whoever logged it."""

import json
import sys

import pytest
import report
from comparison_runs import write_run

SECONDS = {"timing/generation": 4.0, "timing/make_experience": 1.0, "timing/ppo_train": 2.0, "timing/broadcast": 0.5}


@pytest.fixture
def command(monkeypatch, tmp_path):
    """command(*words) -> report.json."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["report.py", *map(str, words), "--output", str(tmp_path / "out")])
        report.main()
        return json.loads((tmp_path / "out/report.json").read_text())

    return run


def test_a_run_without_this_package(command, tmp_path, capsys):
    write_run(tmp_path / "run", [], [(10.0 * step, {**SECONDS, "reward": step / 30}) for step in range(30)])
    figures = command(tmp_path / "run")
    assert figures["steps"] == 30 and figures["seconds_per_step"] == 7.5 and figures["straggler_rate"] is None
    assert figures["train_reward_last"] == pytest.approx(24.5 / 30) and "heldout_reward_before" not in figures
    assert "group size" not in capsys.readouterr().out and (tmp_path / "out/report.html").stat().st_size > 10_000


def test_its_limit_is_in_what_the_run_kept(command, tmp_path, capsys):
    more = {"sagc/group_size": 8.0, "sagc/straggler_rate": 0.25, "sagc/virtual_queue": 0.1, "rollout/reward_mean": 0.5}
    write_run(tmp_path / "run", [], [(10.0 * step, {**SECONDS, **more}) for step in range(30)])
    (tmp_path / "run/trained").mkdir()
    flags = {"rollout.sagc.max_straggler_rate": 0.3}
    (tmp_path / "run/trained/run.jsonl").write_text(
        json.dumps({"flags": flags, "versions": {}, "command": "x"}) + "\n"
    )
    models = [{"figures": {"reward": {"value": value}, "solved by most": {"value": value}}} for value in (0.25, 0.75)]
    (tmp_path / "heldout.json").write_text(json.dumps({"problems": 8, "samples": 4, "models": models}))
    figures = command(tmp_path / "run", "--heldout", tmp_path / "heldout.json")
    assert (
        figures["max_straggler_rate"] == 0.3 and figures["straggler_rate"] == 0.25 and figures["group_size_mean"] == 8
    )
    assert (figures["heldout_reward_before"], figures["heldout_solved_after"]) == (0.25, 0.75)
    assert "its limit" in capsys.readouterr().out and (tmp_path / "out/control.svg").exists()


def test_what_is_no_run_is_a_line(command, tmp_path):
    with pytest.raises(SystemExit, match="eval/report.py: there is no .*none"):
        command(tmp_path / "none")
