"""Each study once in small: what it writes, and the one thing that its table is read for."""

from importlib import import_module

import pandas as pd
import pytest
from cpu_stack import ROOT
from lib.paths import STUDIES
from lib.simulation.workloads import Workload
from studies.__main__ import COMMIT, FROZEN

NAMES = sorted(file.parent.name for file in STUDIES.glob("*/run.py"))


def test_a_name_that_is_none_is_answered_with_all(study, capsys):
    with pytest.raises(
        SystemExit, match=f"^eval/studies: prompt_sizes is not a study: give one of {', '.join(NAMES)}$"
    ):
        study("prompt_sizes")
    study("--help")
    *_, table, frozen = capsys.readouterr().out.split("\n\n")
    lines = table.strip("\n").splitlines()
    assert (
        frozen.endswith(f"{', '.join(FROZEN)}.\n")
        and [line.split()[0] for line in lines] == NAMES
        and all(len(line.split()) > 5 for line in lines)
    )


def test_a_study_whose_code_is_older_names_its_commit(study):
    assert not {*FROZEN} & {*NAMES} and {*FROZEN} - {"health", "predict"} <= {path.name for path in STUDIES.iterdir()}
    for name in FROZEN:
        with pytest.raises(SystemExit, match=f"^eval/studies {name}: .* git checkout {COMMIT} runs it$"):
            study(name)
        page = STUDIES / name / "README.md"
        assert not page.exists() or f"`git checkout {COMMIT}`" in page.read_text()


# --- simulated -------------------------------------------------------------------------------------------------------


def test_sorted_steps_waste_no_token(study, small):
    small("sorted_steps.run", PROMPTS=640, STEPS=10)
    rows = pd.read_csv(study("sorted_steps", "--gpus", 16, "--seeds", 0) / "runs.csv").set_index("arm")
    assert rows["wasted_share"]["fixed:8+tail:stop"] > 0 == rows["wasted_share"]["fixed:8+tail:sort"]
    assert rows["trained_length_ratio"]["fixed:8+tail:sort"] == pytest.approx(1, abs=0.03)


def test_the_default_is_compared_with_the_best_method_of_each_size(study, small):
    small("sorted_steps.sizes", STEPS=1)
    rows = pd.read_csv(
        study("sorted_steps", "sizes", "--shapes", "128x8", "--gpus", 4, 64, "--caps", 512) / "sizes.csv"
    )
    # Engines of 64 GPUs have a slot for each rollout.
    assert rows[["gpus", "slots"]].drop_duplicates().to_numpy().tolist() == [[4, 128], [4, 512], [64, 128]]
    best = rows[["plain", "stop", "sort"]].max(axis=1)
    assert rows["of the best"].tolist() == pytest.approx((rows["auto"] / best).tolist(), rel=1e-3)
    assert (rows["plain"] == 1).all() and rows["filter"].tolist() == [False, True] * 3


def test_the_default_is_compared_with_plain_steps_for_each_set_of_lengths(study, small):
    module = small("sorted_steps.lengths", PROMPTS=128, EPISODES=1)
    sets = dict([*module.SETS.items()][-1:])
    small("sorted_steps.lengths", SETS=sets)
    rows = pd.read_csv(study("sorted_steps", "lengths", "--gpus", 16, "--seeds", 0) / "lengths.csv")
    assert rows[["filter", "prompts come"]].to_numpy().tolist() == [
        [f, c] for f in (False, True) for c in ("again", "once")
    ]
    assert rows["lengths"].unique().tolist() == [*sets] and rows["plain in vain"][:2].tolist() == [0, 0]
    assert (rows[["generation", "step"]] > 0).all(axis=None) and rows["length"].between(0.7, 1.3).all()
    made = pd.concat([rows.assign(seed=seed, generation=share) for seed, share in ((0, 0.4), (1, 0.4))])
    assert module.summary(made)["generation, %"].tolist() == ["40 [40, 40]"] * 4


def test_a_measured_method_is_compared_with_plain_steps_of_its_seed():
    """At the steps that all runs have; the first episode counts for rewards alone, and seeds differ by more than arms."""
    rows = []
    for seed, slower in ((0, 1.0), (1, 3.0)):
        for policy, seconds, reward, steps in (("fixed:8", 4.0, 0.5, 3), ("fixed:8+tail:sort", 2.0, 0.7, 4)):
            for step in range(1, steps + 1):
                took = slower * (seconds if step > 1 else 8.0)
                row = {"seed": seed, "policy": policy, "step": step, "reward": reward + seed / 10, "trained": 128}
                row |= {"generation": took / 2, "experience": 0.0, "training": took / 2, "sync": 0.0}
                more = {"trained_length": 50.0 * slower, "wasted_tokens": 1600.0 * slower * (seconds == 2.0)}
                rows.append(row | more | ({"reward": 99.0} if step == 4 else {}))
    table = import_module("studies.sorted_steps.measured").against_plain(pd.DataFrame(rows), "fixed:8", 1)
    plain, sort = table.to_dict("records")
    assert (plain["steps"], plain["reward"], plain["s a step"], plain["length, %"]) == (3, "0.550", "8.00", "")
    assert sort["reward minus plain"] == "0.200 [0.200, 0.200]" and sort["tokens wasted, %"] == "20.0"
    assert sort["after the first episode"] == sort["generation after it"] == "2.00 [2.00, 2.00]"
    assert sort["step, times as fast"] == "1.33 [1.33, 1.33]" and sort["length, %"] == "0.00 [0.00, 0.00]"


def test_objectives_are_compared_with_the_best_fixed_size_that_keeps_the_limit(study, small):
    module = small("objectives.run", STEPS=3)
    small("objectives.run", cells=lambda: [module.Cell(2, "slow nodes", False, "samples", True)])
    out = study("objectives")
    runs, (free, limited) = pd.read_csv(out / "runs.csv"), pd.read_csv(out / "cells.csv").to_dict("records")
    assert len(runs) == len(module.POLICIES) and runs["effective_per_second"].gt(0).all()
    assert free["limit"] == 0.95 and max(free[f"fixed:{size}"] for size in module.SIZES) == 1
    assert free[f"fixed:{free['best']}"] == 1 and limited["throughput"] > 0
    rates = dict(zip(module.SIZES, (0.1, 0.19, 0.3, 0.5)))
    worth = {size: 10.0 * size for size in module.SIZES}
    policies = [(f"fixed:{size}", 0.95, worth[size], rates[size]) for size in module.SIZES]
    policies += [(name, limit, 60.0, 0.2) for name in ("size", "throughput") for limit in module.LIMITS]
    made = pd.DataFrame(policies, columns=["policy", "limit", "effective_per_second", "straggler_rate"])
    cell = dict(zip(module.CELL, (2, "mid", False, "samples", False)))
    free, limited = module.shares(made.assign(**cell, seed=0, group_size=8.0, changes=0.0)).to_dict("records")
    assert (free["best"], free["size"]) == (32, 60 / 320) and (limited["best"], limited["size"]) == (8, 60 / 80)


def test_every_study_with_a_command_is_tried_in_this_room():
    texts = "".join(file.read_text() for file in (ROOT / "tests/unit/eval").glob("test_*.py"))
    assert all(f'study("{name}"' in texts for name in NAMES)
    assert Workload()  # the made-up rollouts that most of them share
