"""The table of simulated faster steps."""

import argparse
import sys

import faster_step
import pandas as pd
import pytest
from common.paths import ENGINES

from openrlhf_sagc.arguments import add_arguments

ARGUMENTS = argparse.Namespace(micro_batch_size=4)


def test_parts_are_flags_of_training_or_additions_of_a_policy():
    training = argparse.ArgumentParser()
    add_arguments(training)
    flags = {action.dest for action in training._actions}
    assert {f"train.{part}" for part in faster_step.PARTS[:3]} <= flags and faster_step.PARTS[3:] == (
        "lengths",
        "tail",
    )
    assert faster_step.ARMS["… + lengths"] == faster_step.PARTS[:4] and faster_step.ARMS["all"] == faster_step.PARTS
    for part in faster_step.PARTS[:-1]:
        assert {*faster_step.ARMS[f"all without {part}"]} == {*faster_step.PARTS} - {part}
    assert len(set(faster_step.ARMS.values())) == len(faster_step.ARMS) - 2  # twice in turns


@pytest.mark.parametrize(
    "arm, packed, expected",
    [
        ("nothing", False, (True, False, False)),
        ("old_log_probs", False, (False, False, False)),
        ("… + micro_batches", False, (False, True, False)),
        ("… + stream", False, (False, True, True)),
        ("all without old_log_probs", False, (True, True, False)),
        ("all without micro_batches", False, (False, False, True)),
        ("all", True, (False, False, False)),
    ],
)
def test_an_arm_leaves_out_what_training_would(arm, packed, expected):
    work = faster_step.work_of(faster_step.ARMS[arm], ARGUMENTS, packed=packed, actor_gpus=8)
    assert (work.has_forward, work.by_length, work.streams) == expected


def test_arms_in_turns_have_all_gpus_and_no_stream():
    work = faster_step.work_of(faster_step.ARMS["all"], ARGUMENTS, packed=False, actor_gpus=0)
    assert not work.streams and work.by_length


def test_packed_samples_have_no_arm_twice():
    arms = faster_step.arms_of(packed=True)
    assert {"nothing", "old_log_probs", "all", "tail alone"} <= {*arms} and "… + stream" not in arms
    assert faster_step.arms_of(packed=False) == [*faster_step.ARMS]


def test_ratios_are_of_the_same_seed():
    rows = [("nothing", 0, 4.0), ("nothing", 1, 8.0), ("all", 0, 2.0), ("all", 1, 2.0)]
    runs = pd.DataFrame(rows, columns=["arm", "seed", "seconds"]).assign(gpus=16, prompts=128, samples="padded")
    nothing, everything = faster_step.summary(runs).to_dict("records")
    assert (nothing["speedup"], nothing["low"], nothing["high"]) == (1.0, 1.0, 1.0)
    assert (everything["seconds"], everything["speedup"], everything["low"], everything["high"]) == (
        2.0,
        3.0,
        2.0,
        4.0,
    )
    assert "| all | 2.0 | 3.00 [2.00, 4.00] |" in faster_step.report(faster_step.summary(runs))


def test_the_command_writes_runs_table_and_plot(monkeypatch, tmp_path, capsys):
    flags = "--gpus 4 8 --batch_size 8 --n_samples_per_prompt 4 --micro_batch_size 2 --steps 3 --seeds 0 1"
    monkeypatch.setattr(sys, "argv", ["faster_step.py", *flags.split(), "--output", str(tmp_path)])
    faster_step.main()
    runs = pd.read_csv(tmp_path / "runs.csv")
    arms = len(faster_step.arms_of(packed=False)) + len(faster_step.arms_of(packed=True))
    assert len(runs) == arms * 2 * 2 and runs["seconds"].gt(0).all()
    parts = runs[[f"{part}_seconds" for part in faster_step.SECONDS]].sum(axis=1)
    assert parts.tolist() == pytest.approx(runs["seconds"].tolist(), rel=1e-3)
    by_arm = runs[(runs["gpus"] == 8) & (runs["samples"] == "padded") & (runs["seed"] == 0)].set_index("arm")
    assert by_arm["seconds"]["… + micro_batches"] < by_arm["seconds"]["old_log_probs"] < by_arm["seconds"]["nothing"]
    assert by_arm["sample_share"]["… + stream"] > 0 == by_arm["sample_share"]["… + micro_batches"]
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "faster_step.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "words, message",
    [
        ("--steps 0", "--steps must be at least 1, got 0"),
        ("--actor_share 0.01 --gpus 16", "--actor_share 0.01 of --gpus 16 leaves actors or engines none"),
        ("--lengths normal", "normal does not have the form"),
        (
            "--gpus 64 --batch_size 2 --n_samples_per_prompt 8",
            "--micro_batches shuffled: a step of 16 samples is too small for 32 GPUs",
        ),
    ],
)
def test_bad_arguments_are_named(monkeypatch, tmp_path, words, message):
    flags = [*words.split(), "--engine", str(ENGINES / "h100-7b.json"), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["faster_step.py", *flags])
    with pytest.raises(SystemExit, match=f"eval/faster_step.py: {message}"):
        faster_step.main()
