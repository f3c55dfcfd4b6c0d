"""Inputs of the benchmarks of per-token advantages, and OpenRLHF's way from rewards to the advantages of tokens."""

from collections.abc import Callable

import torch

PROMPT = 256  # tokens, an eighth of a row where rows are short
KL_COEF = 0.05


def draw_batch(rows: int, tokens: int, generator: torch.Generator, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Responses that end anywhere in the last half of the tokens; masks as OpenRLHF has them.

    Returns:
        advantages [rows] float32; mask [rows, tokens] int64; kl [rows, tokens] float32.
    """
    ends = torch.randint(tokens // 2, tokens + 1, (rows, 1), generator=generator)
    positions = torch.arange(tokens)
    mask = ((positions >= min(PROMPT, tokens // 8)) & (positions < ends)).long()
    kl = 0.01 * torch.randn(rows, tokens, generator=generator) * mask
    batch = {"advantages": torch.randn(rows, generator=generator), "mask": mask, "kl": kl}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def openrlhf_path(get_cumulative_returns: Callable) -> Callable:
    """OpenRLHF's way from samples' advantages to those of tokens, with one of its versions of the sum."""
    from openrlhf.models.utils import compute_reward  # not there on a machine with PyTorch and Triton alone

    def path(batch: dict[str, torch.Tensor], kl_coef: float) -> torch.Tensor:
        reward = compute_reward(batch["advantages"], kl_coef, batch["kl"], action_mask=batch["mask"])
        return get_cumulative_returns(None, reward, batch["mask"], 1.0).clone()  # returns, and advantages

    return path
