"""The attention that models run with on this node's GPUs; preflight.py asks before Ray starts."""

import importlib.metadata
import importlib.util
from contextlib import suppress

from gpus import torch_cuda

FLAG = "--ds.attn_implementation"
DEFAULT = "flash_attention_2"
RECIPES = "kernels-community/flash-attn2@v2"  # of the launch scripts
KERNELS = "kernels>=0.16,<0.17"  # as transformers 5.15 takes it
MODULES = {DEFAULT: "flash_attn", "flash_attention_3": "flash_attn_interface"}
FALLBACKS = {DEFAULT: "kernels-community/flash-attn2", "flash_attention_3": "kernels-community/vllm-flash-attn3"}


def attention_of(settings: dict[str, list[str]]) -> tuple[str, str]:
    """What the models' attention will be on a GPU, in words, and what is missing for it, which is empty if nothing is."""
    given = (settings.get(FLAG) or [DEFAULT])[0]
    packed = "--ds.packing_samples" in settings or "--train.dynamic_batch_enable" in settings
    if (settings.get("--ds.ring_attn_size") or ["1"])[0] != "1":
        missing = [name for name in ("flash_attn", "ring_flash_attn") if importlib.util.find_spec(name) is None]
        return f"{DEFAULT} in a ring", missing and f"--ds.ring_attn_size needs {' and '.join(missing)}" or ""
    if (module := MODULES.get(given)) and importlib.util.find_spec(module) is not None:
        return f"{given} of the installed {module}", ""
    kernel = FALLBACKS.get(given, given if "/" in given else "")
    if not kernel:
        return given + (", which costs the square of a whole pack" if packed else ""), ""
    if _has_kernels():
        return f"{kernel}, which kernels fetches from the hub once", ""
    compiled = f", or compile flash-attn 2.8.3 (nvcc of CUDA {torch_cuda() or 'as of torch'}, MAX_JOBS for its memory)"
    return kernel, (
        f"{FLAG} {given} finds no kernel: pip install '{KERNELS}'{compiled if given == DEFAULT else ''}, or {FLAG} sdpa"
    )


def _has_kernels() -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("kernels").startswith("0.16.")
    return False
