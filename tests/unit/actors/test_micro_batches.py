"""Optimizer steps of the samples that OpenRLHF's sampler gives them, cut into micro-batches by length."""

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
def test_micro_batches_are_those_of_openrlhf_sorted_inside_each_optimizer_step(lengths, size, per_step, seed, shuffle):
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
    assert [len(batch) for batch in ours] == [len(batch) for batch in theirs]
    ends = [place for place, ends in enumerate(buffer.ends_optimizer_step, start=1) if ends]
    for start, end in zip([0, *ends], ends):
        step = [sample for batch in ours[start:end] for sample in batch]
        assert sorted(step) == sorted(sample for batch in theirs[start:end] for sample in batch)
        assert [lengths[sample] for sample in step] == sorted((lengths[sample] for sample in step), reverse=True)
