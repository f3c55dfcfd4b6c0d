import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.advantages import GROUP_ESTIMATORS, group_advantages


def float64_reference(group: list[float], estimator: str) -> torch.Tensor:
    """Textbook formula of one group, by list arithmetic."""
    n = len(group)
    mean = sum(group) / n
    if estimator == "group_norm":
        std = (sum((r - mean) ** 2 for r in group) / (n - 1)) ** 0.5
        return torch.tensor([(r - mean) / (std + 1e-9) for r in group])
    if estimator == "rloo":
        return torch.tensor([r - (sum(group) - r) / (n - 1) for r in group])
    if estimator == "median":
        ordered = sorted(group)
        return torch.tensor([r - (ordered[(n - 1) // 2] + ordered[n // 2]) / 2 for r in group])
    return torch.tensor([r - mean for r in group])


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_ragged_groups_match_their_formulas(estimator):
    torch.manual_seed(0)
    sizes = [4, 2, 32, 7, 16]
    rewards = torch.rand(sum(sizes))
    expected = torch.cat([float64_reference(g.double().tolist(), estimator) for g in rewards.split(sizes)])
    torch.testing.assert_close(group_advantages(rewards, sizes, estimator), expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@settings(deadline=None)
@given(value=st.floats(-1e6, 1e6, width=32), size=st.integers(1, 64))
def test_constant_groups_are_exactly_zero(estimator, value, size):
    assert torch.equal(group_advantages(torch.full((size,), value), [size], estimator), torch.zeros(size))


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_group_alone_gives_the_bits_it_gives_in_a_batch(estimator):
    torch.manual_seed(1)
    sizes = [3, 8, 5]
    rewards = torch.randn(sum(sizes))
    alone = torch.cat([group_advantages(group, [len(group)], estimator) for group in rewards.split(sizes)])
    assert torch.equal(alone, group_advantages(rewards, sizes, estimator))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float64])
def test_any_reward_dtype_gives_float32(dtype):
    rewards = torch.tensor([0, 1, 1, 0, 1, 1], dtype=dtype)
    advantages = group_advantages(rewards, [4, 2])
    assert advantages.dtype == torch.float32
    assert torch.equal(advantages, group_advantages(rewards.float(), [4, 2]))


def test_no_samples_give_no_advantages():
    assert group_advantages(torch.empty(0), []).shape == (0,)


@pytest.mark.parametrize(
    "rewards, sizes, estimator, words",
    [
        ([1.0, 2.0], [3], "group_norm", "sum to the 2 rewards"),
        ([1.0, 2.0], [2, 0], "group_norm", "positive"),
        ([1.0, float("nan"), 0.0], [1, 2], "rloo", "group 1"),
        ([float("inf"), 1.0], [2], "median", "group 0"),
        ([1.0, 2.0], [2], "gae", "estimator"),
        ([[1.0, 2.0]], [2], "rloo", "one dimension"),
    ],
)
def test_bad_input_is_named(rewards, sizes, estimator, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.tensor(rewards), sizes, estimator)
