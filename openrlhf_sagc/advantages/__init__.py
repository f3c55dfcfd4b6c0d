"""From rewards to the advantages of tokens: a closed form for every device, and a Triton kernel for GPUs.

Only `openrlhf_sagc.advantages.kernel` imports Triton. The table of the estimators comes without torch.
"""

from importlib import import_module

from openrlhf_sagc.advantages.estimators import EPS, ESTIMATORS

__all__ = ["EPS", "ESTIMATORS", "group_advantages", "group_statistics", "token_advantages"]


def __getattr__(name: str):
    """What is the closed form's, whose torch is imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("openrlhf_sagc.advantages.closed_form"), name)
