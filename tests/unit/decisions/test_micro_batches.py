"""Samples by their lengths; that OpenRLHF trains these micro-batches is tested with actors and driver."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.micro_batches import LEAST_SPARED, ByLength, deal, even_bounds, worthwhile_parts


def padded(lengths, bounds):
    """Padded tokens of each part of samples, longest first."""
    return [(end - start) * lengths[start] for start, end in pairwise(bounds)]


def test_samples_are_sorted_inside_each_optimizer_step():
    batches = ByLength([4, 1, 0, 2, 3], [5, 1, 9, 3, 7], micro_batches=3, per_step=2)
    assert len(batches) == 3
    assert list(batches) == [[4], [0, 1], [2, 3]]


def test_short_samples_share_a_micro_batch_with_many_others():
    lengths = [400, 100, 60, 60, 40, 40, 40, 40]
    batches = ByLength(range(8), lengths, micro_batches=4, per_step=4)
    assert list(batches) == [[0], [1], [2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "samples, micro_batches, per_step, steps",
    [(12, 4, 4, [12]), (12, 4, 2, [6, 6]), (10, 4, 3, [7, 3]), (10, 3, 5, [10])],
)
def test_optimizer_steps_have_the_samples_that_openrlhf_gives_them(samples, micro_batches, per_step, steps):
    batches = list(ByLength(range(samples), [1] * samples, micro_batches, per_step))
    found = [sum(batches[first : first + per_step], []) for first in range(0, micro_batches, per_step)]
    assert [len(step) for step in found] == steps
    assert sum(found, []) == [*range(samples)]


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9), parts=st.integers(1, 9))
def test_no_cut_has_a_smaller_largest_part(lengths, parts):
    lengths, parts = sorted(lengths, reverse=True), min(parts, len(lengths))
    cuts = [[0, *cut, len(lengths)] for cut in combinations(range(1, len(lengths)), parts - 1)]
    bounds = even_bounds(lengths, parts)
    assert bounds in cuts
    assert max(padded(lengths, bounds)) == min(max(padded(lengths, cut)) for cut in cuts)


@pytest.mark.parametrize(
    "lengths, parts",
    [
        ([100] * 8, 2),  # no padding to spare
        ([800] * 2 + [10] * 30, 2),  # the long ones, and the short ones
        ([800] * 2 + [100] * 6 + [10] * 24, 3),  # spares 24 * 90 of a full one's 16 * 800
        ([800] * 2 + [70] * 6 + [10] * 24, 2),  # 24 * 60 is less than an eighth
    ],
)
def test_a_micro_batch_more_has_to_spare_enough_padding(lengths, parts):
    assert worthwhile_parts(lengths, 2, 8) == parts


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12), least=st.integers(1, 12), most=st.integers(1, 12)
)
def test_no_other_number_of_micro_batches_costs_less(lengths, least, most):
    """All of them are tried here; the examples above check what one costs."""
    lengths, least = sorted(lengths, reverse=True), min(least, len(lengths))
    most = min(max(least, most), len(lengths))
    full = lengths[0] * -(-len(lengths) // least)
    costs = {
        parts: sum(padded(lengths, even_bounds(lengths, parts))) + parts * full * LEAST_SPARED
        for parts in range(least, most + 1)
    }
    assert costs[worthwhile_parts(lengths, least, most)] == min(costs.values())


def test_long_samples_are_dealt_one_way_and_back():
    order = deal([10, 80, 30, 60, 50, 20, 70, 40], 2)
    assert order == [1, 4, 7, 0, 6, 3, 2, 5]
