"""Group advantages against verl, torch_scatter, TRL and pandas, which tests/oracles/run.sh installs.

The oracles get the same float32 rewards in float64. In float32 their own rounding would be the greater part of a
difference; so it is ours of the result to float32, half an ulp.
"""

import math
from collections.abc import Callable
from functools import partial
from unittest import mock

import pandas as pd
import pytest
import torch
from torch_scatter import scatter_mean, scatter_std
from trl.trainer.utils import nanstd
from verl.trainer.ppo import core_algos

from openrlhf_sagc.advantages import EPS, ESTIMATORS, group_advantages, token_advantages

HALF_ULP = 2**-24  # of a float32, over its value
FLOAT64_ATOL = 1e-12  # what float64 leaves of a tiny spread
NUM_GROUPS = 200
NUM_TOKENS = 12

DRAW_REWARDS = {
    "uniform": lambda n: torch.rand(n),
    "normal": lambda n: torch.randn(n),
    "binary": lambda n: torch.rand(n).lt(0.3).float(),  # with constant groups
    "tiny_spread": lambda n: 0.9 + 1e-4 * torch.randn(n),
}


def verl_reinforce_baseline(*args) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE++-baseline's group part, without the whitening over the batch that follows in the same function."""
    with mock.patch.object(core_algos.verl_F, "masked_whiten", lambda values, mask: values):
        return core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(*args)


# Functions of rewards [N, T], response mask [N, T] and index [N], by our names of the estimators.
VERL = {
    "group_norm": partial(core_algos.compute_grpo_outcome_advantage, epsilon=EPS),
    "dr_grpo": partial(core_algos.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False),
    "rloo": core_algos.compute_rloo_outcome_advantage,
    "reinforce_baseline": verl_reinforce_baseline,
}


def of_samples(verl_function: Callable) -> Callable:
    """One of verl's functions as an oracle of samples: responses of one token."""

    def oracle(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
        return verl_function(rewards_N.unsqueeze(1), torch.ones(len(rewards_N), 1), groups_N.numpy())[0].squeeze(1)

    return oracle


def scatter_centred(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    return rewards_N - scatter_mean(rewards_N, groups_N)[groups_N]


def scatter_group_norm(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    return scatter_centred(rewards_N, groups_N) / (scatter_std(rewards_N, groups_N)[groups_N] + EPS)


def trl_group_norm(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """Groups as rows, NaN up to the longest's length."""
    groups = rewards_N.split(groups_N.bincount().tolist())
    padded = torch.nn.utils.rnn.pad_sequence(groups, batch_first=True, padding_value=float("nan"))
    advantages = (padded - padded.nanmean(1, keepdim=True)) / (nanstd(padded, 1, keepdim=True) + EPS)
    return torch.cat([row[: len(group)] for row, group in zip(advantages, groups)])


def pandas_median(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    rewards = pd.Series(rewards_N.numpy())
    return torch.tensor((rewards - rewards.groupby(groups_N.numpy()).transform("median")).to_numpy())


# (estimator, oracle, relative error of the oracle)
ORACLES = {
    **{f"verl_{estimator}": (estimator, of_samples(function), 0) for estimator, function in VERL.items()},
    "verl_rloo_vectorized": ("rloo", of_samples(core_algos.compute_rloo_vectorized_outcome_advantage), 0),
    "torch_scatter_mean": ("dr_grpo", scatter_centred, 0),
    "torch_scatter_std": ("group_norm", scatter_group_norm, 0.5e-6),  # adds 1e-6 to n - 1, the most in a pair
    "trl_nanstd": ("group_norm", trl_group_norm, HALF_ULP / 2),  # n / (n - 1) in float32, under the root
    "pandas_median": ("median", pandas_median, 0),
}


def draw_groups(distribution: str) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Rewards [N], sizes of the groups, and each sample's group [N]."""
    torch.manual_seed(0)
    sizes_G = torch.randint(2, 65, (NUM_GROUPS,))
    rewards_N = DRAW_REWARDS[distribution](int(sizes_G.sum()))
    return rewards_N, sizes_G.tolist(), torch.repeat_interleave(sizes_G)


@pytest.mark.parametrize("distribution", DRAW_REWARDS)
@pytest.mark.parametrize("name", ORACLES)
def test_samples_match_oracle(name, distribution):
    estimator, oracle, oracle_error = ORACLES[name]
    rewards_N, sizes, groups_N = draw_groups(distribution)
    ours = group_advantages(rewards_N, sizes, estimator).double()
    theirs = oracle(rewards_N.double(), groups_N)
    torch.testing.assert_close(ours, theirs, rtol=HALF_ULP + oracle_error, atol=FLOAT64_ATOL)


@pytest.mark.parametrize("estimator", VERL)
def test_masked_tokens_match_verl(estimator):
    """Masks with gaps (a tool's answers) and rows without an action; the reward stands at any one token."""
    rewards_N, sizes, groups_N = draw_groups("uniform")
    mask = torch.rand(len(rewards_N), NUM_TOKENS) < torch.rand(len(rewards_N), 1)
    mask[0] = False
    token_rewards = torch.zeros(len(rewards_N), NUM_TOKENS, dtype=torch.float64)
    token_rewards.scatter_(1, torch.randint(NUM_TOKENS, (len(rewards_N), 1)), rewards_N.double().unsqueeze(1))
    ours = token_advantages(group_advantages(rewards_N, sizes, estimator), mask) * mask
    theirs = VERL[estimator](token_rewards, mask, groups_N.numpy())[0]
    torch.testing.assert_close(ours.double(), theirs, rtol=HALF_ULP, atol=FLOAT64_ATOL)


def test_constant_groups_are_zero_where_float32_leaks():
    """A float32 mean is an ulp off at some sizes, and so is the std, which verl divides by with 1e-6 added."""
    sizes = torch.arange(2, 65)
    groups_N = torch.repeat_interleave(sizes)
    rewards_N = torch.full((len(groups_N),), 0.9, dtype=torch.float64)
    assert not group_advantages(rewards_N, sizes.tolist()).any()
    assert not group_advantages(rewards_N.float(), sizes.tolist()).any()
    assert of_samples(core_algos.compute_grpo_outcome_advantage)(rewards_N.float(), groups_N).abs().max() > 1e-3


def test_peers_disagree_on_a_group_of_one():
    """0 here; the raw reward from verl's loops, 0 from its vectorized RLOO and torch_scatter, NaN from TRL's nanstd."""
    reward, group = torch.tensor([0.7]), torch.tensor([0])
    assert all(group_advantages(reward, [1], estimator).item() == 0 for estimator in ESTIMATORS)
    peers = {name: oracle(reward, group).item() for name, (_, oracle, _) in ORACLES.items()}
    expected = dict.fromkeys(ORACLES, 0.0) | {f"verl_{name}": 0.7 for name in VERL} | {"trl_nanstd": math.nan}
    assert peers == pytest.approx(expected, nan_ok=True)
