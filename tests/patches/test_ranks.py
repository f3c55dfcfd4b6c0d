"""Whatever number of samples a rollout has, all ranks run the same micro-batches over all samples."""

import json
from argparse import Namespace
from types import SimpleNamespace

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
    maker.actor_model_group = SimpleNamespace(_actor_handlers=[None] * ranks, duplicate_actors=1)
    maker.critic_model_group = maker.reward_model_group = maker.initial_model_group = None
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
    full_steps=st.fractions(0, 4, max_denominator=2),
    shuffle=st.booleans(),
)
def test_every_rank_trains_all_its_samples_in_as_many_micro_batches(
    ranks, share, more, micro_batch, accumulated, full_steps, shuffle
):
    counts = [share + (rank < more % ranks) for rank in range(ranks)]
    train_batch_size = 2 * ranks * micro_batch * accumulated
    args = Namespace(
        rollout=Namespace(batch_size=int(train_batch_size * full_steps), n_samples_per_prompt=1),
        train=Namespace(batch_size=train_batch_size, dynamic_batch_enable=False),
    )
    plans = [plan(args, counts, count, micro_batch, 2 * accumulated, shuffle) for count in counts]
    for count, (batches, _) in zip(counts, plans):
        assert sorted(sum(batches, [])) == list(range(count)) and all(batches)
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        assert max(map(len, batches)) <= max(micro_batch, 2)
    assert len({(len(batches), tuple(ends)) for batches, ends in plans}) == 1
    batches, ends = plans[0]
    assert len(ends) == len(batches)
    if full_steps.denominator == 1:
        steps = [i + 1 for i, end in enumerate(ends) if end]
        assert steps[-1] == len(batches)  # what is accumulated never waits for the next rollout
        assert all(step % (2 * accumulated) == 0 for step in steps[:-1])
    else:
        assert ends == [None] * len(batches)


def plan(args, counts, count, micro_batch, accumulated, shuffle):
    """Micro-batches of the rank with `count` samples, and whether each ends an optimizer step."""
    buffer = NaiveReplayBuffer(micro_batch)
    buffer.items = list(range(count))
    strategy = SimpleNamespace(args=args, accumulated_gradient=accumulated, all_gather=lambda _: torch.tensor(counts))
    sampler = buffer.micro_batch_sampler(strategy, shuffle)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches, buffer.optimizer_step_ends(strategy, len(batches))


@pytest.mark.parametrize("num_samples", [16, 8], ids=["full rollout", "half of one"])
def test_whole_training_batches_are_sampled_as_unpatched(num_samples):
    """The same micro-batches from the same random state, epoch after epoch."""
    buffer = NaiveReplayBuffer(4)
    buffer.items = list(range(num_samples))
    args = Namespace(
        rollout=Namespace(batch_size=4, n_samples_per_prompt=4),
        train=Namespace(batch_size=8, dynamic_batch_enable=False),
    )
    strategy = SimpleNamespace(args=args, accumulated_gradient=2, all_gather=lambda counts: counts)
    sampler = buffer.micro_batch_sampler(strategy, shuffle=True)
    loaders = [
        torch.utils.data.DataLoader(buffer, batch_size=4, shuffle=True, drop_last=True, collate_fn=list),
        torch.utils.data.DataLoader(buffer, batch_sampler=sampler, collate_fn=list),
    ]
    orders = []
    for loader in loaders:
        torch.manual_seed(3)
        orders.append([list(loader) for _ in range(3)])
    assert orders[0] == orders[1]
    assert buffer.optimizer_step_ends(strategy, len(sampler)) == [False, True] * (num_samples // 8)


SHORT = """
import json
from types import SimpleNamespace as N
from unittest import mock
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ray import ppo_actor, ppo_critic

args = N(
    actor=N(num_nodes=1, num_gpus_per_node=2),
    ds=N(ring_attn_size=1, tensor_parallel_size=1),
    rollout=N(batch_size=8, n_samples_per_prompt=4, micro_batch_size=8),
    train=N(dynamic_batch_enable=False, batch_size=32),
    algo=N(advantage=N(estimator="group_norm")),
)
actors = N(_actor_handlers=[None] * 2, duplicate_actors=1)
maker = RemoteExperienceMaker(actors, None, None, None, None, N(args=args), N(pad_token_id=0))
batches = [len(batch.index) for batch in maker.split_rollout_samples([Experience() for _ in range(28)])]
half = -(-len(batches) // 2)  # as RayActorGroup.async_run_method_batch deals them out
shares = [sum(batches[:half]), sum(batches[half:])]


def micro_batches(module, cls, samples):
    trainer = cls.__new__(cls)
    trainer.replay_buffer = NaiveReplayBuffer(sample_batch_size=8)
    trainer.replay_buffer.items = list(range(samples))
    trainer.args, trainer.dataloader_pin_memory = args, False
    gathered = mock.Mock(return_value=torch.tensor(shares))
    trainer.strategy = N(args=args, ring_attn_group=None, accumulated_gradient=2, all_gather=gathered)
    with mock.patch.object(module, "DataLoader", side_effect=InterruptedError) as loader:
        try:
            trainer.ppo_train(0.0) if module is ppo_actor else trainer.ppo_train()
        except InterruptedError:
            pass
    loader.call_args.kwargs["collate_fn"] = list
    return [len(batch) for batch in torch.utils.data.DataLoader(*loader.call_args.args, **loader.call_args.kwargs)]


sides = [(ppo_actor, ppo_actor.ActorPPOTrainer), (ppo_critic, ppo_critic.CriticPPOTrainer)]
print(json.dumps([[micro_batches(*side, samples) for samples in shares] for side in sides]))
"""


@pytest.mark.parametrize("tree, sizes", [("cpu-base", [[8, 8], [8]]), ("cpu-patched", [[7, 7], [7, 7]])])
def test_a_short_batch_gives_both_ranks_as_many_micro_batches(run_in_tree, tree, sizes):
    """28 samples in micro-batches of 8. Unpatched, rank 0 waits in its second one for rank 1, which has none."""
    actor, critic = json.loads(run_in_tree(tree, "-c", SHORT).splitlines()[-1])
    assert actor == critic == sizes


DYNAMIC = """
import os
from types import SimpleNamespace as N
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from two_ranks import all_gather, all_reduce

torch.cuda.current_device = lambda: "cpu"  # a line of the unpatched plan, which the CPU series leaves


def sample(i):
    length = torch.tensor(LENGTH + 7 * i % 11)
    return N(total_length=length, action_mask=torch.ones(length))


def plan(count):
    strategy = N(
        args=N(
            train=N(batch_size=16, max_tokens_per_gpu=40, seed=42),
            rollout=N(batch_size=8, n_samples_per_prompt=4),
            ds=N(ring_attn_size=1, tensor_parallel_size=1),
        ),
        ds_device_mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)),
        all_reduce=all_reduce,
        all_gather=all_gather,
    )
    buffer = NaiveReplayBuffer(1, dynamic_batch=True)
    buffer.items = samples = [sample(i) for i in range(count)]
    torch.manual_seed(rank)  # of its own
    buffer.setup_dynamic_batch(strategy)
    trained = sum(buffer.dynamic_indices, [])
    assert set(trained) == set(range(max(trained, default=-1) + 1))
    tokens = max(sum(int(buffer.items[i].total_length) for i in batch) for batch in buffer.dynamic_indices or [[]])
    assert tokens <= 40
    step_of, step = {}, 0
    for batch, ends_step in zip(buffer.dynamic_indices, buffer.dynamic_optimizer_step):
        step_of |= {id(buffer.items[i]): step for i in batch}
        step += ends_step
    by_length = [step_of.get(id(s), -1) for s in sorted(samples, key=lambda s: -s.total_length)]
    return [len(set(trained)), sum(buffer.dynamic_optimizer_step), len(buffer), by_length]


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
    """Two ranks, a full rollout of 32 samples in two optimizer steps; 16, 14, 79 and 64 samples; 3 samples.

    Where samples are a micro-batch each, the rank with one fewer repeats one, rather than that the other exceeds 40 tokens.
    """
    trained = {}
    for tree in ("cpu-base", "cpu-patched"):
        counts = [[16, 16], [8, 8], [7, 7], [40, 39], [32, 32], [2, 1]]
        script = f"STORE, COUNTS, LENGTH = {str(tmp_path / f'{tree}-{length}')!r}, {counts}, {length}\n" + DYNAMIC
        output = run_in_tree(tree, "-c", script)
        ranks = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("PLANS ")]
        for plans in zip(*ranks):
            assert plans[0][1:3] == plans[1][1:3]  # as many optimizer steps and micro-batches on both ranks
            if tree == "cpu-patched":
                steps, (one, other) = plans[0][1], sorted((plan[3] for plan in plans), key=len, reverse=True)
                assert one[: len(other)] == other  # the n-th longest sample of each rank is in the same step
                blocks = [sorted(one[i : i + steps]) for i in range(0, len(one) - steps + 1, steps)]
                assert all(block == list(range(steps)) for block in blocks)
        trained[tree] = [(sum(samples for samples, *_ in plans), plans[0][1]) for plans in zip(*ranks)]
    assert trained["cpu-base"] == [(32, 2), (16, 1), (0, 0), (32, 2), (32, 2), (0, 0)]
    assert trained["cpu-patched"] == [(32, 2), (16, 1), (14, 1), (79, 5), (64, 4), (3, 1)]
