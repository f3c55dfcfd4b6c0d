"""Times, rewards and intervals of a comparison."""

import lib.run_report.statistics
import numpy as np
import pytest
import scipy.stats
from comparison_runs import SETTINGS, learning
from hypothesis import given
from hypothesis import strategies as st
from lib.run_report.write import plain


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_time_to_target_is_the_first_crossing(rewards, target):
    seconds = 10.0 * np.arange(1, len(rewards) + 1)
    (found,) = lib.run_report.statistics.time_to(target, seconds, np.array([rewards]))
    if max(rewards) < target:
        assert found == np.inf
    else:
        assert 10 <= found <= seconds[np.argmax(np.array(rewards) >= target)]
        assert np.interp(found, seconds, rewards) >= target - 1e-6
        earlier = seconds[seconds < found - 1e-9]
        assert all(np.interp(earlier, seconds, rewards) < target)


def test_mean_time_is_over_all_rewards_up_to_the_target():
    mean_time_to = lib.run_report.statistics.mean_time_to
    seconds_T = np.linspace(0, 100, 201)
    line, late = seconds_T / 100, np.clip(seconds_T / 100 - 0.5, 0, 1)
    dip = np.where((seconds_T > 60) & (seconds_T < 70), 0.6, line)  # noise above the target
    found = [mean_time_to(0.4, seconds_T, curve) for curve in (line, line / 2, late, dip, line + 0.5)]
    assert found == pytest.approx([20, 40, 70, 20, 0], abs=0.1)
    assert mean_time_to(0.6, seconds_T, late) == np.inf
    noise = np.random.default_rng(0).normal(0, 0.05, (50, 201))
    noisy = [mean_time_to(0.4, seconds_T, np.clip(line + one, 0, 1) * (seconds_T > 0)) for one in noise]
    first = lib.run_report.statistics.time_to(0.4, seconds_T, line + noise)
    assert np.mean(noisy) == pytest.approx(20, abs=2) and np.std(noisy) < first.std()


def test_a_curve_that_dips_or_falls_has_a_mean_time_within_the_run():
    mean_time_to = lib.run_report.statistics.mean_time_to
    assert mean_time_to(0.7, np.array([0.0, 20.0, 40.0]), np.array([0.69, 0.5, 0.8])) <= 40
    assert mean_time_to(0.7, np.array([0.0, 20.0]), np.array([0.75, 0.2])) == 0
    assert mean_time_to(0.7, np.array([0.0, 20.0]), np.array([0.6, 0.2])) == np.inf


def test_the_interval_over_runs_is_students_t_of_the_jackknife():
    def ratio(slower_R, faster_R):
        return slower_R.mean() / faster_R.mean()

    # Paired ratios of 2, 2 and 2 leave nothing open, whatever the seconds.
    found = lib.run_report.statistics.over_runs(ratio, np.array([2.0, 4.0, 10.0]), np.array([1.0, 2.0, 5.0]))
    assert found == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0, "runs": 3})
    # The jackknife of a mean is its standard error: of the logarithms 0.1, 0.2, 0.3 it is 0.1 / sqrt(3).
    logs = np.array([0.1, 0.2, 0.3])
    found = lib.run_report.statistics.over_runs(lambda logs_R: np.exp(logs_R.mean()), logs)
    assert np.log([found["low"], found["high"]]) == pytest.approx(scipy.stats.t.interval(0.95, 2, 0.2, 0.1 / 3**0.5))


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0], [np.inf, 1.0], [1.0, np.nan]])
def test_no_interval_of_one_run_or_of_what_is_no_number(values):
    found = lib.run_report.statistics.over_runs(np.mean, np.array(values))
    assert found["low"] is None and found["high"] is None


def test_the_interval_over_few_runs_holds_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        slower_R, faster_R = np.exp(generator.normal(0, 0.3, (2, 3)))
        found = lib.run_report.statistics.over_runs(lambda a, b: a.mean() / b.mean(), 2 * slower_R, faster_R)
        held.append(found["low"] <= 2 <= found["high"])
    assert 0.92 < np.mean(held) < 0.98


def test_sooner_is_the_ratio_of_mean_times_over_the_seeds_of_both():
    slow, fast = learning("unpatched:8", 80.0)[1], learning("sagc", 40.0, (0, 1))[1]
    settings = SETTINGS | {"seconds": 100.0}
    curves = [lib.run_report.statistics.curves_of(run, run["policy"].iloc[0], settings) for run in (slow, fast)]
    found = lib.run_report.statistics.sooner_than(*curves, 0.5)
    assert found["value"] == pytest.approx(2, rel=0.05) and found["low"] == pytest.approx(found["high"])
    assert found["runs"] == 2
    assert np.isnan(lib.run_report.statistics.sooner_than(*curves, 0.0)["value"])  # both begin there
    assert lib.run_report.statistics.with_ends(lib.run_report.statistics.sooner_than(*curves, 1.5)) == "–"


def test_more_seeds_tell_smaller_ratios_apart():
    three = {"value": 1.5, "low": 1.5 / 1.2, "high": 1.5 * 1.2, "runs": 3}
    told = [lib.run_report.statistics.told_apart(three, seeds) for seeds in (3, 30)]
    # With three seeds the interval's half is 4.30 standard errors; a power of 0.8 asks for another 1.06.
    assert told[0] == pytest.approx(1.2 ** ((4.303 + 1.061) / 4.303), rel=1e-3)
    assert 1 < told[1] < 1.05
    assert np.isnan(lib.run_report.statistics.told_apart({"value": 1.5, "low": None, "high": None, "runs": 1}, 3))
    assert np.isnan(lib.run_report.statistics.told_apart(three | {"runs": 2}, 3))


def test_rewards_are_compared_after_the_same_seconds():
    seconds_V, values_BV = np.array([10.0, 30.0, 60.0]), np.array([[0.0, 0.4, 1.0], [0.1, 0.1, 0.7]])
    for seconds, expected in ((5, [0.0, 0.1]), (10, [0.0, 0.1]), (20, [0.2, 0.1]), (45, [0.7, 0.4]), (99, [1.0, 0.7])):
        assert lib.run_report.statistics.value_at(seconds, seconds_V, values_BV) == pytest.approx(expected)
    assert lib.run_report.statistics.value_at(9, seconds_V[:1], values_BV[:, :1]) == pytest.approx([0.0, 0.1])


def test_a_draw_in_which_neither_reaches_the_target_is_left_out():
    draws = lib.run_report.statistics.speedup_of(
        np.array([1.0, 2.0, 3.0, np.inf, np.inf]), np.array([1.0, 4.0, 1.0, 2.0, np.inf])
    )
    assert draws[:4].tolist() == [1.0, 0.5, 3.0, np.inf] and np.isnan(draws[4])
    assert lib.run_report.statistics.interval(draws[[0, 1, 1, 4]], 2) == "1.00 [0.50, 0.50]"
    assert lib.run_report.statistics.interval(draws[[0, 1, 4, 4, 4]], 2) == "1.00 [–, –]"


def test_the_ratio_of_times_that_are_not_reached_is_a_dash_and_below_all_others():
    times = np.array([np.inf, np.inf, 4.0, 2.0, 1.0])
    draws = lib.run_report.statistics.speedup_of(np.full(5, 2.0), times)
    assert draws.tolist() == [-np.inf, -np.inf, 0.5, 1.0, 2.0]
    assert lib.run_report.statistics.interval(draws, 2) == "– [–, 2.00]"
    assert plain(draws) == {"value": None, "low": None, "high": 2.0}


def test_problems_and_seeds_widen_the_interval(tmp_path):
    steps, evaluations = learning("unpatched:8", 64.0)
    generator = np.random.default_rng(1)
    noisy = evaluations.assign(right=[" ".join(map(str, generator.integers(0, 9, 32))) for _ in evaluations["right"]])
    draws = lib.run_report.statistics.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    again = lib.run_report.statistics.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    assert np.array_equal(draws["reward"], again["reward"])
    last = [lib.run_report.statistics.right_of(run)[-1] for _, run in noisy.groupby("seed")]
    assert draws["reward"][0] == pytest.approx(np.mean(last))
    within = np.sqrt(np.mean([np.var(run) / 32 for run in last]) / 3)
    assert within < draws["reward"][1:].std() < 3 * within  # and some of the seeds'
