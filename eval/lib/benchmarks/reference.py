"""The advantages that the kernel is tested and timed against, in eager torch."""

from collections.abc import Sequence

import torch

from openrlhf_sagc.advantages import group_statistics


def reference_group_advantages(
    rewards: torch.Tensor,
    offsets: torch.Tensor,
    action_mask: torch.Tensor,
    samples: torch.Tensor | None = None,
    *,
    estimator: str = "group_norm",
    clip_range: Sequence[float] | None = None,
    kl: torch.Tensor | None = None,
    kl_coef: float = 0.0,
    shift: float = 0.0,
    scale: float = 1.0,
    num_tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fused_group_advantages` of kernel.py on any device, for every estimator."""
    sizes_G = offsets.diff()
    groups_N = torch.repeat_interleave(sizes_G, output_size=len(rewards))
    advantages_N, stds_G = group_statistics(rewards, sizes_G, groups_N, estimator)
    if clip_range is not None:
        advantages_N = advantages_N.clamp(*clip_range)
    rows = slice(None) if samples is None else samples
    if action_mask.dim() == 1:
        last_end = action_mask.unsqueeze(1)
        assert num_tokens is not None
        ends = torch.arange(1, num_tokens + 1, device=rewards.device)
        action_mask = ends <= last_end
    else:
        ends = torch.arange(1, action_mask.shape[1] + 1, device=rewards.device)
        last_end = (action_mask * ends).amax(dim=1, keepdim=True)
    tokens = torch.where(ends <= last_end, advantages_N[rows].unsqueeze(1), 0.0)
    if kl is not None:
        tokens -= kl_coef * (action_mask * kl.float()).flip(1).cumsum(1).flip(1)
    return ((tokens - shift) * scale).to(dtype), stds_G[groups_N][rows]
