"""What runs inside OpenRLHF's policy actors: they receive the rewards of a step and make the tokens' advantages."""

import math
import re
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.actors.micro_batches import sort_bucket, sort_micro_batches
from openrlhf_sagc.actors.optimizer_clock import time_optimizer
from openrlhf_sagc.actors.step_weights import weigh_steps
from openrlhf_sagc.actors.streamed_training import join_buckets
from openrlhf_sagc.actors.weight_sync import announce_weights
from openrlhf_sagc.advantages.closed_form import group_statistics, token_advantages
from openrlhf_sagc.argument_checks import data_parallel_actors
from openrlhf_sagc.decisions.token_weights import PlainSteps
from openrlhf_sagc.step_savings import why_forward, why_shuffled

# Info key by which a sample carries its place among the step's rewards.
SAMPLE = "sagc/sample"


@dataclass
class RolloutRewards:
    """The rewards of a step by group, and how advantages are made of them.

    Every actor gets all rewards, since its samples are shuffled parts of groups.

    Attributes:
        rewards_N: [N] float32 rewards, samples of a group side by side.
        offsets_G1: [G + 1] first sample of each group, then N.
        estimator: as in `group_advantages`.
        clip_range: least and greatest advantage of a sample, or None.
        kl_coef: weight of the KL in the reward, 0 for none.
        shift: subtracted from every token's advantage, before `scale`.
        scale: factor on every token's advantage.
    """

    rewards_N: torch.Tensor
    offsets_G1: torch.Tensor
    estimator: str
    clip_range: tuple[float, float] | None
    kl_coef: float
    shift: float
    scale: float

    @cached_property
    def statistics_N(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[N] clipped advantages and [N] standard deviations of the samples' groups, computed once."""
        sizes_G = self.offsets_G1.diff()
        groups_N = torch.repeat_interleave(sizes_G)
        advantages_N, stds_G = group_statistics(self.rewards_N, sizes_G, groups_N, self.estimator)
        if self.clip_range:
            advantages_N = advantages_N.clamp(*self.clip_range)
        return advantages_N, stds_G[groups_N]


@dataclass(eq=False)
class StepShare:
    """The step that samples are of; an object for each step.

    Attributes:
        progress: share of the run's prompts used by the steps before, 0 to 1.
        num_samples: of the whole step.
        divisor: of the loss of every bucket, where the step is trained in buckets; else None.
        plain: what a round of tail batching is weighed by; None for a plain step, and for a bucket that ends no optimizer
            step.
    """

    progress: float
    num_samples: int
    divisor: float | None = None
    plain: PlainSteps | None = None


def receive_rollout(model_actor, step: StepShare, rollout: RolloutRewards) -> None:
    """Run in a policy's actor before it trains on a step, or on a bucket of it.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
        step: what the samples are of.
        rollout: the rewards of all samples, of other actors' too.
    """
    follow_schedule(model_actor, step.progress)
    steps = keep_number_of_steps(model_actor, step.num_samples)
    args, trainer = model_actor.strategy.args, model_actor.trainer
    time_optimizer(trainer)
    weigh_steps(trainer, step.plain)
    announce_weights(model_actor)
    trainer.training_step = partial(training_step, trainer, rollout)
    if step.plain is not None or step.divisor is not None:
        trainer.training_step = partial(counted_step, trainer, trainer.training_step)
    by_length = not why_shuffled(args)
    if by_length or step.divisor is not None:
        trainer.training_step = partial(weighed_step, trainer.training_step)
    if by_length:
        sort = sort_micro_batches if step.divisor is None else sort_bucket
        trainer.replay_buffer.micro_batch_sampler = partial(sort, trainer.replay_buffer)
    at_once = steps == 1 or args.train.dynamic_batch_enable or why_forward(args) or uses_dropout(model_actor)
    if step.divisor is not None or not at_once:
        join_buckets(model_actor, step.divisor, steps)


def training_step(trainer, rollout: RolloutRewards, experience: Experience, *args, **kwargs) -> dict:
    """OpenRLHF's training step of a micro-batch, whose tokens have their advantages here first."""
    experience.advantages = rollout_advantages(rollout, experience)
    if experience.action_log_probs is not None:
        return type(trainer).training_step(trainer, experience, *args, **kwargs)
    loss_fn = trainer.actor_loss_fn
    trainer.actor_loss_fn = partial(on_policy_loss, loss_fn)
    try:
        return type(trainer).training_step(trainer, experience, *args, **kwargs)
    finally:
        trainer.actor_loss_fn = loss_fn


def counted_step(trainer, train, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict) -> dict:
    """A training step whose tokens and samples count for the weight and the divisor of their optimizer step."""
    buffer = trainer.replay_buffer
    # A rank with fewer dynamic batches than others repeats a sample, with a loss of 0.
    if not (buffer.dynamic_batch and math.isinf(buffer.dynamic_batch_num_tokens[step])):
        trainer.step_weights.count(experience)
    return train(experience, kl_ctl, step, loss_batch_info)


def weighed_step(train, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict) -> dict:
    """A training step whose logged losses are those of the micro-batch's own tokens.

    OpenRLHF logs shares of the optimizer step's loss, and averages them by tokens. That is right for micro-batches of as
    many tokens each alone, which micro-batches by length are not.
    """
    status = train(experience, kl_ctl, step, loss_batch_info)
    scale = loss_batch_info["batch_num_tokens"] / loss_batch_info["dp_size"] / max(status["num_action_tokens"], 1.0)
    metrics = status["metrics"]
    for name in ("policy_loss", "entropy_loss", "kl"):
        if name in metrics and metrics[name].dim() == 0:
            metrics[name] = metrics[name] * scale
    return status


def on_policy_loss(loss_fn, log_probs: torch.Tensor, _old_log_probs: None, *args, **kwargs):
    """OpenRLHF's loss of [B, T] log-probabilities which are the old ones too, with a ratio of 1."""
    return loss_fn(log_probs, log_probs.detach(), *args, **kwargs)


def uses_dropout(model_actor) -> bool:
    """Run in a policy's actor: whether training has noise that rollouts have not, so that log-probabilities differ."""
    model = model_actor.actor.model.module
    modules = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    return modules or _has_noise(model.config.to_dict())


def _has_noise(config: dict) -> bool:
    """Whether a model's configuration, or one inside it, asks for dropout or jitter."""
    inner = any(_has_noise(value) for value in config.values() if isinstance(value, dict))
    shares = [value for name, value in config.items() if re.search("dropout|pdrop$|jitter", str(name))]
    return inner or any(isinstance(share, float) and share > 0 for share in shares)


def follow_schedule(model_actor, progress: float) -> None:
    """Give the step's first optimizer step the learning rate of the schedule at `progress`, 0 to 1.

    OpenRLHF lays the schedule out for all prompts at n_samples_per_prompt, and moves on by one with every optimizer step.
    That is too slow or too fast if a step takes more or fewer prompts.
    """
    scheduler = model_actor.actor_scheduler
    position = round(progress * model_actor.max_steps)
    if position != scheduler.last_epoch:
        scheduler.last_epoch = position - 1
        scheduler.step()


def keep_number_of_steps(model_actor, num_samples: int) -> int:
    """Larger groups than n_samples_per_prompt are trained in larger optimizer steps, not in more of them.

    More steps would train the last ones on rollouts of a policy that is further behind. The steps of a rollout are about
    equal, so that none of them has a few samples alone.

    Returns:
        The optimizer steps of the rollout, for each of which every rank has a sample.
    """
    strategy = model_actor.strategy
    rollout, train = strategy.args.rollout, strategy.args.train
    usual = rollout.batch_size * rollout.n_samples_per_prompt
    if train.dynamic_batch_enable:
        train.batch_size = math.ceil(num_samples / usual) * strategy.train_batch_size
        return math.ceil(num_samples / train.batch_size)
    ranks = data_parallel_actors(strategy.args)
    micro_batches = math.ceil(num_samples / (train.micro_batch_size * ranks))
    steps = min(math.ceil(num_samples / strategy.train_batch_size), usual // strategy.train_batch_size)
    strategy.accumulated_gradient = math.ceil(micro_batches / steps)
    engine = model_actor.actor.model
    engine.set_train_batch_size(
        strategy.accumulated_gradient * engine.dp_world_size * engine.train_micro_batch_size_per_gpu()
    )
    return min(math.ceil(micro_batches / strategy.accumulated_gradient), num_samples // ranks)


def rollout_advantages(rollout: RolloutRewards, experience: Experience) -> torch.Tensor:
    """Advantages [B, T] of a micro-batch, on its device: one kernel launch on a GPU, else the closed form.

    The micro-batch's `info` gets the groups' standard deviations and whether the kernel ran, for the metrics.
    """
    samples_B = torch.stack(experience.info.pop(SAMPLE))
    mask, kl = experience.action_mask, experience.kl
    if mask.is_cuda:
        rollout.rewards_N, rollout.offsets_G1 = rollout.rewards_N.to(mask.device), rollout.offsets_G1.to(mask.device)
        from openrlhf_sagc.advantages.kernel import fused_group_advantages

        tokens, stds_B = fused_group_advantages(
            rollout.rewards_N,
            rollout.offsets_G1,
            mask,
            samples_B,
            estimator=rollout.estimator,
            clip_range=rollout.clip_range,
            kl=kl,
            kl_coef=rollout.kl_coef,
            shift=rollout.shift,
            scale=rollout.scale,
        )
    else:
        samples_B = samples_B.cpu()
        advantages_N, stds_N = rollout.statistics_N
        tokens = token_advantages(
            advantages_N[samples_B], mask.cpu(), None if kl is None else kl.cpu(), rollout.kl_coef
        )
        if rollout.shift or rollout.scale != 1:
            tokens = (tokens - rollout.shift) * rollout.scale
        tokens, stds_B = tokens.to(mask.device), stds_N[samples_B].to(mask.device)
    experience.info["group_reward_std"] = stds_B
    experience.info["advantage_kernel"] = torch.full_like(stds_B, float(mask.is_cuda))
    return tokens
