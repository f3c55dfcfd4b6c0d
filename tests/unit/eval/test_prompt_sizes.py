"""The comparison of sizes by prompt with one size for all."""

import math
import sys

import pandas as pd
import prompt_sizes
import pytest


def runs_of(plain, standardised, seeds=(0, 1)):
    """Runs of one cell whose figures are the same for all seeds, but for a factor of the seed."""
    cell = {"gpus": 64, "workload": "mid", "filter": False, "seconds": 1.0, "samples": 8.0, "judged": 8.0}
    return pd.DataFrame(
        [
            {**cell, "policy": policy, "seed": seed, "straggler_rate": 0.1, "plain": a * (1 + seed), "standardised": b}
            for seed in seeds
            for policy, a, b in zip(prompt_sizes.POLICIES, plain, standardised)
        ]
    )


def test_shares_are_of_the_best_fixed_size_by_each_measure():
    table = prompt_sizes.compared(runs_of([1, 4, 2, 3, 5, 6, 4, 8, 2], [1, 2, 3, 4, 4, 4, 4, 2, 8])).set_index(
        "policy"
    )
    assert (table["best plain"].unique(), table["best standardised"].unique()) == ([8], [32])
    assert table["plain"].tolist() == pytest.approx([0.25, 1, 0.5, 0.75, 1.25, 1.5, 1, 2, 0.5])
    assert table["standardised"]["oracle"] == 2 and table["plain a second"]["oracle"] == 3


def test_the_interval_is_that_of_the_seeds_shares():
    runs = runs_of([1.0] * 9, [1.0] * 9, seeds=(0, 1, 2))
    runs.loc[(runs["policy"] == "rate") & (runs["seed"] == 2), "standardised"] = 1.3
    table = prompt_sizes.compared(runs).set_index("policy")
    assert table["standardised"]["rate"] == pytest.approx(1.1)
    assert table["standardised ±"]["rate"] == pytest.approx(4.303 * 0.1, rel=1e-3)
    assert table["plain ±"]["rate"] == pytest.approx(0)
    assert math.isnan(prompt_sizes.compared(runs_of([1.0] * 9, [1.0] * 9, seeds=(0,)))["plain ±"][0])


@pytest.mark.parametrize("policy, sizes", [("fixed:4", {4}), ("throughput", {16}), ("rate", {16}), ("oracle", None)])
def test_a_policy_has_its_sizes(policy, sizes):
    values = (64, "hard", False, policy, 0, 1, 16, 16)
    training, _ = prompt_sizes.training_of(dict(zip(prompt_sizes.KEY, values)))
    assert training.step()["samples"] == 128
    drawn = {group.size for group in training.judged}
    assert drawn == sizes if sizes else len(drawn) > 1  # nothing is known of a prompt in the first step


def test_prompts_come_in_the_same_order_for_all_policies():
    first = []
    for policy in ("fixed:16", "oracle"):
        values = (64, "hard", False, policy, 0, 3, 16, 16)
        training, _ = prompt_sizes.training_of(dict(zip(prompt_sizes.KEY, values)))
        training.step()
        training.step()
        first.append([group.prompt.label for group in training.judged])
    assert first[0] == first[1]


def test_the_command_writes_its_table_and_goes_on(monkeypatch, tmp_path, capsys):
    flags = ["--gpus", "2", "--workloads", "hard", "--seeds", "0", "1", "--steps", "2", "--batch_size", "16"]
    monkeypatch.setattr(sys, "argv", ["prompt_sizes.py", *flags, "--output", str(tmp_path)])
    prompt_sizes.main()
    runs, table = (pd.read_csv(tmp_path / name) for name in ("runs.csv", "table.csv"))
    assert len(runs) == 2 * 9 * 2 and len(table) == 2 * 9
    assert table.loc[table["policy"] == "rate", ["plain", "standardised"]].gt(0).all(axis=None)
    printed = capsys.readouterr().out
    monkeypatch.setattr(prompt_sizes, "measure", None)  # all runs are kept
    prompt_sizes.main()
    assert capsys.readouterr().out == printed
