"""The controller on streams of long-tailed lengths whose tail drifts, and where no size can meet the limit."""

import numpy as np
import pytest

from openrlhf_sagc.controller import StragglerAwareGroupController

STEPS, SAMPLES = 200, 256  # of a stream, and of each of its steps


def lognormal(rng, tail, groups, size):
    return rng.lognormal(5, tail, (groups, size))


def pareto(rng, tail, groups, size):
    return 100 * (1 + rng.pareto(tail, (groups, size)))


def slow_rollouts(rng, tail, groups, size):
    """A share `tail` of rollouts is 5 to 10 times as long."""
    slow = rng.random((groups, size)) < tail
    return rng.lognormal(5, 0.25, (groups, size)) * np.where(slow, rng.uniform(5, 10, (groups, size)), 1)


def slow_prompts(rng, tail, groups, size):
    """A share `tail` of prompts has a heavy tail, the others none: q_G is far from 1 - (1 - h)^(G - 1)."""
    return np.exp(np.where(rng.random((groups, 1)) < tail, 1.3, 0.25) * rng.standard_normal((groups, size)))


def constant(value):
    return np.full(STEPS, value)


def drift(start, end):
    return np.linspace(start, end, STEPS)


def sudden(before, after, step=100):
    return np.where(np.arange(STEPS) < step, before, after)


def wave(low, high, period=40):
    return low + (high - low) * (1 - np.cos(2 * np.pi * np.arange(STEPS) / period)) / 2


STREAMS = {
    "lognormal constant": (lognormal, constant(0.55), 0.2),
    "lognormal constant, low limit": (lognormal, constant(0.45), 0.1),
    "lognormal constant, high limit": (lognormal, constant(0.65), 0.3),
    "lognormal constant, size 8 meets it": (lognormal, constant(0.47), 0.2),
    "lognormal constant, size 16 meets it": (lognormal, constant(0.41), 0.2),
    "lognormal constant, size 32 meets it": (lognormal, constant(0.36), 0.2),
    "lognormal rising": (lognormal, drift(0.4, 0.58), 0.2),
    "lognormal falling": (lognormal, drift(0.58, 0.4), 0.2),
    "lognormal wave": (lognormal, wave(0.4, 0.58), 0.2),
    "lognormal sudden rise": (lognormal, sudden(0.4, 0.58), 0.2),
    "lognormal sudden rise, early": (lognormal, sudden(0.4, 0.68, 60), 0.3),
    "lognormal sudden fall": (lognormal, sudden(0.58, 0.45), 0.2),
    "pareto constant": (pareto, constant(2.4), 0.2),
    "pareto constant, low limit": (pareto, constant(3.4), 0.1),
    "pareto constant, size 16 meets it": (pareto, constant(4.5), 0.2),
    "pareto constant, high limit": (pareto, constant(1.9), 0.3),
    "pareto rising": (pareto, drift(4.0, 2.4), 0.2),
    "pareto falling": (pareto, drift(2.4, 4.0), 0.2),
    "pareto sudden rise": (pareto, sudden(4.0, 2.4), 0.2),
    "pareto sudden rise, early": (pareto, sudden(4.0, 2.4, 60), 0.2),
    "pareto sudden fall": (pareto, sudden(2.4, 4.0), 0.2),
    "slow rollouts constant": (slow_rollouts, constant(0.03), 0.2),
    "slow rollouts rising": (slow_rollouts, drift(0.0, 0.045), 0.2),
    "slow rollouts sudden rise": (slow_rollouts, sudden(0.01, 0.085), 0.3),
    "slow rollouts sudden fall": (slow_rollouts, sudden(0.05, 0.01), 0.2),
    "slow prompts constant": (slow_prompts, constant(0.17), 0.2),
    "slow prompts constant, low limit": (slow_prompts, constant(0.12), 0.1),
    "slow prompts rising": (slow_prompts, drift(0.05, 0.3), 0.2),
    "slow prompts wave": (slow_prompts, wave(0.05, 0.25), 0.2),
    "slow prompts sudden rise": (slow_prompts, sudden(0.05, 0.3), 0.2),
    "slow prompts sudden fall": (slow_prompts, sudden(0.3, 0.15), 0.2),
}


def fixed_size_rates(sample, tails):
    """Expected straggler rate of each fixed size: the worst of the stream's steps and their mean."""
    rng, rates = np.random.default_rng(1), {}
    values, steps = np.unique(tails, return_counts=True)
    for size in (4, 8, 16, 32):
        groups = (sample(rng, tail, max(20_000 // len(values), 400), size) for tail in values)
        of_tail = np.array([np.mean(x.max(1) >= 2.5 * np.median(x, 1)) for x in groups])
        rates[size] = of_tail.max(), np.average(of_tail, weights=steps)
    return rates


@pytest.mark.parametrize("name", STREAMS)
def test_rate_ends_under_the_limit_and_the_mean_size_near_the_best_fixed_one(name):
    """Within 200 steps of 256 samples, on streams whose every step the smallest size can meet the limit."""
    sample, tails, limit = STREAMS[name]
    rates = fixed_size_rates(sample, tails)
    assert rates[4][0] < limit + 0.01  # the maximum over many tails, each estimated from 400 groups, errs upwards
    best = max(size for size, (_, mean) in rates.items() if mean <= limit)

    for seed in range(2):
        rng, controller, sizes = (
            np.random.default_rng(seed),
            StragglerAwareGroupController(max_straggler_rate=limit),
            [],
        )
        for tail in tails:
            sizes.append(controller.group_size)
            controller.observe(sample(rng, tail, SAMPLES // sizes[-1], sizes[-1]))
            assert controller.metrics()["feasible"]
        assert controller.metrics()["straggler_rate_mean"] <= limit + 0.02
        assert np.mean(sizes) >= 0.9 * best


def test_larger_tradeoff_follows_the_limit_more_slowly():
    rates = []
    for tradeoff in (0.5, 2.0, 20.0):
        rng, controller = np.random.default_rng(0), StragglerAwareGroupController(tradeoff=tradeoff)
        for _ in range(STEPS):
            controller.observe(lognormal(rng, 0.55, SAMPLES // controller.group_size, controller.group_size))
        rates.append(controller.metrics()["straggler_rate_mean"])
    assert rates == sorted(rates)
    assert rates[2] > rates[1] + 0.02


# --- a limit out of reach ---------------------------------------------------------------------------------------------


def test_no_evidence_is_no_alarm():
    controller = StragglerAwareGroupController(max_straggler_rate=0.02)
    assert controller.metrics()["feasible"]
    controller.observe([[1, 1, 1, 1]] * 4)
    assert controller.metrics()["feasible"] == 1.0


def test_evidence_that_has_faded_away_is_no_alarm():
    controller = StragglerAwareGroupController(discount=0.5)
    controller.observe([[1, 1, 1, 9]] * 4)
    for _ in range(1200):  # until nothing of the smallest size is left in a float
        controller.observe([[1] * 8 + [9] * 8])
        assert controller.metrics()["feasible"] == 1.0
    assert controller.state_dict()["seen"]["4"] == [0.0, 0.0]


@pytest.mark.parametrize("initial_group_size", [4, 32])
@pytest.mark.parametrize(
    "sample, tail, limit",
    [
        (lognormal, 1.0, 0.3),
        (lognormal, 0.7, 0.2),
        (pareto, 1.5, 0.2),
        (slow_rollouts, 0.1, 0.2),
        (slow_prompts, 0.3, 0.1),
    ],
)
def test_alarm_where_even_the_smallest_size_breaks_the_limit(sample, tail, limit, initial_group_size):
    rng = np.random.default_rng(0)
    controller = StragglerAwareGroupController(max_straggler_rate=limit, initial_group_size=initial_group_size)
    alarms = []
    for _ in range(100):
        controller.observe(sample(rng, tail, SAMPLES // controller.group_size, controller.group_size))
        alarms.append(controller.metrics()["feasible"] == 0.0)
    assert all(alarms[30:])
    assert controller.group_size == 4


def test_alarm_ends_once_the_smallest_size_meets_the_limit():
    rng, controller = np.random.default_rng(0), StragglerAwareGroupController(max_straggler_rate=0.2)
    for tail in sudden(1.0, 0.4):
        controller.observe(lognormal(rng, tail, SAMPLES // controller.group_size, controller.group_size))
    assert controller.metrics()["feasible"]


def test_groups_that_cannot_have_an_event_say_nothing_of_the_hazard():
    """Of two lengths the longer is below twice their median: such groups would make stragglers look rare."""
    rates = []
    for sizes in ((2, 32), (4, 32)):
        rng = np.random.default_rng(0)
        controller = StragglerAwareGroupController(group_sizes=sizes, straggler_ratio=2.5, max_straggler_rate=0.2)
        for _ in range(100):
            controller.observe(lognormal(rng, 0.55, SAMPLES // controller.group_size, controller.group_size))
        rates.append(controller.metrics()["straggler_rate_mean"])
    assert rates[0] < 0.23 and rates[1] < 0.23
    alone = StragglerAwareGroupController(group_sizes=(2, 32), straggler_ratio=2.5)
    before = alone.metrics()["hazard"]
    alone.observe([[10, 30]] * 50, [[False, True]] * 50)
    assert alone.metrics()["hazard"] == before and alone.metrics()["straggler_rate"] == 0
    below = StragglerAwareGroupController(group_sizes=(2, 32), straggler_ratio=1.5)
    below.observe([[10, 300]] * 50)
    assert below.metrics()["hazard"] > before and below.metrics()["straggler_rate"] == 1
