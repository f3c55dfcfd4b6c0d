"""Times, rewards and intervals of a comparison."""

import comparison.logs
import comparison.plots
import comparison.report
import comparison.statistics
import comparison.training
import numpy as np
import pytest
from comparison_runs import SETTINGS, learning
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_time_to_target_is_the_first_crossing(rewards, target):
    seconds = 10.0 * np.arange(1, len(rewards) + 1)
    (found,) = comparison.statistics.time_to(target, seconds, np.array([rewards]))
    if max(rewards) < target:
        assert found == np.inf
    else:
        assert 10 <= found <= seconds[np.argmax(np.array(rewards) >= target)]
        assert np.interp(found, seconds, rewards) >= target - 1e-6
        earlier = seconds[seconds < found - 1e-9]
        assert all(np.interp(earlier, seconds, rewards) < target)


def test_mean_time_is_over_all_rewards_up_to_the_target():
    seconds_T = np.linspace(0, 100, 201)
    line, late = seconds_T / 100, np.clip(seconds_T / 100 - 0.5, 0, 1)
    dip = np.where((seconds_T > 60) & (seconds_T < 70), 0.6, line)  # noise above the target
    found = comparison.statistics.mean_time_to(0.4, seconds_T, np.array([line, line / 2, late, dip, line + 0.5]))
    assert found == pytest.approx([20, 40, 70, 20, 0], abs=0.1)
    assert comparison.statistics.mean_time_to(0.6, seconds_T, late[None]) == [np.inf]
    noise = np.random.default_rng(0).normal(0, 0.05, (50, 201))
    noisy = comparison.statistics.mean_time_to(0.4, seconds_T, np.clip(line + noise, 0, 1) * (seconds_T > 0))
    first = comparison.statistics.time_to(0.4, seconds_T, line + noise)
    assert noisy.mean() == pytest.approx(20, abs=2) and noisy.std() < first.std()


def test_more_seeds_tell_smaller_ratios_apart():
    logs = np.random.default_rng(0).normal(0, 0.1, 4001)
    told = [comparison.statistics.told_apart(np.exp(logs), 2, seeds) for seeds in (4, 16)]
    # Standard deviations of 0.1 and 0.05 with so many seeds, after the correction for two runs.
    assert np.log(told) == pytest.approx([0.28, 0.14], rel=0.05)
    assert np.isnan(comparison.statistics.told_apart(np.exp(logs), 1, 3))
    assert np.isnan(comparison.statistics.told_apart(np.array([1.0, 1.0, np.inf]), 3, 3))


def test_rewards_are_compared_after_the_same_seconds():
    seconds_E, values_BE = np.array([10.0, 30.0, 60.0]), np.array([[0.0, 0.4, 1.0], [0.1, 0.1, 0.7]])
    for seconds, expected in ((5, [0.0, 0.1]), (10, [0.0, 0.1]), (20, [0.2, 0.1]), (45, [0.7, 0.4]), (99, [1.0, 0.7])):
        assert comparison.statistics.value_at(seconds, seconds_E, values_BE) == pytest.approx(expected)
    assert comparison.statistics.value_at(9, seconds_E[:1], values_BE[:, :1]) == pytest.approx([0.0, 0.1])


def test_a_draw_in_which_neither_reaches_the_target_is_left_out():
    draws = comparison.statistics.speedup_of(
        np.array([1.0, 2.0, 3.0, np.inf, np.inf]), np.array([1.0, 4.0, 1.0, 2.0, np.inf])
    )
    assert draws[:4].tolist() == [1.0, 0.5, 3.0, np.inf] and np.isnan(draws[4])
    assert comparison.statistics.interval(draws[[0, 1, 1, 4]], 2) == "1.00 [0.50, 0.50]"
    assert comparison.statistics.interval(draws[[0, 1, 4, 4, 4]], 2) == "1.00 [–, –]"


def test_problems_and_seeds_widen_the_interval(tmp_path):
    steps, evaluations = learning("unpatched:8", 64.0)
    generator = np.random.default_rng(1)
    noisy = evaluations.assign(right=[" ".join(map(str, generator.integers(0, 9, 32))) for _ in evaluations["right"]])
    draws = comparison.statistics.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    again = comparison.statistics.resample(noisy, SETTINGS | {"seconds": 1e9}, np.random.default_rng(0))
    assert np.array_equal(draws["reward"], again["reward"])
    last = [comparison.statistics.right_of(run)[-1] for _, run in noisy.groupby("seed")]
    assert draws["reward"][0] == pytest.approx(np.mean(last))
    within = np.sqrt(np.mean([np.var(run) / 32 for run in last]) / 3)
    assert within < draws["reward"][1:].std() < 3 * within  # and some of the seeds'
