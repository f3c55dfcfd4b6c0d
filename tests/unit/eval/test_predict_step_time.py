"""Predictions of step_time.py's arms, on made-up measurements."""

import argparse
import json
import sys
from dataclasses import replace

import pandas as pd
import predict_step_time
import pytest
from common.paths import ENGINES
from comparison.step_arms import ARMS
from simulation.costs import CostModel
from simulation.prediction import GENERATION, PARTS

USUAL = CostModel.load(ENGINES / "cpu-2-cores.json")
# Another machine: an engine of half the speed, and an optimizer that takes much longer.
OTHER = replace(
    USUAL,
    **{name: 2 * getattr(USUAL, name) for name in GENERATION},
    experience_base=3 * USUAL.experience_base,
    experience_per_token=3 * USUAL.experience_per_token,
    train_base=0.4,
    train_per_token=0.5 * USUAL.train_per_token,
    sync=0.3,
)


@pytest.fixture
def arguments(trace, tmp_path):
    settings = {"engine": ENGINES / "cpu-2-cores.json", "trace": trace, "prompt_tokens": 20, "steps": 40}
    return argparse.Namespace(**settings, costs_of="all off", results=tmp_path)


def steps_of(seconds_of_arms, optimizer=0.4):
    """Three steps of two runs each, the last of them slow; 0.1 s of a step are in no part."""
    rows = []
    for (algorithm, size, arm), parts in seconds_of_arms.items():
        for repetition in (0, 1):
            for step, factor in enumerate((1, 1, 9)):
                key = {"algorithm": algorithm, "size": size, "arm": arm, "repetition": repetition, "step": step}
                own = {name: factor * parts[name] for name in ("seconds", *PARTS)}
                own |= {"sync": factor * (parts["sync"] - 0.1), "rest": factor * 0.1}
                unpatched = arm == "unpatched"
                rows.append({**key, **own, "optimizer": None if unpatched else factor * optimizer})
    return pd.DataFrame(rows).astype({"optimizer": float})


def measured_on(costs, arguments, algorithms=("grpo", "dapo"), arms=ARMS):
    """Steps that take exactly as long as they are simulated to with these costs."""
    return steps_of(
        {
            (algorithm, 8, arm): predict_step_time.simulate(
                costs, algorithm, 8, predict_step_time.work_of(arm, algorithm, 16), arguments
            )
            for algorithm in algorithms
            for arm in arms
        }
    )


def test_arms_do_what_their_flags_say():
    work = {arm: predict_step_time.work_of(arm, "grpo", 16) for arm in ARMS}
    said = {arm: (w.has_forward, w.by_length, w.streams) for arm, w in work.items()}
    assert said == {
        "unpatched": (True, False, False),
        "all on": (False, True, True),
        "without old_log_probs": (True, True, False),
        "without micro_batches": (False, False, True),
        "without stream": (False, True, False),
        "all off": (True, False, False),
    }
    two_steps = predict_step_time.work_of("all on", "dapo", 16)
    assert (two_steps.in_parts, two_steps.by_length, two_steps.streams) == (True, True, True)


def test_a_machine_of_other_speed_is_predicted_from_one_arm(arguments):
    """Each part is as many times as slow; the optimizer's share of training is known from the log."""
    table = predict_step_time.compare(measured_on(OTHER, arguments), 16, arguments)
    assert table["arm"].tolist() == ARMS * 2
    assert table["error_percent"].abs().max() < 1e-6
    grpo = table[table["algorithm"] == "grpo"].set_index("arm")
    assert grpo["predicted_times"].drop(["all off", "unpatched"]).min() > 1.02
    assert grpo["predicted_times"].idxmax() == "all on"
    assert grpo["predicted_times"]["all off"] == 1.0


def test_without_the_optimizers_seconds_its_share_is_the_usual_ones(arguments):
    arguments.costs_of = "unpatched"
    arms = ["unpatched", "without micro_batches"]
    table = predict_step_time.compare(measured_on(USUAL, arguments, ["grpo"], arms), 16, arguments)
    assert table["error_percent"].abs().max() < 1e-6


def test_a_step_that_differs_from_its_prediction_is_shown(arguments):
    steps = measured_on(OTHER, arguments, ["grpo"], ["all off", "all on"])
    steps.loc[steps["arm"] == "all on", "seconds"] *= 1.25
    table = predict_step_time.compare(steps, 16, arguments)
    assert table["error_percent"].tolist() == pytest.approx([0.0, -20.0])


def test_the_command_reads_what_step_time_writes(arguments, monkeypatch, tmp_path, capsys):
    flags = ["--results", tmp_path, "--trace", arguments.trace, "--steps", 20]
    monkeypatch.setattr(sys, "argv", ["predict_step_time.py", *map(str, flags)])
    with pytest.raises(SystemExit, match="there is no .*steps.csv: run eval/step_time.py first"):
        predict_step_time.main()
    steps = measured_on(OTHER, arguments, ["grpo"], ["unpatched", "all off"])
    steps.to_csv(tmp_path / "steps.csv", index=False)
    (tmp_path / "step_time.json").write_text(json.dumps({"settings": {"micro_batch_size": 16}}))
    predict_step_time.main()
    assert (tmp_path / "predicted.md").read_text() in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "predicted.csv")["arm"].tolist() == ["unpatched", "all off"]
    steps[steps["arm"] == "unpatched"].to_csv(tmp_path / "steps.csv", index=False)
    with pytest.raises(SystemExit, match="--costs_of 'all off' was not run for grpo at 8: unpatched"):
        predict_step_time.main()
