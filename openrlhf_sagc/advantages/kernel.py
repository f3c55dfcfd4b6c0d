"""From rewards to tokens' advantages in one launch, over groups of any size: a Triton kernel.

Importing this module imports Triton, so import it only where a GPU is in use.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from openrlhf_sagc.advantages.closed_form import ULPS
from openrlhf_sagc.advantages.estimators import EPS

FUSED = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline", "median")  # the estimators that have a branch below
NOISE = ULPS * torch.finfo(torch.float32).eps  # of the largest reward
BLOCK_G = 128  # rewards of a group read at a time; fixed, so that a group gives the same bits in any batch
BLOCK_T = 1024  # tokens of a row read at a time
ALIGN_T = 16  # rows of the output start at multiples of it, so that stores are 16 bytes wide


def fused_group_advantages(
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
    """Advantages of tokens from rewards: each row's group advantage, clipped, less its KL to come, whitened.

    One launch on the current stream, without synchronisation and without memory besides the outputs: a CUDA graph can
    capture it. Statistics are computed in float64, tokens in float32. Rewards are not checked, since that would
    synchronise: a NaN spreads over its group (median: over its own row). `group_advantages` does check.

    Args:
        rewards: [N] float32 rewards of a rollout, samples of a group side by side.
        offsets: [G + 1] integers, the first sample of each group, then N.
        action_mask: [B, T] mask of the tokens that the policy chose, bool or a number (0 or 1), of any strides; or
            [B] integers, the tokens of each row up to its last action, if all of them were chosen (`num_tokens` is T).
        samples: [B] integers, which of the N samples each row is; None where row i is sample i.
        estimator: one of FUSED.
        clip_range: least and greatest advantage of a sample, or None.
        kl: [B, T] KL to the reference policy at each token, any float dtype and strides, or None.
        kl_coef: weight of `kl`.
        shift, scale: subtracted from every token's advantage, then a factor on it (whitening).
        num_tokens: T if `action_mask` holds lengths.
        dtype: of the tokens' advantages, float32 or bfloat16.

    Returns:
        [B, T] advantages as those of `token_advantages`, a view whose rows begin at multiples of ALIGN_T elements;
        [B] float32 standard deviation of each row's group.

    Raises:
        ValueError: the kernel lacks the estimator, the rewards are not float32, or the shapes do not fit.
    """
    lengths_only = action_mask.dim() == 1
    shape = (len(action_mask), num_tokens if lengths_only else action_mask.shape[1])
    if estimator not in FUSED:
        raise ValueError(f"estimator must be one of {FUSED} in the kernel, got {estimator!r}")
    if rewards.dtype != torch.float32 or rewards.dim() != 1:
        raise ValueError(f"rewards must be [N] float32, got {tuple(rewards.shape)} {rewards.dtype}")
    if shape[1] is None:
        raise ValueError("num_tokens must be given if action_mask holds lengths")
    if (samples is None and shape[0] != len(rewards)) or (samples is not None and samples.shape != shape[:1]):
        raise ValueError(f"samples must name one of the {len(rewards)} samples for each of the {shape[0]} rows")
    if kl is not None and kl.shape != shape:
        raise ValueError(f"kl must be {shape} as the advantages, got {tuple(kl.shape)}")

    row_stride = -(-shape[1] // ALIGN_T) * ALIGN_T
    advantages = torch.empty(shape[0], row_stride, dtype=dtype, device=rewards.device)
    stds = torch.empty(shape[0], dtype=torch.float32, device=rewards.device)
    strides = rewards.stride() + offsets.stride() + ((0,) if samples is None else samples.stride())
    strides += action_mask.stride() + (0,) * lengths_only + ((0, 0) if kl is None else kl.stride()) + (row_stride,)
    numbers = shape[1], len(offsets) - 1, *map(float, (*(clip_range or (0, 0)), kl_coef, shift, scale))
    if shape[0]:
        with torch.cuda.device_of(rewards):
            _group_advantage_kernel[shape[:1]](
                *(rewards, offsets, samples, action_mask, kl, advantages, stds),
                *strides,
                *numbers,
                ESTIMATOR=estimator,
                CLIP=clip_range is not None,
                LENGTHS=lengths_only,
                EPS=EPS,
                NOISE=NOISE,
                BLOCK_G=BLOCK_G,
                BLOCK_T=BLOCK_T,
                **compile_options(estimator),
            )
    return advantages[:, : shape[1]], stds


def compile_options(estimator: str) -> dict[str, int]:
    """Triton's options for the kernel; without a limit on registers ptxas spills the median on sm_80."""
    limited = estimator == "median" and not torch.version.hip  # AMD's compiler has no such option
    return {"num_warps": 4} | ({"maxnreg": 128} if limited else {})


@triton.jit
def _median(group_ptr, stride, size, BLOCK_G: tl.constexpr):
    """Median of a group's rewards, the middle two averaged: 32 counts, one for each bit of the lower of the two."""
    lower = tl.full([], 0, tl.uint32)  # the greatest key that has no more than the lower half under it
    for i in range(32):
        candidate = lower | (tl.full([], 1, tl.uint32) << (31 - i))
        under = tl.zeros([BLOCK_G], tl.int32)
        for at in range(0, size, BLOCK_G):
            keys, inside = _load_keys(group_ptr, stride, at, size, BLOCK_G)
            under += (inside & (keys < candidate)).to(tl.int32)
        if tl.sum(under) <= (size - 1) // 2:
            lower = candidate
    up_to = tl.zeros([BLOCK_G], tl.int32)
    above = tl.full([BLOCK_G], 0xFFFFFFFF, tl.uint32)
    for at in range(0, size, BLOCK_G):
        keys, inside = _load_keys(group_ptr, stride, at, size, BLOCK_G)
        up_to += (inside & (keys <= lower)).to(tl.int32)
        above = tl.where(inside & (keys > lower) & (keys < above), keys, above)
    upper = lower if tl.sum(up_to) > size // 2 else tl.min(above)
    return (_reward_of(lower) + _reward_of(upper)) / 2


@triton.jit
def _load_keys(group_ptr, stride, at, size, BLOCK_G: tl.constexpr):
    """Unsigned integers in the order of the rewards: a float's bits, the sign flipped, all flipped if it is negative."""
    samples = at + tl.arange(0, BLOCK_G)
    inside = samples < size
    bits = tl.load(group_ptr + samples.to(tl.int64) * stride, mask=inside, other=0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000), inside


@triton.jit
def _reward_of(key):
    bits = tl.where(key >= 0x80000000, key & 0x7FFFFFFF, ~key)
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit(do_not_specialize=["num_tokens", "num_groups"])
def _group_advantage_kernel(
    rewards_ptr,
    offsets_ptr,
    samples_ptr,
    mask_ptr,
    kl_ptr,
    advantages_ptr,
    stds_ptr,
    rewards_stride,
    offsets_stride,
    samples_stride,
    mask_stride_b,
    mask_stride_t,
    kl_stride_b,
    kl_stride_t,
    advantages_stride_b,
    num_tokens,
    num_groups,
    clip_low,
    clip_high,
    kl_coef,
    shift,
    scale,
    ESTIMATOR: tl.constexpr,
    CLIP: tl.constexpr,
    LENGTHS: tl.constexpr,
    EPS: tl.constexpr,
    NOISE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """A program computes a row: its group's statistics, then its tokens."""
    row = tl.program_id(0).to(tl.int64)
    sample = row if samples_ptr is None else tl.load(samples_ptr + row * samples_stride).to(tl.int64)

    # The last group that starts at or before the sample.
    low = 0
    high = num_groups
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(offsets_ptr + middle * offsets_stride) <= sample:
            low = middle
        else:
            high = middle
    start = tl.load(offsets_ptr + low * offsets_stride).to(tl.int64)
    size = (tl.load(offsets_ptr + (low + 1) * offsets_stride) - start).to(tl.int32)
    group_ptr = rewards_ptr + start * rewards_stride

    if ESTIMATOR == "median":
        median = _median(group_ptr, rewards_stride, size, BLOCK_G)
    sums = tl.zeros([BLOCK_G], tl.float64)
    greatest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    least = tl.full([BLOCK_G], float("inf"), tl.float32)
    for at in range(0, size, BLOCK_G):
        samples = at + tl.arange(0, BLOCK_G)
        rewards = tl.load(group_ptr + samples.to(tl.int64) * rewards_stride, mask=samples < size, other=0)
        sums += rewards.to(tl.float64)
        greatest = tl.where((samples < size) & (rewards > greatest), rewards, greatest)
        least = tl.where((samples < size) & (rewards < least), rewards, least)
    mean = tl.sum(sums) / size
    top = tl.max(greatest).to(tl.float64)
    bottom = tl.min(least).to(tl.float64)
    # Rewards that differ by ulps alone are equal, unless one is NaN: then the mean is.
    constant = (top - bottom <= NOISE * tl.maximum(top, -bottom)) & (mean == mean)
    squares = tl.zeros([BLOCK_G], tl.float64)
    for at in range(0, size, BLOCK_G):
        samples = at + tl.arange(0, BLOCK_G)
        rewards = tl.load(group_ptr + samples.to(tl.int64) * rewards_stride, mask=samples < size, other=0)
        centred = tl.where(samples < size, rewards.to(tl.float64) - mean, 0)
        squares += centred * centred
    std = tl.where(constant, 0.0, tl.sqrt(tl.sum(squares) / tl.maximum(size - 1, 1)))
    tl.store(stds_ptr + row, std.to(tl.float32))

    reward = tl.load(rewards_ptr + sample * rewards_stride).to(tl.float64)
    if ESTIMATOR == "group_norm":
        advantage = (reward - mean) / (std + EPS)
    elif ESTIMATOR == "rloo":
        advantage = (reward - mean) * (size.to(tl.float64) / tl.maximum(size - 1, 1))
    elif ESTIMATOR == "median":
        advantage = reward - median
    elif ESTIMATOR == "dr_grpo" or ESTIMATOR == "reinforce_baseline":
        advantage = reward - mean
    advantage = tl.where(constant, 0.0, advantage).to(tl.float32)
    if CLIP:
        advantage = tl.clamp(advantage, clip_low, clip_high, propagate_nan=tl.PropagateNan.ALL)

    mask_row = mask_ptr + row * mask_stride_b
    blocks = tl.cdiv(num_tokens, BLOCK_T)
    if LENGTHS:
        last = tl.load(mask_row).to(tl.int32) - 1
    else:
        last = -1  # searched from the end, so that a mask is read from its last action on only
        block = blocks - 1
        while (last < 0) & (block >= 0):
            tokens = block * BLOCK_T + tl.arange(0, BLOCK_T)
            chosen = tl.load(mask_row + tokens.to(tl.int64) * mask_stride_t, mask=tokens < num_tokens, other=0)
            last = tl.max(tl.where(chosen != 0, tokens, -1))
            block -= 1

    penalty = 0.0  # sum over the tokens after the block
    for i in range(blocks):
        tokens = (blocks - 1 - i) * BLOCK_T + tl.arange(0, BLOCK_T)
        inside = tokens < num_tokens
        values = tl.where(tokens <= last, advantage, 0.0)
        if kl_ptr is not None:
            chosen = tokens <= last
            if not LENGTHS:
                mask = tl.load(mask_row + tokens.to(tl.int64) * mask_stride_t, mask=inside, other=0)
                chosen = chosen & (mask != 0)
            offsets = row * kl_stride_b + tokens.to(tl.int64) * kl_stride_t
            kl = tl.load(kl_ptr + offsets, mask=chosen & inside, other=0).to(tl.float32)
            values -= kl_coef * (tl.cumsum(kl, reverse=True) + penalty)
            penalty += tl.sum(kl)
        values = ((values - shift) * scale).to(advantages_ptr.dtype.element_ty)
        tl.store(advantages_ptr + row * advantages_stride_b + tokens, values, mask=tokens < advantages_stride_b)
