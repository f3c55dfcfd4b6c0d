"""Which samples a rollout's optimizer steps train; tests/deepspeed has the weights in the end."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.training.streamed_training import deal_at_random


@given(buckets=st.lists(st.integers(3, 20), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_every_step_gets_a_sample_of_each_bucket_and_sizes_stay_within_one(buckets, seed):
    torch.manual_seed(seed)
    sizes = [0, 0, 0]
    for size in buckets:
        parts = deal_at_random([*range(size)], sizes)
        assert all(parts) and sorted(sample for part in parts for sample in part) == [*range(size)]
        sizes = [size + len(part) for size, part in zip(sizes, parts)]
        assert max(sizes) - min(sizes) <= 1


def test_a_sample_is_as_likely_in_each_step():
    """Of 5 samples the first of two steps gets 3; binomial standard deviation 0.016."""
    torch.manual_seed(0)
    first = Counter(sample for _ in range(1000) for sample in deal_at_random([*range(5)], [4, 4])[0])
    assert all(abs(first[sample] / 1000 - 0.6) < 0.08 for sample in range(5))
