import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib.evaluation import quality


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(right_N, data):
    k = data.draw(st.integers(1, len(right_N)))
    subsets = list(itertools.combinations(right_N, k))
    assert quality.pass_at_k(len(right_N), sum(right_N), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_many_samples():
    assert quality.pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5)
    assert quality.pass_at_k(100_000, 50_000, 10) == pytest.approx(1 - 0.5**10, abs=1e-4)
    assert [quality.pass_at_k(4, c, 4) for c in range(5)] == [0, 1, 1, 1, 1]
    assert quality.powers_of_two(12) == [1, 2, 4, 8, 12] and quality.powers_of_two(8) == [1, 2, 4, 8]


def majority(votes):
    counts = Counter(vote for vote in votes if vote is not None)
    return (counts[0] == max(counts.values())) / Counter(counts.values())[max(counts.values())] if counts else 0


@given(st.lists(st.sampled_from([0, 0, 1, 2, 3, None]), min_size=1, max_size=9), st.data())
def test_majority_at_k_is_the_mean_over_all_subsets(votes_N, data):
    k = data.draw(st.integers(1, len(votes_N)))
    subsets = list(itertools.combinations(votes_N, k))
    assert quality.majority_of(votes_N, k) == pytest.approx(sum(map(majority, subsets)) / len(subsets))


def test_majority_of_many_samples():
    wrong = tuple(range(1, 39))
    assert 0 < quality.majority_at_k(60, wrong, 1024 - 60 - sum(wrong), 64) <= 1
    assert quality.majority_at_k(3, (3,), 2, 8) == 0.5  # a tie
    assert quality.majority_at_k(0, (), 4, 2) == 0


def graded(right_PN, **fields):
    return [{"correct": right_N, **fields} for right_N in right_PN]


def test_equal_models_do_not_differ():
    figures = quality.figures_of_problems(graded([[True, False], [True, True]] * 20), [1, 2])
    for entry in quality.compare(figures, figures).values():
        assert entry["difference"] == entry["low"] == entry["high"] == 0 and entry["p_value"] == 1
        assert (entry["wins"], entry["ties"], entry["losses"]) == (0, 40, 0)


def test_pairing_finds_a_small_difference_between_problems_that_differ_much():
    rng = np.random.default_rng(0)
    first = (rng.random((40, 1)) < 0.5).repeat(8, axis=1)  # a problem is always or never solved
    second = first.copy()
    second[:10] = True  # ten problems more, some of them solved before
    figures = [quality.figures_of_problems(graded(x.tolist()), [1]) for x in (first, second)]
    entry = quality.compare(*figures)["pass@1"]
    gained = int((~first[:10, 0]).sum())
    assert entry["difference"] == pytest.approx(gained / 40) and entry["wins"] == gained and entry["losses"] == 0
    assert entry["p_value"] == pytest.approx(2 * 0.5**gained, rel=0.4)
    assert 0 < entry["low"] < entry["difference"] < entry["high"]


def test_exact_permutation_test_of_few_problems():
    first, second = graded([[False]] * 5), graded([[True]] * 5)
    entry = quality.compare(*(quality.figures_of_problems(rows, [1]) for rows in (first, second)))["pass@1"]
    assert entry["p_value"] == pytest.approx(2 / 2**5)


def test_a_single_problem_has_neither_interval_nor_p_value():
    first, second = (quality.figures_of_problems(graded([[x]]), [1]) for x in (False, True))
    entry = quality.compare(first, second)["pass@1"]
    assert entry["difference"] == 1 and entry["wins"] == 1
    assert entry["low"] is entry["high"] is entry["p_value"] is None


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng, covered = np.random.default_rng(1), 0
    for _ in range(60):
        low, high = quality.bootstrap_interval(np.mean, rng.random((50, 1)))
        covered += low[0] <= 0.5 <= high[0]
    assert 51 <= covered <= 60


def test_lengths_are_pooled_over_problems():
    rows = graded([[True] * 4] * 3, tokens=[1, 2, 3, 94], truncated=[False, False, False, True])
    result = quality.summary(rows, quality.figures_of_problems(rows, [1]))
    assert result["tokens mean"]["value"] == 25 and result["tokens median"]["value"] == 2.5
    assert result["tokens max"] == {"value": 94} and result["truncated"]["value"] == 0.25
    assert result["tokens p90"]["low"] <= result["tokens p90"]["value"] <= result["tokens p90"]["high"]
    one = quality.summary(rows[:1], quality.figures_of_problems(rows[:1], [1]))
    assert one["pass@1"] == {"value": 1.0, "low": None, "high": None}
