"""Micro-batches and buckets of simulated actors, against those of training, and their seconds against formulas."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from engine_costs import costs_of
from experiences import model_groups, padded_batches_flags, samples_of
from flags import arguments_with
from hypothesis import given
from hypothesis import strategies as st
from lib.simulation.actors import Actors, SimulatedStream, packed_shares, padded_tokens
from lib.simulation.training import SimulatedTraining
from lib.simulation.work import Work
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.utils.seqlen_balancing import get_capped_partitions

import openrlhf_sagc.driver.streaming as streaming
from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.micro_batches import deal
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.decisions.tail_batching import NoTailBatching
from openrlhf_sagc.driver.experience import GroupExperienceMaker
from openrlhf_sagc.training.micro_batches import LengthBuffer

BY_LENGTH = {"old_log_probs": "auto", "micro_batches": "length"}


def actors_of(gpus=1, prompt_tokens=0, costs=None, **work):
    return Actors(
        costs or costs_of(train_per_token=1.0, experience_per_token=1.0),
        Work(**work),
        gpus=gpus,
        prompt_tokens=prompt_tokens,
    )


def group_of(lengths, number=0):
    return Group(number, 0, Prompt("", "", None, 1), len(lengths), len(lengths), samples=lengths)


def replay_buffer(lengths, size):
    """OpenRLHF's buffer of a rank, with samples of these lengths; size: of its micro-batches."""
    with mock.patch("openrlhf.trainer.ppo_utils.replay_buffer.get_accelerator"), mock.patch("torch.device"):
        buffer = NaiveReplayBuffer(size)
    buffer.items = [SimpleNamespace(total_length=torch.tensor(length)) for length in lengths]
    return buffer


def strategy_of(samples, counts, per_step, **calls):
    """A rank's strategy: `counts` are the ranks' samples, `per_step` the micro-batches of an optimizer step."""
    rollout = SimpleNamespace(batch_size=samples, n_samples_per_prompt=1)
    args = SimpleNamespace(rollout=rollout, train=SimpleNamespace(batch_size=samples))
    calls["all_gather"] = lambda _: torch.tensor(counts)
    return SimpleNamespace(accumulated_gradient=per_step, args=args, **calls)


def planner_of(size, samples, prompts, tolerance=None):
    """Steps of groups of this size, without tail batching; tolerance: of dynamic filtering, None for none."""
    settings = {"hold": "samples", "samples": samples, "prompts": prompts, "signal": "tokens", "num_engines": 1}
    controller, sampler = StragglerAwareGroupController([size]), DynamicSampler(tolerance=tolerance)
    return StepPlanner(controller, sampler, NoTailBatching(), None, **settings)


# --- against training ------------------------------------------------------------------------------------------------


@given(
    ranks_and_lengths=st.integers(1, 5).flatmap(
        lambda ranks: st.tuples(st.just(ranks), st.lists(st.integers(1, 99), min_size=ranks, max_size=60))
    ),
    size=st.integers(1, 9),
    micro_batches=st.sampled_from(["length", "shuffled"]),
)
def test_batches_of_the_forward_pass_are_those_of_the_experience_maker(ranks_and_lengths, size, micro_batches):
    ranks, lengths = ranks_and_lengths
    maker = GroupExperienceMaker.__new__(GroupExperienceMaker)
    vars(maker).update(model_groups(ranks), tokenizer=SimpleNamespace(pad_token_id=0))
    maker.args = arguments_with(padded_batches_flags(ranks, size) | {"train.micro_batches": micro_batches})
    theirs = [batch.total_length.tolist() for batch in maker.split_rollout_samples(samples_of(lengths))]
    actors = actors_of(ranks, micro_batches=micro_batches, micro_batch_size=size)
    order = deal(lengths, ranks) if actors.work.by_length else range(len(lengths))
    ours = actors.forward_batches([lengths[place] for place in order])
    assert [batch for rank in ours for batch in rank] == theirs and len(ours) == ranks


@given(
    lengths=st.lists(st.integers(1, 99), min_size=2, max_size=60),
    size=st.integers(1, 9),
    steps=st.integers(1, 3),
    micro_batches=st.sampled_from(["length", "shuffled"]),
    seed=st.integers(0, 5),
)
def test_micro_batches_are_those_of_the_replay_buffer(lengths, size, steps, micro_batches, seed):
    """With the simulator's own order of samples, on one rank of two whose other one has as many or one less."""
    actors = actors_of(2, micro_batches=micro_batches, micro_batch_size=size, optimizer_steps=steps)
    counts = [len(lengths) // 2, len(lengths) - len(lengths) // 2]
    actors._generator = np.random.default_rng(seed)
    ours, _ = actors.micro_batches(lengths)
    buffer = replay_buffer(lengths[: counts[0]], size)
    per_step = -(-(-(-len(lengths) // (2 * size))) // steps)  # as keep_number_of_steps sets it
    strategy = strategy_of(len(lengths), counts, per_step)
    orders = iter([np.random.default_rng(seed).permutation(counts[0]).tolist()])
    with mock.patch("torch.utils.data.RandomSampler", lambda dataset: next(orders)):
        if micro_batches == "length":
            buffer = LengthBuffer(buffer)
        batches = list(buffer.micro_batch_sampler(strategy, shuffle=True))
    assert [[lengths[sample] for sample in batch] for batch in batches] == ours


@given(lengths=st.lists(st.integers(1, 99), min_size=2, max_size=30), size=st.integers(1, 9), rest=st.integers(0, 40))
def test_micro_batches_of_a_bucket_are_those_of_the_replay_buffer(lengths, size, rest):
    """Two ranks; what they gather and reduce is put together from both."""
    actors = actors_of(2, **BY_LENGTH, micro_batch_size=size)
    half, steps = len(lengths) // 2, len(lengths) + rest
    shares = [lengths[:half], lengths[half:]]
    ours = actors.micro_batches(lengths, steps)
    wanted = []  # of both ranks, then what they agree on

    def train(share, all_reduce):
        strategy = strategy_of(steps, [*map(len, shares)], -(-steps // (2 * size)), all_reduce=all_reduce)
        buffer = LengthBuffer(replay_buffer(share, size))
        buffer.has_bucket = True
        return [[share[place] for place in batch] for batch in buffer.micro_batch_sampler(strategy, shuffle=True)]

    for share in shares:
        train(share, lambda counts, op: wanted.append(counts) or counts)
    for share, expected in zip(shares, ours):
        batches = train(share, lambda counts, op: torch.stack(wanted).amax(dim=0))
        assert [sorted(batch) for batch in batches] == [sorted(batch) for batch in expected]


ROOMY = 10**9  # tokens of a batch: it has room for all that a rank has


@given(
    ranks_and_lengths=st.integers(1, 5).flatmap(
        lambda ranks: st.tuples(st.just(ranks), st.lists(st.integers(1, 30_000), min_size=ranks, max_size=40))
    ),
    batch_size=st.integers(5, 40),
    seed=st.integers(0, 5),
)
def test_packed_samples_go_to_ranks_and_optimizer_steps_as_in_dynamic_batches(ranks_and_lengths, batch_size, seed):
    ranks, lengths = ranks_and_lengths
    steps = -(-len(lengths) // batch_size)
    shares = packed_shares(lengths, ranks)
    theirs = get_capped_partitions(lengths, ROOMY, ranks)
    assert sorted(shares) == sorted(sorted((lengths[i] for i in share), reverse=True) for share in theirs)
    actors, counts = actors_of(ranks, optimizer_steps=steps), [len(share) for share in shares]
    actors._generator = np.random.default_rng(seed)
    summed = [sum(share[place] for share in shares if place < len(share)) for place in range(max(counts))]
    strategy = mock.MagicMock(all_gather=lambda _: torch.tensor(counts))
    strategy.all_reduce = lambda own, op: torch.tensor(summed) if op == "sum" else own
    strategy.args.train = SimpleNamespace(batch_size=batch_size, max_tokens_per_gpu=ROOMY, seed=0)
    strategy.args.ds = SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)
    start = torch.from_numpy(np.random.default_rng(seed).random(max(min(steps, *counts), 1)))
    module, tokens = "openrlhf.trainer.ppo_utils.replay_buffer", []
    with (
        mock.patch(f"{module}.get_accelerator", return_value=mock.Mock(current_device_name=lambda: "cpu")),
        mock.patch(f"{module}.dist", mock.Mock(get_world_size=lambda group: ranks)),
        mock.patch(f"{module}.torch.rand", side_effect=lambda *_, **__: start.clone()),
    ):
        for share in shares:
            buffer = NaiveReplayBuffer(1, dynamic_batch=True)
            buffer.items = [SimpleNamespace(total_length=torch.tensor(n), action_mask=torch.ones(1)) for n in share]
            buffer.setup_dynamic_batch(strategy)
            assert all(buffer.dynamic_optimizer_step)
            tokens.append([sum(buffer.items[i].total_length.item() for i in step) for step in buffer.dynamic_indices])
    assert actors.packed_steps(shares) == tokens


@pytest.fixture
def stream_of_training(monkeypatch):
    """stream_of_training(ranks, micro_batch_size) -> training's `Stream`, and the group numbers of its buckets."""
    buckets = []

    def make_bucket(samples):
        buckets.append(list(dict.fromkeys(sample.group for sample in samples)))
        return []

    def make(ranks, micro_batch_size):
        step = {"rollout.batch_size": 12, "rollout.n_samples_per_prompt": 4, "train.batch_size": 48}
        batches = {"train.micro_batch_size": micro_batch_size, "rollout.max_new_tokens": 100}
        maker = SimpleNamespace(
            args=arguments_with(padded_batches_flags(ranks, micro_batch_size) | step | batches),
            actors_make_old_log_probs=True,
            received=[],
            make_bucket=make_bucket,
            actor_model_group=mock.MagicMock(),
        )
        return streaming.Stream(maker, SimpleNamespace(value=0.0)), buckets

    monkeypatch.setattr(streaming.ray, "wait", lambda refs, **_: ([], refs))
    return make


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("ranks, micro_batch_size", [(1, 2), (2, 4), (9, 1)])
def test_buckets_are_those_of_training(make_generator, stream_of_training, filtering, ranks, micro_batch_size):
    """The same groups, committed at the same ends of rollouts."""

    def respond(prompt, size):
        random = np.random.default_rng(prompt)
        return list(zip(random.permutation(50)[:size] + 1, (random.random(size) < 0.3).astype(float)))

    def draw_rollouts(drawn, size, _):
        tokens, scores = np.moveaxis([respond(prompt, size) for prompt in drawn], 2, 0)
        return tokens.astype(int), scores

    trained = make_generator(2000, respond, filtering=filtering, group_sizes=[4], rollout__batch_size=12)
    trained.stream, theirs = stream_of_training(ranks, micro_batch_size)
    trained.ray.at_once = True
    prompts = iter(range(2000))
    source = SimpleNamespace(
        draw_prompts=lambda count, _: [next(prompts) for _ in range(count)],
        draw_rollouts=draw_rollouts,
        expected_tokens=lambda drawn: np.ones(len(drawn)),
    )
    planner = planner_of(4, samples=48, prompts=12, tolerance=1e-6 if filtering else None)
    work = Work(**BY_LENGTH, stream="auto", actor_gpus=ranks, micro_batch_size=micro_batch_size)
    run = SimulatedTraining(planner, source, costs_of(), gpus=ranks + 1, prompt_tokens=3, work=work)
    ours = []
    seconds = run.actors.bucket_seconds
    run.actors.bucket_seconds = lambda groups, *args: (
        ours.append([group.number for group in groups]) or seconds(groups, *args)
    )
    for _ in range(6):
        theirs.clear()
        ours.clear()
        trained.generate_samples()
        step = run.step()
        *buckets, rest = ours
        assert buckets == theirs and 1 <= len(buckets) <= 4
        assert step["sample_share"] == pytest.approx(trained.metrics["stream/sample_share"])
        assert len(rest) == 12 - sum(map(len, buckets))


# --- seconds ---------------------------------------------------------------------------------------------------------


def test_a_padded_micro_batch_costs_its_longest_sample_and_ranks_wait_for_each_other():
    assert padded_tokens([[[3, 1], [5]], [[2, 2], [9]]]) == 6 + 9


def test_packed_training_takes_as_long_as_on_the_fullest_rank():
    costs = costs_of(experience_per_token=1.0, train_per_token=2.0)
    groups = [group_of([40, 20, 10, 5])]
    assert actors_of(2, costs=costs).seconds(groups) == (40.0, 2.0 * 40)
    assert actors_of(2, costs=costs).seconds([group_of([40, 40, 10, 10])]) == (50.0, 2.0 * 50)
    two = actors_of(2, costs=costs, optimizer_steps=2).seconds([group_of([40, 40, 10, 10])])
    assert two == (50.0, 2.0 * (40 + 10))
    assert actors_of(8, costs=costs).seconds(groups) == (40.0, 2.0 * 40)  # four ranks have none
    two_ranks = actors_of(8, costs=costs, rank_gpus=4).seconds(groups)
    assert two_ranks == (40.0 / 4, 2.0 * 40 / 4)  # as of two, four times as fast


def test_what_is_left_out_costs_nothing():
    groups = [group_of([10, 20, 30, 40])]  # packed, 15 and 45 tokens are on one rank, 25 and 35 on the other
    costs = costs_of(experience_base=0.5, experience_per_token=1.0, train_per_token=2.0)
    assert actors_of(2, 5, costs).seconds(groups) == (0.5 + 120 / 2, 2.0 * 120 / 2)
    assert actors_of(2, 5, costs, old_log_probs="auto").seconds(groups) == (0.5, 2.0 * 120 / 2)
    padded = {"micro_batch_size": 2, "actor_gpus": 1}
    by_length = actors_of(2, 5, costs, **BY_LENGTH, **padded).seconds(groups)
    assert by_length == (0.5, 2.0 * (2 * 45 + 2 * 25))
    shuffled = actors_of(2, 5, costs, micro_batches="shuffled", **padded).seconds(groups)
    assert shuffled[0] == 0.5 + 2 * 25 + 2 * 45 and shuffled[1] >= by_length[1]


def test_the_first_of_two_optimizer_steps_needs_no_forward_pass():
    """Samples of one length: half of them have a forward pass, in the training's time."""
    costs = costs_of(experience_base=0.5, experience_per_token=1.0, train_per_token=2.0)
    two = {**BY_LENGTH, "micro_batch_size": 2, "optimizer_steps": 2, "actor_gpus": 1}
    assert actors_of(3, 5, costs, **two).seconds([group_of([15] * 8)]) == (0.5, 1.0 * 80 + 2.0 * 160)
    stream = SimulatedStream(actors_of(3, 5, costs, **two, stream="auto"))
    stream.begin(SimpleNamespace(num_groups=4, group_size=4))
    groups = [group_of([15] * 4, number) for number in range(4)]
    stream.send(groups[:2], now=0.0)
    assert stream.hidden_and_left(1000.0) == (1.0 * 80 + 2.0 * 80, 0.0) and stream.dealt == [[[20] * 4]] * 2
    rest = stream._actors.seconds(stream.rest(groups), stream.samples, stream.dealt)
    assert rest == (0.5, 1.0 * 80 + 2.0 * (80 + 160))


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(ValueError, match="4 samples are too few for 5 GPUs of actors"):
        actors_of(5, micro_batches="length").seconds([group_of([1, 1, 1, 1])])


def test_training_is_hidden_until_generation_ends():
    """Buckets of four groups and of two, of a sample each; 5 s of training a sample, 1 s of the driver's a bucket."""
    work = {**BY_LENGTH, "stream": "auto", "actor_gpus": 1}
    stream = SimulatedStream(actors_of(2, costs=costs_of(train_per_token=1.0, experience_base=1.0), **work))
    stream.begin(SimpleNamespace(num_groups=8, group_size=1))
    groups = [group_of([5], number) for number in range(8)]
    stream.send(groups[:4], now=2.0)  # trains from 3 to 23
    stream.send(groups[4:5], now=4.0)  # no bucket
    stream.send(groups[5:6], now=4.0)  # trains from 23 to 33
    assert stream.hidden_and_left(30.0) == (27.0, 3.0) and stream.hidden_and_left(35.0) == (30.0, 0.0)
    assert [group.number for group in stream.rest(groups)] == [6, 7]
    stream.begin(SimpleNamespace(num_groups=8, group_size=1))
    assert stream.hidden_and_left(1.0) == (0.0, 0.0) and len(stream.rest(groups)) == 8


def test_a_step_ends_when_buckets_and_the_rest_are_trained():
    """Groups of two end every 10 s, the last at 80; a token is trained in a second, of the prompt's three too."""
    prompts = iter(range(8))
    source = SimpleNamespace(
        draw_prompts=lambda count, _: [next(prompts) for _ in range(count)],
        draw_rollouts=lambda drawn, size, _: (np.array([[10 * (prompt + 1)] * size for prompt in drawn]), None),
        expected_tokens=lambda drawn: np.ones(len(drawn)),
    )
    planner = planner_of(2, samples=16, prompts=8)
    costs = costs_of(train_per_token=1.0, train_base=0.5, sync=0.25)
    work = Work(**BY_LENGTH, stream="auto", actor_gpus=1)
    step = SimulatedTraining(planner, source, costs, gpus=2, prompt_tokens=3, work=work).step()
    # The buckets of 40, 60 and 70 s, one after the other.
    trained = 40 + 2 * (13 + 23 + 33 + 43) + 2 * (53 + 63) + 2 * 73
    assert step["generation_seconds"] == 80 and step["hidden_seconds"] == 40 and step["sample_share"] == 0.875
    assert step["train_seconds"] == (trained - 80) + 0.5 + 2 * 83
    assert step["seconds"] == 80 + step["train_seconds"] + 0.25
