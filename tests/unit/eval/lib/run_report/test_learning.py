"""Rewards against steps, seconds and rollouts."""

import numpy as np
import pandas as pd
import pytest
from lib.run_report.learning import at_equal, binomial, difference, section, targets
from report_runs import arm_of, run_of

STEPS = 40


def evaluated(slope, samples=400.0):
    at = range(0, STEPS + 1, 4)
    return {
        "eval_math_pass1": {step: slope * step for step in at if step},
        "eval_num_samples": {step: samples for step in at if step},
    }


def arms():
    """One learns more from a rollout, the other has steps of half the seconds."""
    off = arm_of("off", run_of(np.full(STEPS, 6.5), evaluations=evaluated(0.02)))
    ours = arm_of("ours", run_of(np.full(STEPS, 1.5), evaluations=evaluated(0.015)))
    return [off, ours]


def text_of(found):
    return " ".join(block for block in found.blocks if isinstance(block, str))


def table_of(found, title):
    tables = [block for block in found.blocks if hasattr(block, "rows") and block.titles[0] == title]
    return [dict(zip(table.titles, row)) for table in tables for row in table.rows]


def test_who_wins_at_equal_seconds_may_lose_at_equal_rollouts():
    found = section(arms())
    assert "At equal training seconds ours is ahead. At equal rollouts made off is ahead" in text_of(found)
    rows = {row["at equal"]: row for row in table_of(found, "at equal")}
    assert rows["rollouts made"]["at"] == "2,560" and rows["rollouts made"]["off"].startswith("0.800 [0.758,")
    assert rows["training seconds"]["at"] == "195" and rows["training seconds"]["ours"].startswith("0.600")
    assert float(rows["training seconds"]["off"].split()[0]) == pytest.approx(0.02 * (195 / 10 + 1))
    assert rows.keys() == {"steps", "training seconds", "hours on the clock", "rollouts made"}


def test_dropped_rollouts_count_at_equal_rollouts():
    run = run_of(np.full(STEPS, 1.5), evaluations=evaluated(0.015), dynamic_filtering_pass_rate=50.0)
    end, (off, ours), _ = at_equal([arms()[0], arm_of("ours", run)], "rollouts", True)
    assert end == 2560 and off["value"] == pytest.approx(0.8) and ours["value"] == pytest.approx(0.3)


def test_the_time_to_each_reward():
    assert targets(arms(), True) == [0.2, 0.4, 0.6, 0.8]
    rows = table_of(section(arms()), "reward")
    found = {(row["reward"], row["in"]): (row["off"], row["ours"]) for row in rows}
    assert found["0.4", "steps"] == ("20", "27") and found["0.4", "training seconds"] == ("190", "128")
    assert found["0.8", "steps"] == ("40", "–")


def test_seeds_have_students_interval_and_one_run_the_binomial():
    runs = [run_of(np.full(STEPS, 6.5), evaluations=evaluated(0.02 + seed / 1000)) for seed in range(3)]
    _, (found,), _ = at_equal([arm_of("off", *runs)], "step", True)
    assert found["value"] == pytest.approx(0.84) and found["high"] - found["value"] == pytest.approx(
        4.303 * 0.04 / 3**0.5, rel=1e-3
    )
    assert binomial(0.5, 400)["low"] == pytest.approx(0.451, abs=1e-3)
    assert binomial(1.5, 400) == binomial(0.5, np.nan) == {"low": None, "high": None}


def test_differences_of_a_comparison_are_paired_by_the_seeds_that_both_have():
    """Seeds differ by far more than arms: only pairs tell them apart."""
    seeds = {"off": [0.010, 0.014, 0.018], "ours": [0.011, 0.0151, 0.0191, 0.002]}
    found = {}
    for paired in (True, False):
        kept = {"comparison": "a policy"} if paired else None
        runs = {
            name: [run_of(np.full(STEPS, 4.0), kept, evaluated(slope)) for slope in own] for name, own in seeds.items()
        }
        found[paired] = section([arm_of(name, *own) for name, own in runs.items()])
    (row,) = table_of(found[True], "arm")
    assert (row["arm"], row["minus"]) == ("ours", "off") and row["at equal steps"] == "0.043 [0.037, 0.048]"
    assert "At equal training seconds ours is ahead. At" in text_of(found[True])  # without the fourth seed
    assert not table_of(found[False], "arm") and "Differences are not paired" in text_of(found[False])
    assert "the intervals overlap" in text_of(found[False])


def test_rewards_are_compared_after_the_seconds_that_are_asked_for():
    rows = {row["at equal"]: row for row in table_of(section(arms(), seconds=100.0), "at equal")}
    assert rows["training seconds"]["at"] == "100" and rows["steps"]["at"] == "40"
    assert float(rows["training seconds"]["off"].split()[0]) == pytest.approx(0.02 * (100 / 10 + 1))


def test_without_evaluations_it_is_the_training_reward_and_says_so():
    found = section(
        [arm_of(name, run_of(np.full(STEPS, 4.0), reward=np.linspace(0, 1, STEPS))) for name in ("off", "ours")]
    )
    assert "these are training rewards" in found.blocks[0] and "there is no interval" in text_of(found)
    assert "No reward is known." in section([arm_of("off", run_of([4.0] * 3))]).blocks


def test_other_data_are_warned_of():
    other = {"eval_gsm8k_pass1": {4: 0.5, 8: 0.6}}
    mine = arm_of("ours", run_of(np.full(STEPS, 4.0), evaluations=other))
    assert "Warning: the arms were evaluated on other data" in text_of(section([arms()[0], mine]))


def test_a_difference_that_is_the_same_with_every_seed_has_an_interval_of_that_value():
    found = difference(pd.Series([0.75, 0.75, 0.75]), pd.Series([0.25, 0.25, 0.25]))
    assert found == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert difference(pd.Series([0.75]), pd.Series([0.25])) == {"value": 0.5, "low": None, "high": None}
