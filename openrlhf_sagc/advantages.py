"""Group advantages over groups of any size (GRPO and its variants)."""

from collections.abc import Sequence

import torch

GROUP_ESTIMATORS = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline", "median")
EPS = 1e-9  # OpenRLHF's guard in group_norm


def group_advantages(rewards: torch.Tensor, group_sizes: Sequence[int], estimator: str = "group_norm") -> torch.Tensor:
    """Advantage of every sample against its own group.

    A group of equal rewards and a group of one give exactly 0. A group gives bitwise the same alone and in a batch.

    Args:
        rewards: [N] rewards, samples of a group side by side, any real, bool or integer dtype.
        group_sizes: size of each group in order, sum N.
        estimator: group_norm ((r - mean) / (std + 1e-9), std with Bessel's correction; GRPO), dr_grpo and
            reinforce_baseline (r - mean), rloo (r - mean of the others), median (r - median, the middle two averaged;
            MC-GRPO).

    Returns:
        [N] float32 advantages.

    Raises:
        ValueError: unknown estimator, rewards that are not one-dimensional, sizes below 1 or not of sum N, or a NaN
            or infinite reward (the message names its group).
    """
    if estimator not in GROUP_ESTIMATORS:
        raise ValueError(f"estimator must be one of {GROUP_ESTIMATORS}, got {estimator!r}")
    sizes = [int(size) for size in group_sizes]
    if rewards.dim() != 1:
        raise ValueError(f"rewards must have one dimension, got shape {tuple(rewards.shape)}")
    if any(size < 1 for size in sizes) or sum(sizes) != len(rewards):
        raise ValueError(f"group_sizes must be positive and sum to the {len(rewards)} rewards, got {sizes}")

    # Two passes in float64 keep constant groups at 0 for any value; only the result is rounded to float32.
    rewards = rewards.double()
    advantages = torch.zeros(len(rewards), dtype=torch.float32, device=rewards.device)
    start = 0
    for index, size in enumerate(sizes):
        group = rewards[start : start + size]
        if not torch.isfinite(group).all():
            raise ValueError(f"group {index} has a reward that is not finite: {group.tolist()}")
        if group.min() < group.max():
            advantages[start : start + size] = _group_advantage(group, estimator).float()
        start += size
    return advantages


def _group_advantage(group: torch.Tensor, estimator: str) -> torch.Tensor:
    """Advantages [G] of one group [G] of float64 rewards that are not all equal."""
    if estimator == "rloo":
        return (group - group.mean()) * (len(group) / (len(group) - 1))
    if estimator == "median":
        return group - group.quantile(0.5)
    centred = group - group.mean()
    if estimator == "group_norm":
        return centred / (group.std() + EPS)
    return centred
