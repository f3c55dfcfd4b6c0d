"""vLLM's CPU backend samples another distribution where it verifies drafts (vllm #55005): mended where engines draft."""

import torch


def expand(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None) -> None:
    """The value of each request for each of its draft tokens, as vLLM's `expand_kernel` writes it to `output`.

    vLLM's own for CPUs converts `output` to int64 and writes to that copy, so that temperature and top-p of drafted
    tokens are what was in memory before.

    Args:
        output: [tokens], of all requests one behind the other.
        input_val: [requests].
        cu_num_tokens: [requests], tokens of a request and all before it.
        replace_from, replace_to: a value, and what is written in its place.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.repeat_interleave(input_val, counts.long())
    output[: len(values)] = torch.where(values == replace_from, replace_to, values).to(output.dtype)


def repair() -> None:
    """Run in an engine on a CPU, before its first draft; a vLLM whose kernel writes as it should is left as it is."""
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils.expand_kernel
    probe, ones = torch.zeros(2), torch.ones(1)
    kernel[(1,)](probe, ones, torch.tensor([2], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=2)
    if not bool((probe == 1).all()):
        kernel.func = expand
