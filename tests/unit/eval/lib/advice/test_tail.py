"""Where the tail lies, on traces of which that is known."""

import itertools

import numpy as np
import pytest
from lib.advice import tail
from lib.advice.tail import signal_share, standard_spread, step_tail, variance_between
from lib.simulation.lengths import Trace
from made_traces import write_trace
from scipy import stats


@pytest.mark.parametrize("between, within, share", [(1.0, 0.5, 0.8), (0.5, 1.0, 0.2), (0.0, 1.0, 0.0)])
def test_the_share_of_the_variance_is_that_of_the_lengths(tmp_path, between, within, share):
    """Within what 200 prompts and whole tokens can tell."""
    path = write_trace(tmp_path / "t.csv", prompts=200, samples=8, between=between, within=within, median=3000)
    found, low, high = variance_between(Trace(path).tokens_by_prompt, seed=1)
    assert found == pytest.approx(share, abs=0.06) and low <= found <= high
    assert high - low < 0.2


def test_how_many_resamples_are_in_memory_together_changes_nothing(tmp_path, monkeypatch):
    """All of them at once took 46 kB a prompt."""
    tokens_P = Trace(write_trace(tmp_path / "t.csv", prompts=60, samples=4)).tokens_by_prompt
    together = variance_between(tokens_P, seed=2)
    monkeypatch.setattr(tail, "AT_ONCE", 500)
    sizes, share = [], tail._share_between
    monkeypatch.setattr(tail, "_share_between", lambda sums, prompts: sizes.append(len(sums)) or share(sums, prompts))
    assert variance_between(tokens_P, seed=2) == together and max(sizes) == 500 // 60


def test_equal_groups_have_the_textbooks_estimate_and_unequal_ones_the_same_of_copies():
    """(MSB - MSW) / n over itself and MSW, from SciPy's one-way analysis of variance: F = MSB / MSW."""
    generator = np.random.default_rng(3)
    groups = [np.exp(9 + shift + generator.standard_normal(6)) for shift in generator.standard_normal(30)]
    f = stats.f_oneway(*(np.log(group) for group in groups)).statistic
    assert variance_between(groups, seed=0)[0] == pytest.approx((f - 1) / 6 / ((f - 1) / 6 + 1))
    assert variance_between([np.full(3, 7), np.full(5, 7)], seed=0)[0] == 0
    assert variance_between([np.full(3, 7), np.full(5, 70), np.full(2, 9)], seed=0)[0] == 1


def trace_of(tmp_path, groups, correct=None):
    lines = [
        f"{prompt},{i},{tokens}" + (f",{correct[prompt][i]}" if correct else "")
        for prompt, group in enumerate(groups)
        for i, tokens in enumerate(group)
    ]
    path = tmp_path / "made.csv"
    path.write_text("prompt_id,sample_id,tokens" + (",correct\n" if correct else "\n") + "\n".join(lines))
    return Trace(path)


def test_the_tail_of_a_step_lies_where_it_was_put(tmp_path):
    generator = np.random.default_rng(0)
    between = step_tail(trace_of(tmp_path, [[10] * 4, [20] * 4, [300] * 4]), 50, 4, 2.5, generator)
    assert between.longest == 300 and between.between == 1 and between.stragglers == 0
    within = step_tail(trace_of(tmp_path, [[10, 10, 10, 90]] * 3), 50, 4, 2.5, generator)
    assert (within.longest, within.mean, within.between, within.stragglers) == (90, 30, 0, 1)
    both = step_tail(trace_of(tmp_path, [[10] * 4, [50, 50, 50, 90]]), 50, 4, 2.5, generator)
    assert both.between == pytest.approx((60 - both.mean) / (90 - both.mean)) and both.between < 0.5
    same = step_tail(trace_of(tmp_path, [[10] * 4] * 2), 5, 4, 2.5, generator)
    assert (same.longest, same.between) == (10, 0)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_the_share_with_a_signal_is_that_of_all_groups(tmp_path, size):
    """Every choice of `size` of a prompt's rollouts; all of them where the prompt has no more."""
    correct = [[1, 0, 0, 1, 0], [1, 1, 1], [0, 1]]
    trace = trace_of(tmp_path, [[5] * len(row) for row in correct], correct)
    mixed = [
        np.mean([len(set(group)) > 1 for group in itertools.combinations(row, min(size, len(row)))]) for row in correct
    ]
    assert signal_share(trace, size) == pytest.approx(np.mean(mixed))
    generator = np.random.default_rng(0)
    _, correct_BG = trace.draw_rollouts(trace.draw_prompts(4000, generator), size, generator)
    assert signal_share(trace, size) == pytest.approx((np.ptp(correct_BG.astype(int), axis=1) > 0).mean(), abs=0.03)
    assert signal_share(trace_of(tmp_path, [[5, 6]]), size) is None


def test_the_spread_is_students():
    draws = np.random.default_rng(0).standard_normal(9)
    low, high = stats.t.interval(0.95, 8, scale=draws.std(ddof=1))
    assert standard_spread(draws) == pytest.approx((high - low) / 2)
