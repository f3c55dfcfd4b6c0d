"""The estimators of samples' advantages: one table, which flags, refusals, savings, the closed form and the kernel read.

A new one is a function and an entry here; without a branch in kernel.py the closed form computes it on a GPU, too. Importing
this module imports no torch, for which no flag waits; redaction.py executes it as a file.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-9  # OpenRLHF's guard in group_norm


class Groups(NamedTuple):
    """The groups of N samples, which stand side by side; tensors of one device, those of rewards in float64."""

    rewards_N: "Tensor"
    centred_N: "Tensor"  # rewards less the mean of their group, 0 in a constant group
    stds_G: "Tensor"  # with Bessel's correction, 0 for a constant group
    sizes_G: "Tensor"  # integers
    groups_N: "Tensor"  # integers, the group of each sample, ascending


class Estimator(NamedTuple):
    """How advantages are made, and what that may be combined with."""

    advantages: Callable[[Groups], "Tensor"]  # [N] float64; those of constant groups become 0 afterwards
    whitens: bool = False  # over a step's tokens, as REINFORCE++: nothing is streamed, and tail batching changes them
    in_openrlhf: bool = False  # so that python -m openrlhf_sagc.off has it


def _median(groups: Groups) -> "Tensor":
    """Less the median, the middle two averaged: MC-GRPO's baseline (arXiv 2601.22582), without its rollout and scaling."""
    rewards_N, sizes_G, groups_N = groups.rewards_N, groups.sizes_G, groups.groups_N
    by_reward = rewards_N.argsort()
    sorted_N = rewards_N[by_reward[groups_N[by_reward].argsort(stable=True)]]  # by group, then by reward
    starts_G = sizes_G.cumsum(0) - sizes_G
    median_G = (sorted_N[starts_G + (sizes_G - 1) // 2] + sorted_N[starts_G + sizes_G // 2]) / 2
    return rewards_N - median_G[groups_N]


def _rloo(groups: Groups) -> "Tensor":
    sizes_G = groups.sizes_G
    return groups.centred_N * (sizes_G.double() / (sizes_G - 1).clamp(min=1))[groups.groups_N]


ESTIMATORS = {
    "group_norm": Estimator(lambda it: it.centred_N / (it.stds_G[it.groups_N] + EPS), in_openrlhf=True),  # GRPO
    "dr_grpo": Estimator(lambda it: it.centred_N, in_openrlhf=True),
    "rloo": Estimator(_rloo, in_openrlhf=True),  # less the mean of the others
    "reinforce_baseline": Estimator(lambda it: it.centred_N, whitens=True, in_openrlhf=True),
    "median": Estimator(_median),
}
OWN = [name for name, estimator in ESTIMATORS.items() if not estimator.in_openrlhf]


def estimator_named(name: str) -> Estimator:
    """The estimator of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {tuple(ESTIMATORS)}, got {name!r}")
    return ESTIMATORS[name]
