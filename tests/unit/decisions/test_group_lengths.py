"""Groups of lengths as arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.group_lengths import (
    is_finite,
    lengths_by_size,
    medians,
    ratios_to,
    reaches_ratio,
    unfinished_by_size,
)

lengths = st.floats(0, 1e300) | st.integers(0, 10**6)
groups_of_lengths = st.lists(st.lists(lengths, min_size=1, max_size=9), max_size=12)


@given(groups_of_lengths)
def test_every_group_is_in_the_array_of_its_size_and_what_runs_beside_it(groups):
    by_size = lengths_by_size(groups)
    assert sorted(by_size) == sorted({len(group) for group in groups})
    for size, array in by_size.items():
        assert array.tolist() == [group for group in groups if len(group) == size]
    running = [[length > 10 for length in group] for group in groups]
    unfinished = unfinished_by_size(groups, running)
    assert all(np.array_equal(unfinished[size], array > 10) for size, array in by_size.items())


@given(groups_of_lengths)
def test_medians_ratios_and_stragglers_are_those_of_numpy(groups):
    for array in lengths_by_size(groups).values():
        median = medians(array)
        assert median == pytest.approx(np.median(array, axis=1, keepdims=True))
        ratios, reached = ratios_to(median, array), reaches_ratio(array, median, 2.5)
        assert not np.isnan(ratios).any() and (ratios[array == median] == 1).all()
        assert not reached[array <= median].any()
        assert (reached == ((array > median) & (array >= 2.5 * median))).all()


def test_only_finite_numbers_count_as_lengths():
    assert [is_finite(value, 0.0) for value in (0, 2.5, -1, float("nan"), float("inf"), "3", None)] == [True] * 2 + [
        False
    ] * 5
