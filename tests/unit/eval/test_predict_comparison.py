"""Predictions of compare.py's policies, on made-up measurements."""

import argparse
import json
import sys
from dataclasses import replace

import pandas as pd
import predict_comparison
import pytest
from common.paths import ENGINES, RESULTS
from common.policies import parse_policy
from comparison.arms import flags_of
from comparison.report import SECONDS
from simulation.costs import CostModel
from simulation.flags import training_arguments
from simulation.lengths import Trace
from simulation.prediction import GENERATION

CONTROL = {"max_straggler_rate": 0.3, "straggler_ratio": 2.5, "tradeoff": 2.0}
USUAL = CostModel.load(ENGINES / "cpu-2-cores.json")
# Another machine: an engine of half the speed, and training of a third.
OTHER = replace(
    USUAL,
    **{name: 2 * getattr(USUAL, name) for name in GENERATION},
    train_base=3 * USUAL.train_base,
    train_per_token=3 * USUAL.train_per_token,
    sync=0.3,
)
POLICIES = ["unpatched:8", "unpatched:16", "fixed:8+tail:1", "fixed:8+tail:1+stream", "sagc+tail:1"]


@pytest.fixture
def arguments(trace, tmp_path):
    settings = {"engine": ENGINES / "cpu-2-cores.json", "trace": trace, "prompt_tokens": 7, "repetitions": 2}
    settings |= {"micro_batch_size": 16, "num_engines": 1, "costs_of": "unpatched:8"}
    return argparse.Namespace(**settings, control=CONTROL, results=tmp_path)


def steps_of(means, steps=12):
    """Runs of two seeds, one 0.8 and one 1.2 times as long as the mean, behind a first step that warms up."""
    rows = []
    for (algorithm, policy), parts in means.items():
        for seed, factor in enumerate((0.8, 1.2)):
            key = {"algorithm": algorithm, "policy": policy, "seed": seed}
            rows.append({**key, "step": 1, **{name: 100.0 for name in SECONDS}})
            rows += [{**key, "step": 2 + i, **{name: factor * parts[name] for name in SECONDS}} for i in range(steps)]
    return pd.DataFrame(rows)


def measured_on(costs, arguments, algorithms=("grpo", "dapo"), policies=POLICIES):
    """Steps that take exactly as long as they are simulated to with these costs."""
    source = Trace(arguments.trace)
    return steps_of(
        {
            (algorithm, policy): predict_comparison.simulated_seconds(costs, source, algorithm, policy, 12, arguments)
            for algorithm in algorithms
            for policy in policies
        }
    )


def test_policies_do_what_their_names_say():
    work = {
        word: predict_comparison.work_of(parse_policy(word), "grpo", 16) for word in [*POLICIES, "fixed:8+shuffled"]
    }
    assert {word: (w.has_forward, w.by_length, w.streams) for word, w in work.items()} == {
        "unpatched:8": (True, False, False),
        "unpatched:16": (True, False, False),
        "fixed:8+tail:1": (False, True, False),
        "fixed:8+tail:1+stream": (False, True, True),
        "sagc+tail:1": (False, True, False),
        "fixed:8+shuffled": (False, False, False),
    }
    assert predict_comparison.work_of(parse_policy("fixed:8+forward"), "grpo", 16).has_forward
    dapo = predict_comparison.work_of(parse_policy("fixed:8+stream"), "dapo", 16)
    assert dapo.streams and dapo.in_parts  # two optimizer steps


@pytest.mark.parametrize(
    "policy",
    ["unpatched:4", "unpatched:32@prompts", "fixed:4@prompts", "fixed:16+tail@prompts", "sagc", "sagc@prompts"],
)
def test_a_simulated_step_has_the_prompts_and_samples_of_the_measured_one(policy, arguments, monkeypatch):
    found = []

    def simulated_steps(costs, policy, work, source, steps, settings, num_engines):
        found.append(training_arguments(policy, settings).rollout)
        return pd.DataFrame([{"seconds": 1.0}])

    monkeypatch.setattr(predict_comparison, "simulated_steps", simulated_steps)
    predict_comparison.simulated_seconds(USUAL, None, "grpo", policy, 1, arguments)
    flags = flags_of(policy, "grpo", 0, CONTROL)[1]
    measured = [flags[flags.index(f"--rollout.{name}") + 1] for name in ("batch_size", "n_samples_per_prompt")]
    assert [str(found[0].batch_size), str(found[0].n_samples_per_prompt)] == measured


def test_more_engines_generate_faster(arguments):
    source = Trace(arguments.trace)
    one = predict_comparison.simulated_seconds(USUAL, source, "grpo", "fixed:8", 12, arguments)
    arguments.num_engines = 2
    two = predict_comparison.simulated_seconds(USUAL, source, "grpo", "fixed:8", 12, arguments)
    assert two["generation"] < one["generation"]


def test_a_machine_of_other_speed_is_predicted_from_one_policy(arguments):
    table = predict_comparison.compare(measured_on(OTHER, arguments), arguments)
    assert table["policy"].tolist() == POLICIES * 2
    assert table["steps"].unique().tolist() == [12]
    assert table["error_percent"].abs().max() < 1e-6
    times = table[table["algorithm"] == "grpo"].set_index("policy")["predicted_times"]
    assert times["unpatched:8"] == 1.0 and times["fixed:8+tail:1"] > 1.2


def test_a_policy_that_differs_from_its_prediction_is_shown(arguments):
    steps = measured_on(OTHER, arguments, ["grpo"], POLICIES[:2])
    steps.loc[steps["policy"] == "unpatched:16", SECONDS] *= 1.25
    table = predict_comparison.compare(steps, arguments)
    assert table["error_percent"].tolist() == pytest.approx([0.0, -20.0])


def test_the_command_reads_what_compare_writes(arguments, monkeypatch, tmp_path, capsys):
    flags = ["--results", tmp_path, "--trace", arguments.trace, "--repetitions", 1]
    monkeypatch.setattr(sys, "argv", ["predict_comparison.py", *map(str, flags)])
    with pytest.raises(SystemExit, match="there is no .*steps.csv: run eval/compare.py first"):
        predict_comparison.main()
    steps = measured_on(OTHER, arguments, ["grpo"], ["unpatched:8", "sagc"])
    steps.to_csv(tmp_path / "steps.csv", index=False)
    (tmp_path / "settings.json").write_text(json.dumps({"target": 0.7, "seconds": 80, **CONTROL}))
    predict_comparison.main()
    assert (tmp_path / "predicted.md").read_text() in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "predicted.csv")["policy"].tolist() == ["unpatched:8", "sagc"]
    steps[steps["policy"] == "sagc"].to_csv(tmp_path / "steps.csv", index=False)
    with pytest.raises(SystemExit, match="--costs_of unpatched:8 was not run for grpo: sagc"):
        predict_comparison.main()


def test_the_trace_and_the_engines_are_those_of_the_settings(arguments, monkeypatch, tmp_path):
    found = []

    def compare(steps, arguments):
        found.append((arguments.trace, arguments.num_engines))
        raise ValueError("enough")

    monkeypatch.setattr(predict_comparison, "compare", compare)
    monkeypatch.setattr(sys, "argv", ["predict_comparison.py", "--results", str(tmp_path)])
    (tmp_path / "steps.csv").write_text("step\n1\n")
    (tmp_path / "settings.json").write_text(json.dumps({"task": "countdown", "num_engines": 2, **CONTROL}))
    with pytest.raises(SystemExit, match="enough"):
        predict_comparison.main()
    (tmp_path / "settings.json").write_text(json.dumps(CONTROL))
    with pytest.raises(SystemExit, match=r"--trace is required, as .*settings.json names no task: give .*TASK.csv"):
        predict_comparison.main()
    sys.argv += ["--trace", str(arguments.trace)]
    with pytest.raises(SystemExit, match="enough"):
        predict_comparison.main()
    assert found == [(RESULTS / "simulate/countdown.csv", 2), (arguments.trace, 1)]
    assert found[0][0].is_file()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repetitions", "0"], "--repetitions 0 must be at least 1"),
        (["--micro_batch_size", "0"], "--micro_batch_size 0 must be at least 1"),
        (["--results", __file__], "there is no .*steps.csv: run eval/compare.py first"),
    ],
)
def test_bad_arguments_are_named(words, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["predict_comparison.py", *words])
    with pytest.raises(SystemExit, match=f"eval/predict_comparison.py: {message}"):
        predict_comparison.main()
