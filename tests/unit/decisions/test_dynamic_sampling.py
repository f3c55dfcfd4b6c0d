import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.dynamic_sampling import REASONS, DynamicSampler, groups_to_ask, survival


@pytest.mark.parametrize(
    "scores, reason",
    [
        ([1, 0, 1, 1], None),
        ([1, 1, 1, 1], "all_right"),
        ([0, 0, 0, 0], "all_wrong"),
        ([-1, -1], "all_wrong"),
        ([0.5] * 4, "constant"),
        ([0.1] * 3, "constant"),  # whose standard deviation is 1.4e-17 in numpy
        ([0.5, 0.5 + 1e-7], "constant"),
        ([250.0, 250.0 + 2**-16], "all_right"),  # an ulp of a float32
        ([-250.0, -250.0 - 2**-16], "all_wrong"),
        ([250.0, 250.0 + 2**-10], None),
        ([0.5, 0.51], None),
        ([-1, 1], None),  # a mean of 0, which OpenRLHF's default range would drop
        ([1, None, 0], None),
        ([1, None, 1], "all_right"),
        ([None, 0], "reward_missing"),  # one sample teaches nothing
        ([None, None], "reward_missing"),
        ([], "reward_missing"),
    ],
)
def test_a_group_is_kept_if_its_scores_differ(scores, reason):
    assert DynamicSampler().judge(scores).reason == reason


def test_range_of_means_can_be_combined():
    judge = lambda scores: DynamicSampler(score_range=(0.2, 0.8), check_range=True).judge(scores).reason  # noqa: E731
    assert judge([1, 0]) is None
    assert judge([1, 1, 1, 1, 1, 0]) == "out_of_range"
    assert judge([0.2, 0.2]) == "all_wrong" and judge([0.9, 0.9]) == "all_right" and judge([0.5, 0.5]) == "constant"


def test_without_a_filter_only_rewards_that_failed_count():
    sampler = DynamicSampler(tolerance=None)
    assert sampler.judge([1.0] * 4).reason is None
    assert sampler.judge([1.0, None, 1.0, None]).reason is None
    assert sampler.judge([1.0, None, None, None]).reason == "reward_missing"
    assert sampler.judge([1.0]).reason is None and sampler.judge([None]).reason == "reward_missing"  # groups of one
    sampler.observe([sampler.judge([None] * 4)] * 9)
    assert sampler.acceptance_rate(4) == 1


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=16), st.integers(0, 5), st.randoms())
def test_right_samples_and_pairs_are_counted_of_those_that_have_a_reward(scores, failed, rng):
    all_scores = [*scores, *[None] * failed]
    rng.shuffle(all_scores)
    verdict = DynamicSampler().judge(all_scores)
    right = [score > 0.5 for score in scores]
    pairs = list(itertools.combinations(right, 2))
    assert verdict.group_size == len(all_scores) and verdict.right == sum(right) / len(right)
    assert verdict.right_pairs == pytest.approx(sum(map(all, pairs)) / len(pairs))


@pytest.mark.parametrize("size", [2, 4, 8, 32])
@pytest.mark.parametrize("right, wrong", [(1.0, 1.0), (0.3, 0.2), (8.0, 2.0), (0.05, 4.0)])
def test_survival_is_that_of_beta_distributed_success_rates(right, wrong, size):
    """Against E[p^G] = B(a + G, b) / B(a, b) by the gamma function."""
    beta = lambda a, b: math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)  # noqa: E731
    power = lambda a, b: math.exp(beta(a + size, b) - beta(a, b))  # noqa: E731
    mean = right / (right + wrong)
    square = mean * (right + 1) / (right + wrong + 1)
    assert survival(mean, square, size) == pytest.approx(1 - power(right, wrong) - power(wrong, right), rel=1e-6)


def observe_step(sampler, groups):
    sampler.observe([sampler.judge(scores) for scores in groups])


def test_acceptance_rate_follows_the_data_and_carries_over_to_sizes_not_yet_seen():
    rng = random.Random(0)
    sampler = DynamicSampler()
    success_rate = lambda rng: rng.betavariate(0.3, 0.2)  # noqa: E731
    true = {size: survival(0.6, 0.6 * 1.3 / 1.5, size) for size in (4, 8, 16, 32)}
    for _ in range(30):
        rates = [success_rate(rng) for _ in range(32)]
        observe_step(sampler, [[float(rng.random() < p) for _ in range(8)] for p in rates])
    for size, rate in true.items():
        assert sampler.acceptance_rate(size) == pytest.approx(rate, abs=0.08), size
    assert sampler.acceptance_rate(4) < sampler.acceptance_rate(8) < sampler.acceptance_rate(32)


def test_measured_share_wins_where_the_model_does_not_fit():
    """Scores without a right or wrong: every group of 4 differs though all its scores are over the middle."""
    sampler = DynamicSampler()
    for _ in range(30):
        observe_step(sampler, [[0.7, 0.8, 0.9, 0.95]] * 16)
    assert sampler.acceptance_rate(4) > 0.9


@given(st.integers(1, 200), st.floats(0.01, 1))
def test_ask_grows_with_the_need_and_falls_with_the_rate(needed, rate):
    count = groups_to_ask(needed, rate)
    assert needed <= count and count * rate >= needed - 1
    assert groups_to_ask(needed + 1, rate) >= count
    assert groups_to_ask(needed, min(1.0, rate * 1.1)) <= count
    assert groups_to_ask(needed, 1.0) == needed


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=4, max_size=4), min_size=1), st.data())
def test_a_saved_sampler_goes_on_identically(groups, data):
    sampler, restored = DynamicSampler(), DynamicSampler()
    cut = data.draw(st.integers(0, len(groups)))
    observe_step(sampler, groups[:cut])
    restored.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for one in (sampler, restored):
        observe_step(one, groups[cut:])
    assert restored.state_dict() == sampler.state_dict()
    assert restored.acceptance_rate(8) == sampler.acceptance_rate(8)
    assert all(reason is None or reason in REASONS for _, reason, *_ in map(sampler.judge, groups))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"tolerance": -0.1}, "tolerance must be a finite number of at least 0, got -0.1"),
        ({"tolerance": math.nan}, "tolerance must be a finite number of at least 0, got nan"),
        ({"score_range": (1, 0)}, "range must be two numbers, the smaller one first, got 1 0"),
        ({"max_gen_batches": 0}, "max_gen_batches must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        DynamicSampler(**arguments)
