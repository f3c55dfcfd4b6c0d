"""Advantages of samples against their groups (GRPO and its variants), and of tokens; groups may have any size."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from openrlhf_sagc.advantages.estimators import Groups, estimator_named

ULPS = 8  # a group whose rewards differ by so many ulps of the largest is constant: arithmetic leaves that much


def group_advantages(rewards: torch.Tensor, group_sizes: Sequence[int], estimator: str = "group_norm") -> torch.Tensor:
    """Advantage of every sample against its own group.

    A group of equal rewards and a group of one give exactly 0. Equal are rewards that differ by at most ULPS ulps of the
    largest, in float32 or, for float64 and integers, in float64. A group gives the same bits alone and in a batch.

    Args:
        rewards: [N] rewards, samples of a group side by side, any real, bool or integer dtype.
        group_sizes: size of each group in order, sum N.
        estimator: a name in ESTIMATORS.

    Returns:
        [N] float32 advantages, computed in float64.

    Raises:
        ValueError: the estimator is unknown, the rewards are not one-dimensional, a size is below 1, the sizes do not sum
            to N, or a reward is NaN or infinite in float32 (the message names its group).
    """
    estimator_named(estimator)
    sizes = [int(size) for size in group_sizes]
    if rewards.dim() != 1:
        raise ValueError(f"rewards must have one dimension, got shape {tuple(rewards.shape)}")
    if any(size < 1 for size in sizes) or sum(sizes) != len(rewards):
        raise ValueError(f"group_sizes must be positive and sum to the {len(rewards)} rewards, got {sizes}")
    if not sizes:
        return torch.zeros_like(rewards, dtype=torch.float32)
    sizes_G = torch.tensor(sizes, device=rewards.device)
    groups_N = torch.repeat_interleave(sizes_G, output_size=len(rewards))
    finite = torch.isfinite(rewards.float())
    if not finite.all():
        sample = int((~finite).nonzero()[0])
        raise ValueError(f"group {int(groups_N[sample])} has a reward that is not finite: {rewards[sample].item()}")
    return group_statistics(rewards, sizes_G, groups_N, estimator)[0]


def group_statistics(
    rewards_N: torch.Tensor, sizes_G: torch.Tensor, groups_N: torch.Tensor, estimator: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`group_advantages` and the groups' standard deviations, without checks and without synchronising with the device.

    Args:
        rewards_N: [N] finite rewards, N at least 1.
        sizes_G: [G] integers, sizes of the groups.
        groups_N: [N] integers, the group of each sample, ascending.
        estimator: as in `group_advantages`.

    Returns:
        [N] float32 advantages; [G] float32 standard deviations with Bessel's correction, 0 for a constant group.

    Raises:
        ValueError: the estimator is unknown.
    """
    exact = not rewards_N.is_floating_point() or rewards_N.dtype == torch.float64
    ulps = ULPS * torch.finfo(torch.float64 if exact else torch.float32).eps
    rewards_N = rewards_N.double()
    # unsafe: torch's own check of the lengths would synchronise.
    over_groups = partial(torch.segment_reduce, lengths=sizes_G, unsafe=True)
    mean_G, least_G, greatest_G = (over_groups(rewards_N, reduction) for reduction in ("mean", "min", "max"))
    # An ulp between the rewards, or between them and their mean, would become an advantage where the spread divides it.
    constant_G = greatest_G - least_G <= ulps * torch.maximum(greatest_G, -least_G)
    constant_N = constant_G[groups_N]
    centred_N = (rewards_N - mean_G[groups_N]).masked_fill(constant_N, 0)
    squares_G = over_groups(centred_N.square(), "sum")
    stds_G = (squares_G / (sizes_G - 1).clamp(min=1)).sqrt()
    advantages_N = estimator_named(estimator).advantages(Groups(rewards_N, centred_N, stds_G, sizes_G, groups_N))
    return advantages_N.masked_fill(constant_N, 0).float(), stds_G.float()


def token_advantages(
    advantages: torch.Tensor, action_mask: torch.Tensor, kl: torch.Tensor | None = None, kl_coef: float = 0.0
) -> torch.Tensor:
    """Advantage of every token: that of its sample, less the KL penalties of the actions from the token on.

    The bits are those of OpenRLHF's loop over tokens (`get_cumulative_returns` at gamma 1). The sample's advantage stands
    at its last action, so tokens between actions (a tool's answer) have one as well, which the loss masks. Tokens
    after the last action and rows without an action get 0.

    Args:
        advantages: [B] float32 advantages of the samples, on the CPU.
        action_mask: [B, T] mask of the tokens that the policy chose, bool or a number (0 or 1).
        kl: [B, T] float32 KL to the reference policy at each token, or None.
        kl_coef: weight of `kl`.

    Returns:
        [B, T] float32.
    """
    if not action_mask.numel():
        return torch.zeros(action_mask.shape)
    ends = torch.arange(1, action_mask.size(1) + 1)
    last_end = (action_mask * ends).amax(dim=1, keepdim=True).long()
    if kl is None:
        return torch.where(ends <= last_end, 0.0 + advantages.unsqueeze(1), 0.0)
    rewards = (-kl_coef * kl).mul_(action_mask)
    rewards.scatter_add_(1, (last_end - 1).clamp(min=0), torch.where(last_end > 0, advantages.unsqueeze(1), 0.0))
    # numpy adds in float32, in the loop's order and from 0 on; torch.cumsum would add in float64.
    from_the_end = rewards.add_(0.0).numpy()[:, ::-1]
    np.cumsum(from_the_end, axis=1, out=from_the_end)
    return rewards
