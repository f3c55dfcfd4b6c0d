"""The command compare.py; the runs themselves are replaced."""

import argparse
import json
import shutil
import sys

import compare
import pandas as pd
import pytest
from comparison_runs import CONTROL, HELDOUT, learning, scalars, write_run
from lib.runs import set_done


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    trained, batches = [], []

    def train_in_turns(task, runs, on_seconds, name):
        assert name == "route"
        if len(trained) >= 3:
            raise KeyboardInterrupt
        batches.append(len(runs))
        for run in runs:
            trained.append(run.folder)
            shutil.rmtree(run.folder, ignore_errors=True)
            samples = [("a", 1.0, 10, 101.0)] * 4 + [(prompt, 1.0, 5, 110.0) for prompt in HELDOUT for _ in range(8)]
            write_run(run.folder, samples, [(108.5, scalars(4.0, 4.0))], {1: 111.0})
            on_seconds(run.policy, run.seconds)
            set_done(run.folder, run.made_with, [run.policy for run in runs])

    def make_task(folder, seed, console, kind):
        assert kind.name == "route"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in HELDOUT)
        (folder / "data/evaluated.jsonl").write_text(text)
        (folder / "data/start.csv").write_text("step,seconds,samples,right\n0,0.0,8,1 2\n")

    monkeypatch.setattr(compare, "train_in_turns", train_in_turns)
    monkeypatch.setattr(compare, "make_task", make_task)
    arguments = argparse.Namespace(
        task="route",
        policies=["unpatched:8", "sagc"],
        algorithms=["grpo"],
        seeds=[0, 1],
        output=tmp_path,
        seconds=10.0,
        micro_batch_size=16,
        eval_steps=2,
        num_engines=3,
        max_samples=320,
        shape="gpu",
        at_once=1,
    )
    with pytest.raises(KeyboardInterrupt):
        compare.run(arguments, CONTROL)
    before = list(trained)
    assert "3 of 4 runs; 0 min left" in " ".join(capsys.readouterr().err.split())  # without a terminal, too
    trained.clear()
    steps, evaluations = compare.run(arguments, CONTROL)
    assert "seed 1: unpatched:8 trained, 1 of 1 runs" in " ".join(capsys.readouterr().err.split())
    made_with = json.loads((tmp_path / "seed-0/grpo/sagc/done.json").read_text())["made_with"]
    assert "--ds.packing_samples" in made_with["flags"] and made_with["flags"][-6:] == [
        "--eval.steps",
        "2",
        "--data.max_samples",
        "320",
        "--vllm.num_engines",
        "3",
    ]
    assert len(before) == 3 and len(trained) == 1 and trained[0] not in before
    assert [path.name for path in before] == ["unpatched-8", "sagc", "sagc"]  # arms take turns at going first
    assert len(steps) == 4 and steps["seed"].tolist() == [0, 0, 1, 1]
    assert steps["turns"].tolist() == ["unpatched:8", "sagc", "sagc", "unpatched:8"]
    assert evaluations["step"].tolist() == [0, 1] * 4 and evaluations["right"].tolist()[::2] == ["1 2"] * 4
    assert batches == [1] * 4
    arguments.seconds = 11.0
    with pytest.raises(
        ValueError, match="unpatched-8 is finished, made with another or an unknown seconds: take another --output"
    ):
        compare.run(arguments, CONTROL)
    (tmp_path / "task-0/model").mkdir()
    arguments.seconds = 10.0
    (tmp_path / "task-0/model/model.safetensors").write_text("weights")
    with pytest.raises(ValueError, match="made with another or an unknown model:"):
        compare.run(arguments, CONTROL)
    assert len(trained) == 1  # and nothing is deleted
    trained.clear()
    batches.clear()
    arguments.at_once, arguments.output = 2, tmp_path / "other"
    steps, _ = compare.run(arguments, CONTROL)
    assert batches == [2, 2] and steps["turns"].tolist()[:2] == ["unpatched:8 sagc"] * 2


def test_a_comparison_in_the_shape_of_a_gpu_says_so(monkeypatch, tmp_path):
    run = [learning("unpatched:8", 64.0), learning("fixed:8", 48.0)]
    monkeypatch.setattr(compare, "run", lambda arguments, control: tuple(map(pd.concat, zip(*run))))
    monkeypatch.setattr(sys, "argv", ["compare.py", "--shape", "gpu", "--output", str(tmp_path)])
    compare.main()
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["shape"] == "gpu" and settings["micro_batch_size"] == 16 and settings["max_samples"] is None
    assert "The shape of a GPU run: packs of at most 1024 tokens" in (tmp_path / "REPORT.md").read_text()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--micro_batch_size", "0"], "--micro_batch_size 0 must be at least 1"),
        (["--eval_steps", "0"], "--eval_steps 0 must be at least 1"),
        (["--num_engines", "0"], "--num_engines 0 must be at least 1"),
        (["--max_samples", "0"], "--max_samples 0 must be at least 1"),
        (["--at_once", "0"], "--at_once 0 must be at least 1"),
        (["--seconds", "0"], "--seconds 0.0 must be above 0"),
        (["--target", "75"], "--target 75.0 is a mean reward"),
        (["--policies", "sagc", "fixed:8", "sagc"], "--policies names sagc twice"),
    ],
)
def test_bad_arguments_are_named(words, message, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["compare.py", *words, "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match=message):
        compare.main()


def test_a_file_at_the_default_output_is_named(monkeypatch, tmp_path, capsys):
    (tmp_path / "build").touch()
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", "--quick"])
    with pytest.raises(SystemExit):
        compare.main()
    assert f"argument --output: {tmp_path}/build is not a folder: give one" in capsys.readouterr().err


@pytest.mark.parametrize("room, at_once", [(5, 5), (0, 1)])
def test_as_many_runs_take_turns_as_memory_holds(monkeypatch, room, at_once):
    monkeypatch.setattr(compare, "room_for_runs", lambda num_engines: room * (num_engines == 2))
    monkeypatch.setattr(sys, "argv", ["compare.py", "--num_engines", "2"])
    assert compare.parse_arguments().at_once == at_once
