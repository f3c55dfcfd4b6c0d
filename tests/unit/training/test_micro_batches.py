"""Optimizer steps of the samples that OpenRLHF's sampler gives them, cut into micro-batches by length."""

from itertools import islice
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_sagc.training.micro_batches import LengthBuffer, make_old_log_probs


@given(
    lengths=st.lists(st.integers(1, 50), min_size=2, max_size=40),
    size=st.integers(1, 6),
    per_step=st.integers(1, 5),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_optimizer_steps_are_those_of_openrlhf_in_as_many_micro_batches_longest_first(
    lengths, size, per_step, seed, shuffle
):
    buffer, strategy = a_rank(lengths, size, per_step)
    torch.manual_seed(seed)
    theirs = list(buffer.micro_batch_sampler(strategy, shuffle))
    torch.manual_seed(seed)
    buffer = LengthBuffer(buffer)
    ours = list(buffer.micro_batch_sampler(strategy, shuffle))
    assert len(ours) == len(theirs) and all(ours)
    ends = [place for place, ends in enumerate(buffer.optimizer_step_ends(strategy, len(ours)), start=1) if ends]
    for start, end in zip([0, *ends], ends):
        step = [sample for batch in ours[start:end] for sample in batch]
        assert sorted(step) == sorted(sample for batch in theirs[start:end] for sample in batch)
        assert [lengths[sample] for sample in step] == sorted((lengths[sample] for sample in step), reverse=True)
        even = even_cut(step, [len(batch) for batch in theirs[start:end]])
        assert most_tokens(ours[start:end], lengths) <= most_tokens(even, lengths)


@pytest.mark.parametrize(
    "wanted_elsewhere, fewest_elsewhere, sizes",
    [
        (1, 32, [2, 6, 24]),  # an even cut has two
        (4, 32, [1, 1, 6, 24]),  # another rank wants more
        (8, 3, [2, 6, 24]),  # another rank has no samples for more
    ],
)
def test_a_bucket_has_as_many_micro_batches_on_every_rank(wanted_elsewhere, fewest_elsewhere, sizes):
    buffer, strategy = a_rank([800] * 2 + [100] * 6 + [10] * 24, size=16, per_step=8)
    elsewhere = torch.tensor([wanted_elsewhere, -fewest_elsewhere])
    strategy.all_reduce = lambda counts, op: {"max": torch.maximum}[op](counts, elsewhere)
    buffer = LengthBuffer(buffer)
    buffer.has_bucket = True
    batches = list(buffer.micro_batch_sampler(strategy, shuffle=True))
    assert [len(batch) for batch in batches] == sizes


def a_rank(lengths, size, per_step):
    """OpenRLHF's replay buffer with samples of these lengths, and the strategy of a rank whose samples are all."""
    with mock.patch("openrlhf.trainer.ppo_utils.replay_buffer.get_accelerator"), mock.patch("torch.device"):
        buffer = NaiveReplayBuffer(size)
    buffer.items = [SimpleNamespace(total_length=torch.tensor(length)) for length in lengths]
    rollout = SimpleNamespace(batch_size=len(lengths), n_samples_per_prompt=1)
    args = SimpleNamespace(rollout=rollout, train=SimpleNamespace(batch_size=len(lengths), dynamic_batch_enable=False))
    strategy = SimpleNamespace(all_gather=lambda counts: counts, accumulated_gradient=per_step, args=args)
    return buffer, strategy


def even_cut(samples, sizes):
    left = iter(samples)
    return [list(islice(left, size)) for size in sizes]


def most_tokens(batches, lengths):
    """Padded tokens of the largest micro-batch, which memory has to hold."""
    return max(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)


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
