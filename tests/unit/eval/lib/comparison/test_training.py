"""The training runs of a comparison; the trainer is a script."""

import argparse
import fcntl
import json
from pathlib import Path

import lib.comparison.training
import lib.runs
import lib.synthetic_reward
import pandas as pd
import pytest
from lib.comparison.tasks import TASKS
from lib.runs import is_done
from rich.console import Console


def fake_trainer(folder: Path, script: str) -> Path:
    path = folder / "train_scripts/countdown/train.sh"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    return folder


def steps(*seconds):
    """A script's lines of steps that took so long, and of the evaluation after them, which waits for the file `go`."""
    timings = [
        f"{{'timing/generation': {took - 1}, 'timing/other': 9.0, 'timing/ppo_train': 1e0}}" for took in seconds
    ]
    prefix = "INFO 11-27 08:59:15 ppo_trainer.py:555]"
    lines = [f'echo "{prefix} Global step {step}: {of_step}"\n' for step, of_step in enumerate(timings, 1)]
    wait = "until [ -e $3/go ]; do sleep 0.01; done; rm $3/go\n"
    return "".join(lines) + f"echo Evaluation start time: 1\n{wait}echo ' Evaluation completed in'\n"


def runs_of(folder, *policies):
    return [lib.comparison.training.PolicyRun(policy, folder / policy, policy, [], 40.0) for policy in policies]


def test_runs_end_after_their_seconds_and_the_evaluation_that_follows(tmp_path, monkeypatch):
    script = "[ $REWARD_TASK = route ] || exit 3\ntrap 'echo stopped >$3/stopped; exit 0' TERM\n"
    script += steps(99.0, 10.5, 10.5) + steps(10.5, 10.5) + "while :; do sleep 0.05; done\n"
    monkeypatch.setattr(lib.runs, "ROOT", fake_trainer(tmp_path, script))
    runs, seen = runs_of(tmp_path, "a", "b"), []

    def on_seconds(policy, seconds):
        seen.append((policy, seconds, [run.policy for run in runs if is_done(run.folder, run.made_with)]))
        (tmp_path / policy / "go").touch()

    lib.comparison.training.train_in_turns(tmp_path, runs, on_seconds, "route")
    # The first step does not count.
    assert seen == [("a", 21.0, []), ("b", 21.0, []), ("a", 40.0, []), ("b", 40.0, ["a"])]
    for run in runs:
        assert (run.folder / "stopped").exists() and is_done(run.folder, run.made_with)
        log = (run.folder / "train.log").read_text()
        assert log.count("Global step") == 5 and log.count("Evaluation completed") == 2


@pytest.mark.parametrize(
    "end, message", [("exit 7", "exit code 7, see .*log"), ("exit 0", "ended after 10 of 40 s, see .*log")]
)
def test_a_run_that_ends_early_is_reported_with_its_log(tmp_path, monkeypatch, end, message):
    monkeypatch.setattr(lib.runs, "ROOT", fake_trainer(tmp_path, steps(99.0, 10.0) + end + "\n"))
    (run,) = runs = runs_of(tmp_path, "a")
    with pytest.raises(ValueError, match=message):
        lib.comparison.training.train_in_turns(tmp_path, runs, lambda *_: (run.folder / "go").touch(), "route")
    assert not is_done(run.folder, run.made_with)


def test_a_run_of_an_earlier_start_that_goes_on_is_named_and_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(lib.runs, "ROOT", fake_trainer(tmp_path, "exit 7\n"))
    (run,) = runs = runs_of(tmp_path, "a")
    run.folder.mkdir()
    with (run.folder / "train.log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(
            ValueError,
            match="a/train.log belongs to a run that has not ended$",
        ):
            lib.comparison.training.train_in_turns(tmp_path, runs, lambda *_: None, "route")
    assert (run.folder / "train.log").exists()


def test_a_folder_of_another_task_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "made").touch()
    (tmp_path / "data/task.txt").write_text("countdown\n")
    with pytest.raises(ValueError, match="--task route: .* holds the task countdown: take another --output"):
        lib.comparison.training.make_task(tmp_path, 0, Console(quiet=True), TASKS["route"])


def test_the_start_is_evaluated_once_a_seed(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    commands = []

    def run(command, **_):
        commands.append(list(command))
        rows = [{"prompt_id": i, "correct": [True, False, True], "tokens": [4, 5, 9]} for i in range(2)]
        (tmp_path / "start.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return argparse.Namespace(returncode=0)

    (tmp_path / "made").touch()
    (tmp_path / "data/task.txt").write_text("route\n")
    monkeypatch.setattr(lib.runs.subprocess, "run", run)
    for _ in range(2):
        lib.comparison.training.make_task(tmp_path, 5, Console(quiet=True), TASKS["route"])
    assert len(commands) == 1
    start = pd.read_csv(tmp_path / "data/start.csv").to_dict("records")
    assert start == [{"step": 0, "seconds": 0.0, "samples": 3, "right": "2 2", "tokens": 6.0}]
    words = list(map(str, commands[0]))
    assert words[words.index("--max_new_tokens") + 1] == "584" and words[words.index("--max_model_len") + 1] == "592"
    assert words[words.index("--grader") + 1].endswith("train_scripts/route/reward.py")
