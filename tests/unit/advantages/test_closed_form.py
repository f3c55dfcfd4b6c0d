import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.advantages import ESTIMATORS, group_advantages, group_statistics, token_advantages


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


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ragged_groups_match_their_formulas(estimator):
    torch.manual_seed(0)
    sizes = [4, 2, 32, 7, 16, 4096, 129, 3]
    rewards = torch.rand(sum(sizes))
    expected = torch.cat([float64_reference(g.double().tolist(), estimator) for g in rewards.split(sizes)])
    torch.testing.assert_close(group_advantages(rewards, sizes, estimator), expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(
    value=st.floats(-1e30, 1e30) | st.sampled_from([0.9, 0.7, 0.1]),
    size=st.integers(1, 64) | st.just(4096),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_constant_groups_are_exactly_zero(estimator, value, size, dtype):
    rewards = torch.full((size,), value, dtype=dtype)
    assert torch.equal(group_advantages(rewards, [size], estimator), torch.zeros(size))
    between = torch.cat([rewards.new_tensor([1, 2]), rewards, rewards.new_tensor([3, 1])])
    assert not group_advantages(between, [2, size, 2], estimator)[2:-2].any()


def apart(value, ulps, dtype=torch.float32):
    """Six rewards, three of them so many ulps further from 0 than the others."""
    other = torch.tensor(value, dtype=dtype)
    for _ in range(ulps):
        other = torch.nextafter(other, torch.full_like(other, torch.inf * value))
    return torch.stack([torch.tensor(value, dtype=dtype), other] * 3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("value", [1.3, -1.3, 250.0, 1e-30, -1e30, 0.9999999, 16777216.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ulps_are_no_signal_and_more_is(estimator, value, dtype):
    """4 ulps are 0 wherever they lie between two powers of 2; 20 are what they were, to the bit."""
    rewards = apart(value, 4, dtype)
    assert rewards[0] != rewards[1]
    mixed = torch.cat([rewards, rewards.new_tensor([0, 1])])
    assert not group_advantages(mixed, [6, 2], estimator)[:6].any()
    rewards = apart(value, 20, dtype)
    made = group_advantages(rewards, [6], estimator)
    assert (made.sign() == (rewards - rewards[0] / 2 - rewards[1] / 2).sign()).all()
    if estimator == "dr_grpo":
        assert torch.equal(made, (rewards.double() - rewards.double().mean()).float())


def test_the_rewards_of_the_report():
    """1.29999995 and 1.30000007 are the same reward, summed in another order; they gave 0.85 and -0.85."""
    assert not group_advantages(torch.tensor([1.29999995, 1.30000007] * 4), [8]).any()
    assert not group_advantages(torch.tensor([0.1 + 0.2, 0.3, 0.7 - 0.4], dtype=torch.float64), [3]).any()


def test_float64_rewards_keep_their_precision():
    rewards = torch.tensor([1e9, 1e9 + 0.5, 1e9 + 1, 1e9], dtype=torch.float64)  # the same in float32
    torch.testing.assert_close(group_advantages(rewards, [4], "dr_grpo"), torch.tensor([-0.375, 0.125, 0.625, -0.375]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_group_alone_gives_the_bits_it_gives_in_a_batch(estimator):
    torch.manual_seed(1)
    sizes = [3, 8, 1, 5, 4096, 33]
    rewards = torch.randn(sum(sizes))
    alone = torch.cat([group_advantages(group, [len(group)], estimator) for group in rewards.split(sizes)])
    assert torch.equal(alone, group_advantages(rewards, sizes, estimator))
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
        ([0.0, 1.0, 1e300], [2, 1], "dr_grpo", "group 1 has a reward that is not finite: 1e.300"),
        ([1.0, 2.0], [2], "gae", "estimator"),
        ([[1.0, 2.0]], [2], "rloo", "one dimension"),
    ],
)
def test_bad_input_is_named(rewards, sizes, estimator, words):
    with pytest.raises(ValueError, match=words):
        group_advantages(torch.tensor(rewards, dtype=torch.float64), sizes, estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_standard_deviations_are_those_of_the_groups(estimator):
    torch.manual_seed(2)
    sizes = [4, 1, 9, 8]
    rewards = torch.rand(sum(sizes))
    rewards[-8:] = 0.9
    groups = torch.tensor([0] * 4 + [1] + [2] * 9 + [3] * 8)
    stds = group_statistics(rewards, torch.tensor(sizes), groups, estimator)[1]
    torch.testing.assert_close(stds, torch.stack([rewards[:4].std(), torch.zeros(()), rewards[5:14].std(), stds[3]]))
    assert stds[3] == 0


def loop_over_tokens(advantages, action_mask, kl=None, kl_coef=0.0):
    """OpenRLHF's compute_reward and get_cumulative_returns, a token at a time."""
    rows = []
    for advantage, mask, kl_row in zip(
        advantages, action_mask.long(), torch.zeros(action_mask.shape) if kl is None else kl
    ):
        last = max((t for t, chosen in enumerate(mask.tolist()) if chosen), default=-1)
        later, row = torch.zeros(()), []
        for t in reversed(range(len(mask))):
            reward = (advantage if t == last else torch.zeros(())) + -kl_coef * kl_row[t]
            later = mask[t] * reward + 1.0 * later
            row.append(later)
        rows.append(torch.stack(row[::-1]))
    return torch.stack(rows)


@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40)),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    dtype=st.sampled_from([torch.bool, torch.int64, torch.float32]),
    kl_coef=st.sampled_from([None, 0.0, 0.05, 3.0]),
)
def test_tokens_have_the_bits_of_the_loop(seed, shape, share, dtype, kl_coef):
    """Multi-turn masks with holes, rows without an action, with and without KL in the reward."""
    generator = torch.Generator().manual_seed(seed)
    advantages = torch.randn(shape[0], generator=generator)
    mask = (torch.rand(shape, generator=generator) < share).to(dtype)
    penalty = {} if kl_coef is None else {"kl": torch.randn(shape, generator=generator), "kl_coef": kl_coef}
    tokens = token_advantages(advantages, mask, **penalty)
    assert tokens.numpy().tobytes() == loop_over_tokens(advantages, mask, **penalty).numpy().tobytes()
    assert not tokens[~mask.bool().any(dim=1)].any()


def test_rows_without_tokens():
    assert token_advantages(torch.ones(3), torch.zeros(3, 0, dtype=torch.long)).shape == (3, 0)
    assert token_advantages(torch.ones(0), torch.zeros(0, 4, dtype=torch.long)).shape == (0, 4)
