"""Optimizer steps of the samples that OpenRLHF's sampler gives them, cut into micro-batches by length."""

from itertools import islice
from types import SimpleNamespace
from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_sagc.actors.micro_batches import sort_micro_batches


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
    with mock.patch("openrlhf.trainer.ppo_utils.replay_buffer.get_accelerator"), mock.patch("torch.device"):
        buffer = NaiveReplayBuffer(size)
    buffer.items = [SimpleNamespace(total_length=torch.tensor(length)) for length in lengths]
    rollout = SimpleNamespace(batch_size=len(lengths), n_samples_per_prompt=1)
    args = SimpleNamespace(rollout=rollout, train=SimpleNamespace(batch_size=len(lengths)))
    strategy = SimpleNamespace(all_gather=lambda counts: counts, accumulated_gradient=per_step, args=args)
    torch.manual_seed(seed)
    theirs = list(buffer.micro_batch_sampler(strategy, shuffle))
    torch.manual_seed(seed)
    ours = list(sort_micro_batches(buffer, strategy, shuffle))
    assert len(ours) == len(theirs) and all(ours)
    ends = [place for place, ends in enumerate(buffer.ends_optimizer_step, start=1) if ends]
    for start, end in zip([0, *ends], ends):
        step = [sample for batch in ours[start:end] for sample in batch]
        assert sorted(step) == sorted(sample for batch in theirs[start:end] for sample in batch)
        assert [lengths[sample] for sample in step] == sorted((lengths[sample] for sample in step), reverse=True)
        even = even_cut(step, [len(batch) for batch in theirs[start:end]])
        assert most_tokens(ours[start:end], lengths) <= most_tokens(even, lengths)


def even_cut(samples, sizes):
    left = iter(samples)
    return [list(islice(left, size)) for size in sizes]


def most_tokens(batches, lengths):
    """Padded tokens of the largest micro-batch, which memory has to hold."""
    return max(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)
