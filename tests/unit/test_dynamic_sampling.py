import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.dynamic_sampling import REASONS, DynamicSampler, groups_to_ask, survival, verdict


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
        ([0.5, 0.51], None),
        ([-1, 1], None),  # a mean of 0, which OpenRLHF's default range would drop
        ([1, None, 0], "reward_missing"),
        ([], "reward_missing"),
    ],
)
def test_a_group_is_kept_if_its_scores_differ(scores, reason):
    assert verdict(scores, tolerance=1e-6) == reason


def test_range_of_means_can_be_combined():
    judge = lambda scores: verdict(scores, 1e-6, (0.2, 0.8), check_range=True)  # noqa: E731
    assert judge([1, 0]) is None
    assert judge([1, 1, 1, 1, 1, 0]) == "out_of_range"
    assert judge([0.2, 0.2]) == "all_wrong" and judge([0.9, 0.9]) == "all_right" and judge([0.5, 0.5]) == "constant"


def test_without_a_filter_only_rewards_that_failed_count():
    sampler = DynamicSampler(tolerance=None)
    sampler.begin(3, 4)
    assert sampler.decide() == 3
    assert sampler.observe([1.0] * 4) is None
    assert sampler.observe([1.0, None, 1.0, 1.0]) == "reward_missing"
    assert sampler.decide() == 1  # one for one
    assert sampler.acceptance_rate(4) == 1


@pytest.mark.parametrize("size", [2, 4, 8, 32])
@pytest.mark.parametrize("right, wrong", [(1.0, 1.0), (0.3, 0.2), (8.0, 2.0), (0.05, 4.0)])
def test_survival_is_that_of_beta_distributed_success_rates(right, wrong, size):
    """Against E[p^G] = B(a + G, b) / B(a, b) by the gamma function."""
    beta = lambda a, b: math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)  # noqa: E731
    power = lambda a, b: math.exp(beta(a + size, b) - beta(a, b))  # noqa: E731
    mean = right / (right + wrong)
    square = mean * (right + 1) / (right + wrong + 1)
    assert survival(mean, square, size) == pytest.approx(1 - power(right, wrong) - power(wrong, right), rel=1e-6)


def roll_out(sampler, num_groups, size, success_rate, rng):
    """One step against prompts with these success rates, one verdict at a time; how many groups were dispatched."""
    sampler.begin(num_groups, size)
    waiting = sampler.decide()
    while waiting and not sampler.full:
        p = success_rate(rng)
        sampler.observe([float(rng.random() < p) for _ in range(size)])
        waiting += sampler.decide() - 1
    for _ in range(waiting):
        sampler.withdraw()
    sampler.end()
    return sampler.dispatched


def test_acceptance_rate_follows_the_data_and_carries_over_to_sizes_not_yet_seen():
    rng = random.Random(0)
    sampler = DynamicSampler()
    success_rate = lambda rng: rng.betavariate(0.3, 0.2)  # noqa: E731
    true = {size: survival(0.6, 0.6 * 1.3 / 1.5, size) for size in (4, 8, 16, 32)}
    for _ in range(30):
        roll_out(sampler, 16, 8, success_rate, rng)
    for size, rate in true.items():
        assert sampler.acceptance_rate(size) == pytest.approx(rate, abs=0.08), size
    assert sampler.acceptance_rate(4) < sampler.acceptance_rate(8) < sampler.acceptance_rate(32)


def test_measured_share_wins_where_the_model_does_not_fit():
    """Scores without a right or wrong: every group of 4 differs though all its scores are over the middle."""
    sampler = DynamicSampler()
    for _ in range(30):
        sampler.begin(16, 4)
        for _ in range(sampler.decide()):
            sampler.observe([0.7, 0.8, 0.9, 0.95])
        sampler.end()
    assert sampler.acceptance_rate(4) > 0.9


def test_one_round_is_mostly_enough():
    """The first dispatch of a step fills it in most steps, and asks for less than twice what is needed."""
    rng = random.Random(1)
    sampler = DynamicSampler()
    single, total = 0, 0
    for step in range(120):
        sampler.begin(16, 8)
        first = sampler.decide()
        kept = [sampler.observe([float(rng.random() < p)] * 7 + [1.0]) for p in [0.55] * first]
        single += sampler.full
        total += first
        for _ in range(sampler.in_flight):
            sampler.withdraw()
        sampler.end()
        assert kept.count(None) == sampler.accepted
    assert single > 80
    assert total / 120 < 16 / 0.45 * 1.35


@given(st.integers(1, 200), st.floats(0.01, 1))
def test_ask_grows_with_the_need_and_falls_with_the_rate(needed, rate):
    count = groups_to_ask(needed, rate)
    assert needed <= count and count * rate >= needed - 1
    assert groups_to_ask(needed + 1, rate) >= count
    assert groups_to_ask(needed, min(1.0, rate * 1.1)) <= count
    assert groups_to_ask(needed, 1.0) == needed


@pytest.mark.parametrize("cap", [1, 3, 10])
def test_the_cap_bounds_what_a_step_dispatches(cap):
    sampler = DynamicSampler(max_gen_batches=cap)
    for _ in range(5):
        dispatched = roll_out(sampler, 16, 8, lambda rng: 0.0, random.Random(0))
        assert dispatched == 16 * cap and sampler.decide() == 0 and not sampler.full
    assert sampler.metrics()["dropped_all_wrong"] == 16 * cap
    assert sampler.metrics()["gen_batches"] == cap
    assert sampler.pass_rate == 0


def test_carried_groups_count_towards_the_step():
    sampler = DynamicSampler(tolerance=None)
    sampler.begin(8, 4, accepted=3, in_flight=2)
    assert sampler.decide() == 3
    sampler.begin(8, 4, accepted=9)
    assert sampler.full and sampler.decide() == 0


def test_a_withdrawn_group_is_asked_for_again_unless_the_step_is_full():
    sampler = DynamicSampler(tolerance=None)
    sampler.begin(2, 4)
    assert sampler.decide() == 2
    sampler.withdraw()
    assert sampler.decide() == 1
    for _ in range(2):
        sampler.observe([0.0] * 4)
    assert sampler.full and sampler.metrics()["aborted"] == 1


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=4, max_size=4), min_size=1), st.data())
def test_every_group_is_counted_once_and_a_saved_sampler_goes_on_identically(groups, data):
    sampler, restored = DynamicSampler(), DynamicSampler()
    cut = data.draw(st.integers(0, len(groups)))

    def step(sampler, groups):
        sampler.begin(4, 4)
        sampler.in_flight = len(groups)
        for scores in groups:
            sampler.observe(scores)
        metrics = sampler.metrics()
        assert metrics["accepted"] + sum(metrics[f"dropped_{reason}"] for reason in REASONS) == len(groups)
        assert sampler.in_flight == 0
        sampler.end()

    step(sampler, groups[:cut])
    restored.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for one in (sampler, restored):
        step(one, groups[cut:])
    assert restored.state_dict() == sampler.state_dict()
    assert restored.acceptance_rate(8) == sampler.acceptance_rate(8)


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
