"""What runs inside OpenRLHF's policy actors: each rollout's rewards come in, tokens' advantages are made of them."""

from dataclasses import dataclass
from functools import partial

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.advantages import group_statistics, token_advantages

# Info key by which a sample carries its place in the rollout's rewards.
SAMPLE = "sample"


@dataclass
class RolloutRewards:
    """A rollout's rewards by group, and what makes advantages of them; the actors hold parts of groups, shuffled.

    Attributes:
        rewards_N: [N] float32 rewards, samples of a group side by side.
        offsets_G1: [G + 1] first sample of each group, then N.
        estimator: as in `group_advantages`.
        clip_range: least and greatest advantage of a sample, or None.
        kl_coef: weight of the KL in the reward, 0 for none.
        shift: taken off every token's advantage, before `scale`.
        scale: factor on every token's advantage.
    """

    rewards_N: torch.Tensor
    offsets_G1: torch.Tensor
    estimator: str
    clip_range: tuple[float, float] | None
    kl_coef: float
    shift: float
    scale: float


def receive_rollout(model_actor, progress: float, rollout: RolloutRewards) -> None:
    """Run in a policy's actor before it trains on a rollout.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
        progress: share of the run's prompts that the steps before have used, 0 to 1.
        rollout: the rewards of all samples, those of other actors too.
    """
    follow_schedule(model_actor, progress)
    model_actor.trainer.token_advantages = partial(rollout_advantages, rollout)


def follow_schedule(model_actor, progress: float) -> None:
    """The rollout's first optimizer step has the learning rate of the schedule at `progress`, 0 to 1.

    OpenRLHF lays the schedule out for all prompts at n_samples_per_prompt and moves on by one an optimizer step, which
    is too slow or too fast where a rollout takes more or fewer prompts.
    """
    scheduler = model_actor.actor_scheduler
    position = round(progress * model_actor.max_steps)
    if position != scheduler.last_epoch:
        scheduler.last_epoch = position - 1
        scheduler.step()


def rollout_advantages(rollout: RolloutRewards, experience: Experience) -> torch.Tensor:
    """Advantages [B, T] of a micro-batch, on its device: one kernel launch on a GPU, the closed form on a CPU.

    The group's standard deviation, and whether the kernel ran, are left in the micro-batch's `info` for the metrics.
    """
    samples_B = torch.stack(experience.info.pop(SAMPLE))
    mask = experience.action_mask
    rollout.rewards_N, rollout.offsets_G1 = rollout.rewards_N.to(mask.device), rollout.offsets_G1.to(mask.device)
    if mask.is_cuda:
        from openrlhf_sagc.kernels.group_advantage import fused_group_advantages

        tokens, stds_B = fused_group_advantages(
            rollout.rewards_N,
            rollout.offsets_G1,
            mask,
            samples_B,
            estimator=rollout.estimator,
            clip_range=rollout.clip_range,
            kl=experience.kl,
            kl_coef=rollout.kl_coef,
            shift=rollout.shift,
            scale=rollout.scale,
        )
    else:
        sizes_G = rollout.offsets_G1.diff()
        groups_N = torch.repeat_interleave(sizes_G)
        advantages_N, stds_G = group_statistics(rollout.rewards_N, sizes_G, groups_N, rollout.estimator)
        if rollout.clip_range:
            advantages_N = advantages_N.clamp(*rollout.clip_range)
        tokens = token_advantages(advantages_N[samples_B], mask, experience.kl, rollout.kl_coef)
        tokens = (tokens - rollout.shift) * rollout.scale
        stds_B = stds_G[groups_N[samples_B]]
    experience.info["group_reward_std"] = stds_B
    experience.info["advantage_kernel"] = torch.full_like(stds_B, float(mask.is_cuda))
    return tokens
