"""From rewards to the advantages of tokens: a closed form for every device, and a Triton kernel for GPUs.

Importing this package does not import Triton; only `openrlhf_sagc.advantages.kernel` does.
"""

from openrlhf_sagc.advantages.closed_form import (
    EPS,
    GROUP_ESTIMATORS,
    group_advantages,
    group_statistics,
    token_advantages,
)

__all__ = ["EPS", "GROUP_ESTIMATORS", "group_advantages", "group_statistics", "token_advantages"]
