"""What OpenRLHF's DeepspeedStrategy gathers from all ranks, for scripts that fork two of them over gloo."""

import torch
import torch.distributed as dist

RANKS = 2


def all_reduce(data: torch.Tensor, op: str) -> torch.Tensor:
    """The largest value of all ranks in each place, for op "max", or their sum."""
    dist.all_reduce(data, op={"max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}[op])
    return data


def all_gather(data: torch.Tensor) -> torch.Tensor:
    """The values of all ranks, one after the other."""
    gathered = [torch.zeros_like(data) for _ in range(RANKS)]
    dist.all_gather(gathered, data)
    return torch.cat(gathered)
