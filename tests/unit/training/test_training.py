"""What the policy's actors do with a rollout."""

import math
import time
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from transformers import Qwen3Config, get_scheduler

from openrlhf_sagc.decisions.token_weights import PlainSteps
from openrlhf_sagc.training.rollout_rewards import RolloutRewards, numbered
from openrlhf_sagc.training.streamed_training import OPTIMIZER_SECONDS
from openrlhf_sagc.training.training import (
    GroupActorTrainer,
    StepShare,
    follow_schedule,
    keep_number_of_steps,
    receive_rollout,
    uses_dropout,
)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_learning_rate_follows_the_share_of_prompts_used(schedule):
    """Steps of 3, 1 and 4 of 16 prompts: each has the rate that the schedule gives at the prompts before it."""
    model_actor = SimpleNamespace(max_steps=16)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    model_actor.actor_scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=2, num_training_steps=16)
    expected = [model_actor.actor_scheduler.lr_lambdas[0](prompts) for prompts in (0, 3, 4, 8)]
    rates = []
    for prompts in (0, 3, 4, 8):
        follow_schedule(model_actor, prompts / 16)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        model_actor.actor_scheduler.step()  # as DeepSpeed does after each optimizer step
    assert rates == pytest.approx(expected)


def actor_of(prompts, samples, train, ranks, micro_batch, dynamic=False):
    """A policy's actor whose plain rollout has so many prompts and samples of each, trained in steps of `train` samples."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=prompts, n_samples_per_prompt=samples),
        train=SimpleNamespace(batch_size=train, micro_batch_size=micro_batch, dynamic_batch_enable=dynamic),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    sizes: list[int] = []
    engine = SimpleNamespace(dp_world_size=ranks, set_train_batch_size=sizes.append, sizes=sizes)
    engine.train_micro_batch_size_per_gpu = lambda: micro_batch
    strategy = SimpleNamespace(args=args, train_batch_size=train, accumulated_gradient=4)
    return SimpleNamespace(strategy=strategy, actor=SimpleNamespace(model=engine))


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize(
    "samples, micro_batches, times",
    [(32, 4, 1), (40, 3, 1), (64, 4, 1), (65, 5, 2), (128, 8, 2), (132, 9, 3), (256, 16, 4)],
)
def test_larger_groups_are_trained_in_larger_optimizer_steps(dynamic, samples, micro_batches, times):
    """8 prompts x 8 samples in steps of 32 on two actors in micro-batches of 4: two steps of 4 micro-batches on each.

    With 132 samples an actor has 17 micro-batches: steps of 9 and 8, and none of the one that is left over.
    """
    model_actor = actor_of(8, 8, 32, 2, 4, dynamic)
    strategy, sizes = model_actor.strategy, model_actor.actor.model.sizes
    for _ in range(2):
        assert keep_number_of_steps(model_actor, samples) == (1 if samples == 32 else 2)
        if dynamic:
            assert strategy.args.train.batch_size == 32 * times and not sizes
        else:
            assert strategy.accumulated_gradient == micro_batches and sizes.pop() == 8 * micro_batches


@pytest.mark.parametrize("samples, ranks, steps", [(48, 1, 4), (72, 1, 3), (6, 4, 1), (8, 4, 2)])
def test_a_rollout_has_as_many_optimizer_steps_as_openrlhfs_buffer_makes_and_ranks_have_samples(samples, ranks, steps):
    """12 samples a micro-batch on one rank, of which 6 go into steps of 2; or one a rank, of which some have one alone."""
    model_actor = actor_of(1, 48, 12, ranks, 12) if ranks == 1 else actor_of(1, 12, 4, ranks, 1)
    assert keep_number_of_steps(model_actor, samples) == steps


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize(
    "lost, accumulated, batch_size", [(0, 2, 16), (15, 2, 16), (16, 2, 14), (40, 2, 11), (64, 1, 8)]
)
def test_samples_that_failed_rewards_have_cost_leave_as_many_optimizer_steps(dynamic, lost, accumulated, batch_size):
    """8 prompts x 16 samples in steps of 16 on two actors in micro-batches of 4: eight steps of two micro-batches on each."""
    model_actor = actor_of(8, 16, 16, 2, 4, dynamic)
    strategy = model_actor.strategy
    assert keep_number_of_steps(model_actor, 128, lost) == 8
    if dynamic:
        assert strategy.args.train.batch_size == batch_size and -(-(128 - lost) // batch_size) == 8
    else:
        assert strategy.accumulated_gradient == accumulated


@pytest.mark.parametrize(
    "settings, module, found",
    [
        ({}, torch.nn.Dropout(0.0), False),
        ({"attention_dropout": 0.1}, torch.nn.Identity(), True),
        ({"text_config": {"attention_dropout": 0.1}}, torch.nn.Identity(), True),
        ({"router_jitter_noise": 0.01}, torch.nn.Identity(), True),
        ({"attn_pdrop": 0.1}, torch.nn.Identity(), True),
        ({}, torch.nn.Dropout(0.1), True),
    ],
)
def test_noise_of_the_training_is_found_in_the_model_and_its_configuration(settings, module, found):
    module.config = Qwen3Config(**settings)  # which also has labels by number
    model_actor = SimpleNamespace(actor=SimpleNamespace(model=SimpleNamespace(module=module)))
    assert uses_dropout(model_actor) == found


class PolicyActor:
    """OpenRLHF's, on one of several ranks: its optimizer steps after every second micro-batch and takes 0.01 s."""

    max_steps = 0
    actor_scheduler = SimpleNamespace(last_epoch=0)

    def __init__(self, rank=0, others=(0.0, 0.0)):
        self.made, self.micro_batches, self.others = [], 0, torch.tensor(others, dtype=torch.float64)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        engine = SimpleNamespace(
            optimizer=self.optimizer,
            _config=None,
            global_steps=0,
            skipped_steps=0,
            is_gradient_accumulation_boundary=lambda: self.micro_batches % 2 == 0,
        )
        self.args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=4, n_samples_per_prompt=8),
            train=SimpleNamespace(
                dynamic_batch_enable=True, batch_size=32, micro_batches="shuffled", async_enable=False
            ),
            ds=SimpleNamespace(packing_samples=False, zero_stage=3),
            actor=SimpleNamespace(aux_loss_coef=0.0),
        )
        self.strategy = SimpleNamespace(
            args=self.args,
            train_batch_size=32,
            optimizer_step=self.step,
            all_reduce=lambda counts, op: counts + {"sum": self.others}[op],
            is_rank_0=lambda: rank == 0,
        )
        self.trainer = SimpleNamespace(
            strategy=self.strategy,
            args=self.args,
            actor=SimpleNamespace(model=engine),
            actor_loss_fn=lambda log_probs, old_log_probs, advantages: (log_probs - old_log_probs) * advantages,
            replay_buffer=SimpleNamespace(dynamic_batch=False),
            vllm_engines=None,
            use_cuda_ipc=True,
        )

    def step(self, *args, **kwargs):
        assert (args, kwargs) == (("optimizer", "model", "scheduler"), {"name": "actor"})
        time.sleep(0.01)
        self.made.append(self.optimizer.param_groups[0]["lr"])

    def receive(self, plain=None):
        rewards = RolloutRewards(torch.ones(4), torch.tensor([0, 4]), "group_norm", None, 0.0, 0.0, 1.0)
        receive_rollout(self, StepShare(0.0, 32, plain=plain), rewards)

    def train(self, *lengths):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        experience = Experience(action_mask=mask.long(), index=[0] * len(lengths), info={})
        numbered(experience, 0)
        experience.info = {name: list(values) for name, values in experience.info.items()}
        return self.trainer.training_step(experience, 0.0, 0, None)


@pytest.fixture(autouse=True)
def openrlhf(monkeypatch):
    """What OpenRLHF's trainer does with a micro-batch, and with a replay buffer of one."""

    def training_step(trainer, experience, kl_ctl, step, loss_batch_info):
        trainer._model_actor.micro_batches += 1
        trainer.strategy.optimizer_step("optimizer", "model", "scheduler", name="actor")
        return experience

    def ppo_train(trainer, kl_ctl):
        for _ in range(2):
            trainer._model_actor.train(1)
        return {"policy_loss": kl_ctl}

    monkeypatch.setattr(ActorPPOTrainer, "training_step", training_step)
    monkeypatch.setattr(ActorPPOTrainer, "ppo_train", ppo_train)


def test_the_trainer_is_installed_once():
    model_actor = PolicyActor()
    model_actor.receive()
    installed, loss, step = model_actor.trainer, model_actor.trainer.actor_loss_fn, model_actor.strategy.optimizer_step
    model_actor.receive()
    assert model_actor.trainer is installed and isinstance(installed, ActorPPOTrainer)
    assert installed.actor_loss_fn is loss and model_actor.strategy.optimizer_step == step
    model_actor.train(3)
    assert len(model_actor.made) == 1


def test_log_probs_are_the_old_ones_where_there_are_none():
    model_actor = PolicyActor()
    model_actor.receive()
    log_probs, advantages = torch.full((1, 2), -2.0, requires_grad=True), torch.full((1, 2), 3.0)
    assert model_actor.trainer.actor_loss_fn(log_probs, torch.zeros(1, 2), advantages).tolist() == [[-6.0, -6.0]]
    loss = model_actor.trainer.actor_loss_fn(log_probs, None, advantages)
    loss.sum().backward()
    assert loss.tolist() == [[0.0, 0.0]] and log_probs.grad.tolist() == [[3.0, 3.0]]


def test_an_optimizer_step_counts_by_the_mean_length_of_its_own_samples():
    model_actor = PolicyActor()
    model_actor.receive(PlainSteps(10.0, math.inf))
    for lengths in ((10, 30), (20,), (5, 5), (5, 0)):  # an empty response is a sample
        model_actor.train(*lengths)
    assert model_actor.made == pytest.approx([1, 2, 1, 0.375])


def test_samples_of_other_ranks_count():
    model_actor = PolicyActor(others=(60.0, 1.0))
    model_actor.receive(PlainSteps(10.0, math.inf))
    model_actor.train(10)
    model_actor.train(20)
    assert model_actor.made == pytest.approx([1, 3])


def test_a_plain_step_counts_as_one_and_ends_what_was_counted():
    model_actor = PolicyActor()
    model_actor.receive()
    model_actor.train(100)
    model_actor.train(100)
    model_actor.receive(PlainSteps(10.0, math.inf))
    model_actor.train(20)
    model_actor.train(20)
    assert model_actor.made == pytest.approx([1, 1, 1, 2])


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_reports_the_optimizers_seconds(rank):
    model_actor = PolicyActor(rank)
    model_actor.receive()
    for _ in range(2):
        started = time.perf_counter()
        status = model_actor.trainer.ppo_train(0.5)
        assert status["policy_loss"] == 0.5 and (OPTIMIZER_SECONDS in status) == (rank == 0)
        if rank == 0:
            assert 0.02 <= status[OPTIMIZER_SECONDS] <= time.perf_counter() - started


def test_an_optimizer_without_a_loss_scale_is_one_line():
    model_actor = PolicyActor()
    model_actor.receive()
    with pytest.raises(RuntimeError, match="^--train.stream auto needs .*SGD.*: use --train.stream off"):
        model_actor.trainer.receive(StepShare(0.0, 32, divisor=2.0), None)


@pytest.mark.parametrize("mode", ["mask", "clip"])
def test_samples_without_log_probs_are_trained_without_correction(mode):
    """And the others with it, in the same micro-batch; `is_effective_share` is 1 where all weights are."""
    torch.manual_seed(0)
    corrected = PolicyLoss(is_correction_level="token", is_correction_mode=mode, is_correction_threshold=[0.5, 2.0])
    plain = PolicyLoss()
    log_probs_BT, theirs_BT = -torch.rand(2, 6), -torch.rand(2, 6)
    advantages_BT, mask_BT = torch.randn(2, 6), torch.ones(2, 6)
    trainer = object.__new__(GroupActorTrainer)

    def loss(loss_fn, theirs_BT, rows=slice(None)):
        theirs_BT = theirs_BT if theirs_BT is None else theirs_BT[rows]
        given = log_probs_BT[rows], None, advantages_BT[rows]
        return trainer._loss_of_policy(loss_fn, *given, action_mask=mask_BT[rows], rollout_log_probs=theirs_BT)[0]

    lacking_BT = theirs_BT.clone()
    lacking_BT[1] = torch.nan
    mixed = loss(corrected, lacking_BT)
    first, second = loss(corrected, theirs_BT, slice(1)), loss(plain, None, slice(1, 2))
    torch.testing.assert_close(mixed, (first + second) / 2)
    loss(corrected, torch.full((2, 6), torch.nan))
    assert trainer._effective == 1
    loss(corrected, theirs_BT)
    weights_BT = (log_probs_BT - theirs_BT).exp()
    torch.testing.assert_close(trainer._effective, weights_BT.sum() ** 2 / 12 / (weights_BT**2).sum())
