"""Intervals of one run's steps."""

import numpy as np
import pytest
from lib.run_report.blocks import drawn, of_steps, ratio, summary


def test_the_first_draw_is_the_value_and_draws_are_the_same_again():
    values = np.arange(40.0)
    draws = drawn(values, np.median)
    assert draws[0] == 19.5 and np.array_equal(draws, drawn(values, np.median)) and len(draws) > 1000
    assert not np.array_equal(draws, drawn(values, np.median, seed=1))


def test_the_interval_of_independent_steps_holds_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(0)
    held = []
    for _ in range(200):
        found = summary(drawn(generator.normal(5, 1, 60), np.mean))
        held.append(found["low"] <= 5 <= found["high"])
    assert 0.85 < np.mean(held) <= 1


def test_steps_that_follow_each_other_widen_it():
    generator = np.random.default_rng(0)
    alone = generator.normal(0, 1, 200)
    drift = np.convolve(alone, np.full(10, 0.1), "same")
    drift *= alone.std() / drift.std()
    widths = [found["high"] - found["low"] for found in (summary(drawn(values, np.mean)) for values in (alone, drift))]
    assert widths[1] > 1.5 * widths[0]


def test_what_is_no_number_is_left_out():
    assert of_steps([np.array([1.0, np.nan, 3.0])], np.mean)["value"] == 2
    assert np.isnan(of_steps([np.array([np.nan])], np.mean)["value"])
    one = of_steps([np.array([4.0])], np.mean)
    assert one == {"value": 4.0, "low": None, "high": None}


def test_a_ratio_is_of_means_and_a_long_run_has_fewer_draws():
    generator = np.random.default_rng(0)
    found = ratio([generator.normal(8, 1, 80)], [generator.normal(4, 1, 80)])
    assert found["value"] == pytest.approx(2, rel=0.1) and found["low"] < 2 < found["high"]
    assert 100 <= len(drawn(np.ones(100_000), np.mean)) < 300
