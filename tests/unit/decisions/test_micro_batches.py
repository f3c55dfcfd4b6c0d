"""Samples by their lengths; that OpenRLHF trains these micro-batches is tested with actors and driver."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.micro_batches import (
    LEAST_SPARED,
    ByLength,
    agreed_parts,
    cut_shares,
    deal,
    even_bounds,
    like_a_step,
    worthwhile_parts,
)


def padded(lengths, bounds):
    """Padded tokens of each part of samples, longest first."""
    return [(end - start) * lengths[start] for start, end in pairwise(bounds)]


def test_samples_are_sorted_inside_each_optimizer_step():
    batches = ByLength([4, 1, 0, 2, 3], [5, 1, 9, 3, 7], even=3, per_step=2, parts=2)
    assert len(batches) == 3
    assert list(batches) == [[4], [0, 1], [2, 3]]


def test_short_samples_share_a_micro_batch_with_many_others():
    lengths = [400, 100, 60, 60, 40, 40, 40, 40]
    batches = ByLength(range(8), lengths, even=4, per_step=4, parts=4)
    assert list(batches) == [[0], [1], [2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "samples, even, per_step, parts, steps",
    [
        (12, 4, 4, 4, [(12, 4)]),
        (12, 4, 2, 2, [(6, 2), (6, 2)]),
        (10, 4, 3, 3, [(7, 3), (3, 1)]),
        (12, 4, 4, 9, [(12, 9)]),
        (12, 4, 2, 5, [(6, 5), (6, 5)]),
        (10, 4, 3, 7, [(7, 7), (3, 2)]),  # the last step has a third of the even cut, and of 7
    ],
)
def test_optimizer_steps_have_the_samples_that_openrlhf_gives_them(samples, even, per_step, parts, steps):
    sampler = ByLength(range(samples), [1] * samples, even, per_step, parts)
    batches, found = list(sampler), []
    assert len(batches) == len(sampler) and sum(batches, []) == [*range(samples)]
    for first in range(0, len(batches), parts):  # as OpenRLHF counts them
        found.append((sum(map(len, batches[first : first + parts])), len(batches[first : first + parts])))
    assert found == steps


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
    assert worthwhile_parts(lengths, 2) == parts


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12), least=st.integers(1, 12))
def test_no_other_number_of_micro_batches_costs_less(lengths, least):
    """All of them are tried here; the examples above check what one costs."""
    lengths, least = sorted(lengths, reverse=True), min(least, len(lengths))
    full = lengths[0] * -(-len(lengths) // least)
    costs = {
        parts: sum(padded(lengths, even_bounds(lengths, parts))) + parts * full * LEAST_SPARED
        for parts in range(least, len(lengths) + 1)
    }
    assert costs[worthwhile_parts(lengths, least)] == min(costs.values())


LONG_AND_SHORT = [800] * 2 + [100] * 6 + [10] * 24  # wants three micro-batches instead of two


@pytest.mark.parametrize(
    "other, parts",
    [
        ([100] * 32, 3),  # wants two
        ([800] * 2 + [400] * 4 + [150] * 10 + [10] * 16, 4),
        ([100] * 2, 2),  # has no samples for more
    ],
)
def test_ranks_make_as_many_micro_batches_as_the_one_that_wants_most(other, parts):
    for shares in ([LONG_AND_SHORT, other], [other, LONG_AND_SHORT]):
        assert agreed_parts(shares, 2) == parts
        assert cut_shares(shares, 2) == [even_bounds(share, parts) for share in shares]


@given(samples=st.integers(1, 60), even=st.integers(1, 60), per_step=st.integers(1, 60))
def test_every_optimizer_step_but_the_last_has_as_many_samples_as_stand_for_one(samples, even, per_step):
    """So each has a sample for as many micro-batches as these are cut into."""
    even = min(even, samples)
    per_step = min(per_step, even)
    stands = like_a_step([*range(samples, 0, -1)], even, per_step)
    assert stands[0] == samples and per_step <= len(stands) and stands == sorted(set(stands), reverse=True)
    batches = list(ByLength(range(samples), [1] * samples, even, per_step, len(stands)))
    assert all(batches)


def test_a_step_is_stood_for_by_samples_of_all_lengths():
    assert like_a_step([9, 8, 7, 6, 5, 4, 3, 2], even=4, per_step=4) == [9, 8, 7, 6, 5, 4, 3, 2]
    assert like_a_step([9, 8, 7, 6, 5, 4, 3, 2], even=4, per_step=2) == [9, 7, 5, 3]


def test_long_samples_are_dealt_one_way_and_back():
    order = deal([10, 80, 30, 60, 50, 20, 70, 40], 2)
    assert order == [1, 4, 7, 0, 6, 3, 2, 5]
