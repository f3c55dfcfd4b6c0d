"""Inside the policy's actors: the rewards of a step, and the tokens' advantages that are made of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.advantages.closed_form import group_statistics, token_advantages

# Info key by which a sample carries its place among the step's rewards, since OpenRLHF cuts and merges batches on the way.
SAMPLE = "sagc/sample"


def numbered(experience: Experience, first: int) -> None:
    """Run in the driver: the samples of a batch carry their places in the rewards, `first` more than those of its `index`."""
    experience.info[SAMPLE] = torch.tensor(experience.index) + first


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


def rollout_advantages(rollout: RolloutRewards, experience: Experience) -> torch.Tensor:
    """Advantages [B, T] of a micro-batch, on its device: one kernel launch on a GPU, else the closed form.

    The places of `numbered` are out of the micro-batch's `info` then. It gets the groups' standard deviations and whether the
    kernel ran, for the metrics.
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
