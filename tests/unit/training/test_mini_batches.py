"""Which samples a rollout's optimizer steps train; tests/deepspeed has the weights in the end."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.training.mini_batches import deal_at_random, make_old_log_probs


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


def sample_of(tokens):
    mask = torch.ones(tokens)
    return SimpleNamespace(total_length=torch.tensor(tokens + 3), action_mask=mask, action_log_probs=None)


@pytest.mark.parametrize("others, passes", [([5], 3), ([9], 5), ([2], 2)])
def test_every_rank_makes_as_many_forward_passes_and_each_sample_gets_its_own_log_probs(others, passes):
    samples, made = [sample_of(tokens) for tokens in (4, 1, 7, 2, 5)], []

    def collate(items):
        longest = max(len(item.action_mask) for item in items)
        rows = [[len(item.action_mask)] * longest for item in items]
        made.append([len(item.action_mask) for item in items])
        return SimpleNamespace(
            sequences=torch.tensor(rows), action_mask="mask", attention_mask="attention", mm_train_inputs=[]
        )

    def forward(sequences, action_mask, attention_mask, mm_train_inputs_list):
        assert (action_mask, attention_mask, mm_train_inputs_list) == ("mask", "attention", [])
        return -sequences.float()

    strategy = SimpleNamespace(
        all_gather=lambda count: torch.tensor([count.item(), *others]),
        args=SimpleNamespace(rollout=SimpleNamespace(micro_batch_size=2)),
    )
    trainer = SimpleNamespace(replay_buffer=SimpleNamespace(collate_fn=collate))
    make_old_log_probs(SimpleNamespace(forward=forward, strategy=strategy, trainer=trainer), samples)
    assert len(made) == passes and sum(made, []) == [7, 5, 4, 2, 1]
    for sample in samples:
        tokens = len(sample.action_mask)
        assert sample.action_log_probs.tolist() == [-tokens] * tokens
