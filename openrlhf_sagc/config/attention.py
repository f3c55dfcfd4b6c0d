"""The attention kernel of GPUs without flash-attn. No import but the standard library: launch.sh's checks read this file by its path."""

import importlib.util
import os
import sys
from typing import Any

FLAG = "--ds.attn_implementation"
DEFAULT = "flash_attention_2"  # OpenRLHF's
# The hub's newest line of builds for each torch: it has torch 2.13 for CUDA 13.0 and 12.6. transformers 5.15 would take v1, which
# ends at torch 2.12, and v3's backward pass failed on grouped-query models until September 2026. docs/compatibility.md has sources.
KERNEL = "kernels-community/flash-attn2@v2"


def name_kernel(args: Any) -> None:
    """Put the kernel in the place of a flash-attn that is not installed, and say so. On the CPU stack nothing changes.

    Args:
        args: OpenRLHF's. `ds.attn_implementation` changes.
    """
    given = args.ds.attn_implementation
    if given != DEFAULT or args.ds.ring_attn_size > 1 or os.environ.get("DS_ACCELERATOR") == "cpu":
        return
    if importlib.util.find_spec("flash_attn") is None:
        args.ds.attn_implementation = KERNEL
        print(f"openrlhf_sagc: flash-attn is not installed, so {FLAG} {given} becomes {KERNEL}", file=sys.stderr)
