"""In a policy's actor: the rewards of a step, and the tokens' advantages that are made of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.advantages.closed_form import group_statistics, token_advantages

logger = init_logger(__name__)
_refused: list[str] = []  # why the kernel does not run in this process

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
        """[N] clipped advantages and [N] standard deviations of the samples' groups, on the CPU, computed once."""
        sizes_G = self.offsets_G1.cpu().diff()
        groups_N = torch.repeat_interleave(sizes_G)
        advantages_N, stds_G = group_statistics(self.rewards_N.cpu(), sizes_G, groups_N, self.estimator)
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
    made = _by_kernel(rollout, samples_B, mask, kl) if mask.is_cuda else None
    if made:
        tokens, stds_B = made
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
    experience.info["advantage_kernel"] = torch.full_like(stds_B, float(bool(made)))
    return tokens


def _by_kernel(
    rollout: RolloutRewards, samples_B: torch.Tensor, mask_BT: torch.Tensor, kl_BT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Advantages [B, T] and standard deviations [B]; None if the kernel lacks the estimator or does not compile here."""
    if _refused:
        return None
    rollout.rewards_N, rollout.offsets_G1 = rollout.rewards_N.to(mask_BT.device), rollout.offsets_G1.to(mask_BT.device)
    try:
        from openrlhf_sagc.advantages.kernel import FUSED, fused_group_advantages

        if rollout.estimator not in FUSED:
            return None
        return fused_group_advantages(
            rollout.rewards_N,
            rollout.offsets_G1,
            mask_BT,
            samples_B,
            estimator=rollout.estimator,
            clip_range=rollout.clip_range,
            kl=kl_BT,
            kl_coef=rollout.kl_coef,
            shift=rollout.shift,
            scale=rollout.scale,
        )
    except (torch.OutOfMemoryError, ValueError):  # ValueError: it was called with what does not fit
        raise
    except Exception as error:  # Triton's, its compilers' and its import's have no base of their own
        _refused.append(repr(error))
        logger.warning(
            f"the kernel of advantages does not run here, the closed form does, with the same advantages: {_refused[0]:.300}"
        )
        return None
