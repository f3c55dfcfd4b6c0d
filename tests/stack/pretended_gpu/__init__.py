"""Wherever this is imported, vLLM's CPU platform takes GPUs from Ray as its CUDA platform does."""

from ray._private.accelerators.nvidia_gpu import NOSET_CUDA_VISIBLE_DEVICES_ENV_VAR
from vllm.platforms.cpu import CpuPlatform

CpuPlatform.ray_device_key = "GPU"
CpuPlatform.ray_noset_device_env_vars = [NOSET_CUDA_VISIBLE_DEVICES_ENV_VAR]


def unchanged(config):
    """A model's config. An engine with this for `hf_overrides` brings the import to its core and its workers."""
    return config
