"""The training runs of a comparison; the trainer is a script."""

import argparse
import json
from pathlib import Path

import common.runs
import common.synthetic_reward
import comparison.logs
import comparison.plots
import comparison.report
import comparison.statistics
import comparison.training
import pandas as pd
import pytest
from comparison.tasks import TASKS
from rich.console import Console
from rich.progress import Progress


def fake_trainer(folder: Path, script: str) -> Path:
    path = folder / "train_scripts/countdown/train.sh"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    return folder


def test_a_run_ends_after_its_seconds_and_the_evaluation_that_follows(tmp_path, monkeypatch):
    script = (
        "[ $REWARD_TASK = route ] || exit 3\ntrap 'echo stopped >$3/stopped; exit 0' TERM\nfor i in 1 2 3 4 5; do\n"
    )
    script += "echo \"Global step $i: {'timing/step_total': 10.5, 'x': 1}\"\ndone\necho ' Evaluation completed in'\n"
    script += "while :; do sleep 0.05; done\n"
    monkeypatch.setattr(common.runs, "ROOT", fake_trainer(tmp_path, script))
    with Progress(disable=True) as progress:
        bar = progress.add_task("", total=40)
        comparison.training.train(tmp_path, tmp_path / "out", "cpu-base", [], 40.0, progress, bar, "route")
        assert progress.tasks[0].completed == 40
    assert (tmp_path / "out/stopped").exists()
    assert (tmp_path / "out/train.log").read_text().count("Global step") == 5


def test_a_run_that_dies_is_reported_with_its_log(tmp_path, monkeypatch):
    script = "echo \"Global step 1: {'timing/step_total': 9.0}\"\necho \"Global step 2: {'timing/step_total': 3.0}\"\nexit 7\n"
    monkeypatch.setattr(common.runs, "ROOT", fake_trainer(tmp_path, script))
    with Progress(disable=True) as progress, pytest.raises(ValueError, match="exit code 7 after 3 of 40 s, see .*log"):
        comparison.training.train(
            tmp_path, tmp_path / "out", "cpu-base", [], 40.0, progress, progress.add_task(""), "route"
        )


def test_the_start_is_evaluated_once_a_seed(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    commands = []

    def run(command, **_):
        commands.append(list(command))
        rows = [{"prompt_id": i, "correct": [True, False, True], "tokens": [4, 5, 9]} for i in range(2)]
        (tmp_path / "start.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return argparse.Namespace(returncode=0)

    (tmp_path / "made").touch()
    monkeypatch.setattr(common.runs.subprocess, "run", run)
    for _ in range(2):
        comparison.training.make_task(tmp_path, 5, Console(quiet=True), TASKS["route"])
    assert len(commands) == 1
    start = pd.read_csv(tmp_path / "data/start.csv").to_dict("records")
    assert start == [{"step": 0, "seconds": 0.0, "samples": 3, "right": "2 2", "tokens": 6.0}]
    words = list(map(str, commands[0]))
    assert words[words.index("--max_new_tokens") + 1] == "584" and words[words.index("--max_model_len") + 1] == "592"
    assert words[words.index("--grader") + 1].endswith("train_scripts/route/reward.py")
