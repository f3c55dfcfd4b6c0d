"""Each study of runs on the CPU stack once in small, with other runs in their place."""

import argparse
import json
from importlib import import_module

import lib.runs
import pandas as pd
import pytest
from comparison_runs import scalars, write_run
from cpu_stack import ROOT
from lib.comparison.arms import shape_flags
from lib.comparison.step_arms import ARMS, SWITCHES, WARM_UP

# --- on the CPU stack, whose runs are replaced ------------------------------------------------------------------------


PAUSES = {"unpatched": 0.25, "all on": 0.125, "all off": 0.0}  # in the first step that counts
FINER = {"step_seconds/idle_tail": 0.5, "step_seconds/optimizer": 0.25}
WORDS = ["--steps", 1, "--algorithms", "grpo", "--sizes", 8, "--arms", *PAUSES]


@pytest.fixture
def step_time(study, small, task, tmp_path):
    """step_time(*words) -> the repetitions that were started; `fail_at` ends the one of this number."""

    def take_turns(commands, boundary, warm_up, on_turn):
        if len(started) == run.fail_at:
            raise KeyboardInterrupt
        started.append([log.parent.name for _, log in commands.values()])
        pauses = {}
        for arm, (words, log) in commands.items():
            seconds, more = (4.5, {}) if words[2] == "cpu-base" else (4.25, FINER)
            times = [100 + 10 * seconds * n for n in range(1, WARM_UP + 1)]  # the warm-up's steps are long
            times += [times[-1] + seconds, times[-1] + 2 * seconds]
            write_run(log.parent, [], [(at, scalars(0.5, 128.0, **more)) for at in times])
            pauses[arm] = [[times[WARM_UP - 1], times[WARM_UP - 1] + PAUSES[arm]]]
            on_turn(arm, "")
        return pauses

    started = []
    small("step_time.run", take_turns=take_turns, room_for_runs=lambda: 5, RUNS=tmp_path / "runs")

    def run(*words):
        started.clear()
        study("step_time", *["--task", task][: 2 * ("--task" not in words)], *words)
        return list(started)

    run.fail_at, run.started = None, started
    return run


def test_a_measurement_of_steps_goes_on_where_it_was_stopped(step_time, tmp_path, capsys):
    step_time.fail_at = 1
    with pytest.raises(KeyboardInterrupt):
        step_time(*WORDS)
    runs, step_time.fail_at = list(step_time.started), None
    runs += step_time(*WORDS)
    arms = ["unpatched", "all-on", "all-off"]
    assert runs == [arms[turn:] + arms[:turn] for turn in range(3)] and step_time(*WORDS) == []
    out = tmp_path / "out"
    steps, found = pd.read_csv(out / "steps.csv"), json.loads((out / "step_time.json").read_text())
    # Seconds are those of the clock without pauses; the warm-up is left out; unpatched runs log no finer parts.
    seconds = {arm: of.tolist() for arm, of in steps.groupby("arm")["seconds"].unique().items()}
    assert seconds == {"unpatched": [4.25], "all on": [4.125], "all off": [4.25]}
    assert steps.query("arm == 'unpatched'")[["idle_tail", "optimizer"]].isna().all(axis=None)
    assert steps.query("arm == 'all on'")[["generation", "idle_tail"]].iloc[0].tolist() == [0.375, 0.375]
    assert [row["arm"] for row in found["arms"]] == list(PAUSES)
    assert found["arms"][1]["speedup"]["value"] == pytest.approx(4.25 / 4.125)
    assert (out / "REPORT.md").read_text() in capsys.readouterr().out
    before = (out / "REPORT.md").read_text()
    assert step_time("--report") == [] and (out / "REPORT.md").read_text() == before
    (out / "steps.csv").unlink()
    with pytest.raises(SystemExit, match="eval/studies step_time: --report needs .*steps.csv, which a run without"):
        step_time("--report")


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repetitions", 0], "--repetitions 0 must be at least 1"),
        (
            ["--steps", 100, "--sizes", 4, "--algorithms", "grpo"],
            "--steps 100 with --sizes 4 needs 3360 prompts in grpo",
        ),
        (["--repetitions", 1], "6 --arms need 5 GB of memory each at once, which 5 have: name fewer"),
        (["--task", "/nowhere"], "--task /nowhere holds no model: run train_scripts/quickstart.sh"),
    ],
)
def test_what_cannot_be_measured_is_named(step_time, words, message):
    with pytest.raises(SystemExit, match=f"eval/studies step_time: {message}"):
        step_time(*words)


def test_an_arm_differs_from_unpatched_in_what_it_is_named_for(task):
    module = import_module("studies.step_time.run")
    assert {f"without {name}" for name in SWITCHES} == {*ARMS} - {"unpatched", "all on", "all off"}
    flags = {}
    for arm in ARMS:
        tree, words = module.run_flags(arm, "grpo", 8, 2, argparse.Namespace(task=task, steps=20, shape="padded"))
        assert tree == ("cpu-base" if arm == "unpatched" else "cpu-patched")
        flags[arm] = {
            word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")
        }  # later ones win
        assert flags[arm]["--actor.adam.lr"] == "0" and flags[arm]["--data.max_samples"] == str((WARM_UP + 20) * 16)
    for name, (on, off) in SWITCHES.items():
        assert flags["all on"][f"--train.{name}"] == on and flags[f"without {name}"][f"--train.{name}"] == off
    more = flags["all on"].items() - flags["unpatched"].items()
    assert all(flag.startswith(("--rollout.sagc", *(f"--train.{name}" for name in SWITCHES))) for flag, _ in more)
    (task / "data/task.txt").write_text("route\n")
    _, words = module.run_flags("all on", "dapo", 8, 0, argparse.Namespace(task=task, steps=20, shape="padded"))
    assert "584" in words and str(ROOT / "train_scripts/route/reward.py") in words  # its own lengths and reward


def test_arms_have_the_shape_that_is_asked_for(step_time, task, tmp_path):
    module = import_module("studies.step_time.run")
    for arm in ("unpatched", "all on"):
        flags = {f"--{name}" for name in shape_flags("gpu", patched=arm != "unpatched")}
        padded, packed = (
            {*module.run_flags(arm, "dapo", 8, 0, argparse.Namespace(task=task, steps=20, shape=shape))[1]}
            for shape in ("padded", "gpu")
        )
        assert flags <= packed and not flags & padded
    step_time(*WORDS, "--shape", "gpu")
    found = json.loads((tmp_path / "out/step_time.json").read_text())["settings"]
    assert found["shape"] == "gpu" and "packs of at most 1024 tokens" in (tmp_path / "out/REPORT.md").read_text()


def test_a_run_that_fails_is_named_with_its_log(study, small, task, tmp_path, monkeypatch):
    script = tmp_path / "train_scripts/countdown/train.sh"
    script.parent.mkdir(parents=True)
    script.write_text("echo no such flag; exit 2\n")
    monkeypatch.setattr(lib.runs, "ROOT", tmp_path)
    small("step_time.run", RUNS=tmp_path / "runs", room_for_runs=lambda: 5)
    with pytest.raises(SystemExit, match="eval/studies step_time: a run failed with exit code 2, see .*train.log"):
        study("step_time", "--task", task, "--arms", "all on")
    assert next(tmp_path.rglob("train.log")).read_text() == "no such flag\n"
