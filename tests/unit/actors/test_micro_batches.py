"""Optimizer steps of the samples that OpenRLHF's sampler gives them, cut into micro-batches by length."""

from itertools import islice, pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_sagc.actors.micro_batches import LengthBuffer


@given(
    lengths=st.lists(st.integers(1, 50), min_size=2, max_size=40),
    size=st.integers(1, 6),
    per_step=st.integers(1, 5),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_optimizer_steps_are_those_of_openrlhf_in_no_fewer_micro_batches_longest_first(
    lengths, size, per_step, seed, shuffle
):
    buffer, strategy = a_rank(lengths, size, per_step)
    torch.manual_seed(seed)
    theirs = list(buffer.micro_batch_sampler(strategy, shuffle))
    their_ends = ends_of(buffer, strategy, theirs)
    torch.manual_seed(seed)
    buffer = LengthBuffer(buffer)
    strategy.accumulated_gradient = buffer.plan(strategy, per_step)
    ours = list(buffer.micro_batch_sampler(strategy, shuffle))
    our_ends = ends_of(buffer, strategy, ours)
    assert all(ours) and len(our_ends) == len(their_ends)
    for ends, their in zip(pairwise([0, *our_ends]), pairwise([0, *their_ends])):
        step, their_step = ours[slice(*ends)], theirs[slice(*their)]
        assert len(step) >= len(their_step)
        samples = sum(step, [])
        assert sorted(samples) == sorted(sum(their_step, []))
        assert [lengths[sample] for sample in samples] == sorted((lengths[s] for s in samples), reverse=True)
        even = even_cut(samples, [len(batch) for batch in their_step])
        assert most_tokens(step, lengths) <= most_tokens(even, lengths)


@pytest.mark.parametrize(
    "wanted_elsewhere, fewest_elsewhere, sizes",
    [
        (1, 32, [2, 6, 24]),  # an even cut has two
        (4, 32, [1, 1, 6, 24]),  # another rank wants more
        (8, 3, [2, 6, 24]),  # another rank has no samples for more
    ],
)
def test_every_rank_makes_as_many_micro_batches(wanted_elsewhere, fewest_elsewhere, sizes):
    buffer, strategy = a_rank([800] * 2 + [100] * 6 + [10] * 24, size=16, per_step=8)
    elsewhere = torch.tensor([wanted_elsewhere, -fewest_elsewhere])
    strategy.all_reduce = lambda counts, op: {"max": torch.maximum}[op](counts, elsewhere)
    buffer = LengthBuffer(buffer)
    assert buffer.plan(strategy, 8) == len(sizes)
    assert [len(batch) for batch in buffer.micro_batch_sampler(strategy, shuffle=True)] == sizes


def test_a_step_of_several_is_cut_as_finely_as_one_of_its_share_of_all_lengths():
    buffer, strategy = a_rank([800] * 4 + [100] * 12 + [10] * 48, size=16, per_step=2)
    buffer = LengthBuffer(buffer)
    assert buffer.plan(strategy, 2) == 3
    batches = list(buffer.micro_batch_sampler(strategy, shuffle=True))
    assert [sum(map(len, batches[first : first + 3])) for first in (0, 3)] == [32, 32] and len(batches) == 6


def a_rank(lengths, size, per_step):
    """OpenRLHF's replay buffer with samples of these lengths, and the strategy of a rank whose samples are all."""
    with mock.patch("openrlhf.trainer.ppo_utils.replay_buffer.get_accelerator"), mock.patch("torch.device"):
        buffer = NaiveReplayBuffer(size)
    buffer.items = [SimpleNamespace(total_length=torch.tensor(length)) for length in lengths]
    rollout = SimpleNamespace(batch_size=len(lengths), n_samples_per_prompt=1)
    args = SimpleNamespace(rollout=rollout, train=SimpleNamespace(batch_size=len(lengths), dynamic_batch_enable=False))
    strategy = SimpleNamespace(
        all_gather=lambda counts: counts,
        all_reduce=lambda counts, op: counts,
        accumulated_gradient=per_step,
        args=args,
    )
    return buffer, strategy


def ends_of(buffer, strategy, batches):
    """Places behind the last micro-batch of each optimizer step."""
    return [place for place, ends in enumerate(buffer.optimizer_step_ends(strategy, len(batches)), start=1) if ends]


def even_cut(samples, sizes):
    left = iter(samples)
    return [list(islice(left, size)) for size in sizes]


def most_tokens(batches, lengths):
    """Padded tokens of the largest micro-batch, which memory has to hold."""
    return max(len(batch) * max(lengths[sample] for sample in batch) for batch in batches)
