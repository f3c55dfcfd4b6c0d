"""Patches 3 and 4: whatever number of samples a rollout has, all ranks run the same micro-batches over all samples."""

import json
from argparse import Namespace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer


def split_over_ranks(num_samples, ranks, micro_batch):
    """Sample counts of the micro-batches that each rank gets from the experience maker and OpenRLHF's launcher."""
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    maker.args = Namespace(
        train=Namespace(dynamic_batch_enable=False),
        rollout=Namespace(micro_batch_size=micro_batch),
        actor=Namespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=Namespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    maker.tokenizer = SimpleNamespace(pad_token_id=0)
    sizes = [len(batch.index) for batch in maker.split_rollout_samples([Experience() for _ in range(num_samples)])]
    chunk = -(-len(sizes) // ranks)
    return [sizes[rank * chunk : (rank + 1) * chunk] for rank in range(ranks)]


@given(st.integers(1, 8).flatmap(lambda ranks: st.tuples(st.just(ranks), st.integers(ranks, 200))), st.integers(1, 16))
def test_every_rank_gets_an_even_share_in_as_many_forward_passes(ranks_and_samples, micro_batch):
    ranks, num_samples = ranks_and_samples
    shares = split_over_ranks(num_samples, ranks, micro_batch)
    totals = [sum(share) for share in shares]
    assert sum(totals) == num_samples and max(totals) - min(totals) <= 1
    assert len({len(share) for share in shares}) == 1
    assert all(0 < size <= max(micro_batch, 2) for share in shares for size in share)


@given(
    ranks=st.integers(1, 6),
    share=st.integers(1, 60),
    more=st.integers(0, 6),
    micro_batch=st.integers(1, 12),
    accumulated=st.integers(1, 3),
    full_steps=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_every_rank_trains_all_its_samples_in_as_many_micro_batches(
    ranks, share, more, micro_batch, accumulated, full_steps, shuffle
):
    counts = [share + (rank < more % ranks) for rank in range(ranks)]
    train_batch_size = ranks * micro_batch * accumulated
    args = Namespace(
        rollout=Namespace(batch_size=train_batch_size * full_steps, n_samples_per_prompt=1),
        train=Namespace(batch_size=train_batch_size),
    )
    plans = [plan(args, counts, count, micro_batch, shuffle) for count in counts]
    for count, (batches, steps_batches) in zip(counts, plans):
        assert sorted(sum(batches, [])) == list(range(count)) and all(batches)
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        assert max(map(len, batches)) <= max(micro_batch, 2)
    assert len({(len(batches), per_step) for batches, per_step in plans}) == 1
    batches, per_step = plans[0]
    steps, rest = divmod(len(batches), per_step)
    assert rest == 0
    if sum(counts) % train_batch_size == 0:
        assert steps == min(full_steps, sum(counts) // train_batch_size)
    assert 1 <= steps <= max(full_steps, 1)


def plan(args, counts, count, micro_batch, shuffle):
    """Micro-batches of the rank with `count` samples, and how many make an optimizer step."""
    buffer = NaiveReplayBuffer(micro_batch)
    buffer.items = list(range(count))
    mesh = {"dp": SimpleNamespace(get_group=lambda: None)}
    extremes = torch.tensor([max(counts), -min(counts)])
    strategy = SimpleNamespace(args=args, ds_device_mesh=mesh, all_reduce=lambda data, op: extremes)
    with mock.patch.object(torch.distributed, "get_world_size", lambda group: len(counts)):
        sampler, per_step = buffer.micro_batch_sampler(strategy, shuffle)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches, per_step


@pytest.mark.parametrize("num_samples", [16, 8], ids=["full rollout", "half of one"])
def test_whole_training_batches_are_sampled_as_unpatched(num_samples):
    """The same micro-batches from the same random state, epoch after epoch; two of them to an optimizer step."""
    buffer = NaiveReplayBuffer(4)
    buffer.items = list(range(num_samples))
    strategy = SimpleNamespace(
        args=Namespace(rollout=Namespace(batch_size=4, n_samples_per_prompt=4), train=Namespace(batch_size=8)),
        all_reduce=lambda data, op: data,
        ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
    )
    with mock.patch.object(torch.distributed, "get_world_size", lambda group: 1):
        sampler, accumulated = buffer.micro_batch_sampler(strategy, shuffle=True)
    loaders = [
        torch.utils.data.DataLoader(buffer, batch_size=4, shuffle=True, drop_last=True, collate_fn=list),
        torch.utils.data.DataLoader(buffer, batch_sampler=sampler, collate_fn=list),
    ]
    orders = []
    for loader in loaders:
        torch.manual_seed(3)
        orders.append([list(loader) for _ in range(3)])
    assert orders[0] == orders[1] and accumulated == 2


DYNAMIC = """
import os
from types import SimpleNamespace as N
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer


def sample(i):
    length = torch.tensor(LENGTH + 7 * i % 11)
    return N(total_length=length, action_mask=torch.ones(length))


def all_reduce(data, op):
    dist.all_reduce(data, op=dist.ReduceOp.MAX)
    return data


def plan(count):
    strategy = N(
        args=N(
            train=N(batch_size=16, max_tokens_per_gpu=40),
            rollout=N(batch_size=8, n_samples_per_prompt=4),
            ds=N(ring_attn_size=1, tensor_parallel_size=1),
        ),
        ds_device_mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)),
        all_reduce=all_reduce,
    )
    buffer = NaiveReplayBuffer(1, dynamic_batch=True)
    buffer.items = [sample(i) for i in range(count)]
    buffer.setup_dynamic_batch(strategy)
    trained = sorted(sum(buffer.dynamic_indices, []))
    assert trained == list(range(len(trained)))
    return [len(trained), sum(buffer.dynamic_optimizer_step), len(buffer)]


rank = int(os.fork() == 0)
dist.init_process_group("gloo", init_method="file://" + STORE, rank=rank, world_size=2)
os.write(1, f"PLANS {[plan(counts[rank]) for counts in COUNTS]}\\n".encode())
dist.barrier()
if rank:
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("length", [5, 25], ids=["short samples", "a micro-batch each"])
def test_dynamic_batches_hold_all_samples(tmp_path, run_in_tree, length):
    """Patch 4: two ranks, a full rollout of 32 samples in two optimizer steps, half of one; then 14 and 79 samples."""
    trained = {}
    for tree in ("cpu-base", "cpu-patched"):
        counts = [[16, 16], [8, 8], [7, 7], [40, 39]]
        script = f"STORE, COUNTS, LENGTH = {str(tmp_path / f'{tree}-{length}')!r}, {counts}, {length}\n" + DYNAMIC
        output = run_in_tree(tree, "-c", script)
        ranks = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("PLANS ")]
        for plans in zip(*ranks):
            assert plans[0][1:] == plans[1][1:]  # as many optimizer steps and micro-batches on both ranks
        trained[tree] = [(sum(samples for samples, _, _ in plans), plans[0][1]) for plans in zip(*ranks)]
    assert trained["cpu-base"] == [(32, 2), (16, 1), (0, 0), (32, 2)]
    assert trained["cpu-patched"] == [(32, 2), (16, 1), (14, 1), (79, 2)]
