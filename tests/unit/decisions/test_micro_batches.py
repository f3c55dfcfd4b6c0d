"""Samples by their lengths; that OpenRLHF's own micro-batches are sorted so is tested with actors and driver."""

import pytest

from openrlhf_sagc.decisions.micro_batches import ByLength, deal, optimizer_step_bounds


def test_samples_are_sorted_inside_each_optimizer_step():
    lengths = [5, 1, 9, 3, 7]
    assert list(ByLength([4, 1, 0, 2, 3], lengths, [0, 2, 5])) == [4, 1, 2, 0, 3]


@pytest.mark.parametrize(
    "samples, micro_batches, per_step, bounds",
    [(12, 4, 4, [0, 12]), (12, 4, 2, [0, 6, 12]), (10, 4, 3, [0, 7, 10]), (10, 3, 5, [0, 10])],
)
def test_optimizer_steps_begin_where_their_first_micro_batch_does(samples, micro_batches, per_step, bounds):
    assert optimizer_step_bounds(samples, micro_batches, per_step) == bounds


def test_long_samples_are_dealt_one_way_and_back():
    order = deal([10, 80, 30, 60, 50, 20, 70, 40], 2)
    assert order == [1, 4, 7, 0, 6, 3, 2, 5]
