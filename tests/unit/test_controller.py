import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.controller import StragglerAwareGroupController

STEPS, SAMPLES = 200, 256  # of a stream, and of each of its steps

lengths = st.floats(0, 1e6) | st.integers(0, 10**6)
steps_of_groups = st.lists(st.lists(st.lists(lengths, min_size=1, max_size=33), max_size=6), max_size=30)


# --- what one step does -----------------------------------------------------------------------------------------------


def test_event_is_max_against_the_averaged_median():
    controller = StragglerAwareGroupController()
    controller.observe([[1, 1, 1, 2.5], [1, 1, 3, 5], [1, 2.5], [7, 7, 7, 7]])
    # Medians 1, 2, 1.75 and 7: the longest of the first two groups is just 2.5 times as long.
    assert controller.metrics()["straggler_rate"] == 0.5


@settings(deadline=None)
@given(st.lists(st.lists(lengths, min_size=1, max_size=33), min_size=1, max_size=6))
def test_rate_and_hazard_count_what_numpys_median_says(groups):
    controller = StragglerAwareGroupController()
    controller.observe(groups)
    medians = [np.median(np.array(group, float)) for group in groups]
    hits = [sum(x >= 2.5 * m and x > m for x in g) if min(g) < max(g) else 0 for g, m in zip(groups, medians)]
    assert controller.metrics()["straggler_rate"] == sum(map(bool, hits)) / len(groups)
    assert controller.hazard == pytest.approx((1 + sum(hits)) / (21 + sum(len(group) - 1 for group in groups)))


def test_hazard_queue_and_balance_follow_their_formulas():
    controller = StragglerAwareGroupController(discount=0.5, max_straggler_rate=0.2)
    controller.observe([[1, 1, 1, 9], [1, 1, 1, 1]])
    assert controller.hazard == pytest.approx((1 + 1) / (1 + 1 + 20 + 6 - 1))
    assert controller.metrics()["virtual_queue"] == controller.metrics()["balance"] == pytest.approx(0.5 - 0.2)
    controller.observe([[1, 1, 1, 1]])
    assert controller.hazard == pytest.approx((1 + 0.5) / (1 + 0.5 + 20 + 0.5 * 5 + 3))
    assert controller.metrics()["virtual_queue"] == controller.metrics()["balance"] == pytest.approx(0.3 - 0.2)
    for _ in range(9):
        controller.observe([[1, 1, 1, 1]])
    assert controller.metrics()["virtual_queue"] == 0
    assert controller.metrics()["balance"] == pytest.approx(-0.2 / (1 - 0.5))  # the most credit


def event_probabilities(metrics, sizes=(4, 8, 16, 32)):
    rate, clustering = -math.log(1 - metrics["hazard"]), metrics["clustering"]
    return np.array([1 - (1 + clustering * rate * (size - 1)) ** (-1 / clustering) for size in sizes])


def best_utility(probabilities, limit):
    """Most expected utility of a mix of two sizes whose event probability is the limit."""
    points = list(zip(probabilities, np.log2([1, 2, 4, 8]) / 3))
    pairs = [(p, q) for p in points for q in points if p[0] <= limit < q[0]]
    return max(u0 + (u1 - u0) * (limit - q0) / (q1 - q0) for (q0, u0), (q1, u1) in pairs)


@pytest.mark.parametrize("hazard, limit", [(0.01, 0.1), (0.02, 0.2), (0.03, 0.3), (0.05, 0.3)])
def test_size_and_price_follow_their_formulas(hazard, limit):
    rng = np.random.default_rng(0)
    controller = StragglerAwareGroupController(max_straggler_rate=limit, initial_group_size=8)
    for _ in range(50):
        controller.observe(np.where(rng.random((32, controller.group_size)) < hazard, 9, 1))
        metrics = controller.metrics()
        probabilities = event_probabilities(metrics)
        if not probabilities[0] < limit < probabilities[-1]:
            continue
        slope = (best_utility(probabilities, limit + 1e-7) - best_utility(probabilities, limit - 1e-7)) / 2e-7
        price = max(metrics["balance"] + 2.0 * max(slope - 0.5, 0), 0)
        assert metrics["price"] == pytest.approx(price, rel=1e-3)
        values = 2.0 * np.log2([1, 2, 4, 8]) / 3 - metrics["price"] * probabilities
        ties = values >= values.max() - 1e-6  # exact ones do occur: the balance moves in steps of 1/32
        assert controller.group_size == (4, 8, 16, 32)[np.argmax(ties)]
    assert metrics["hazard"] == pytest.approx(hazard, rel=0.3)
    assert metrics["clustering"] < 0.3


def test_clustering_explains_fewer_events_than_the_hazard_predicts():
    controller = StragglerAwareGroupController()
    for _ in range(100):
        controller.observe([[1] * 13 + [9] * 3] + [[1] * 16] * 9)
    metrics = controller.metrics()
    assert metrics["hazard"] == pytest.approx(0.02, rel=0.01)  # 3 of 150
    assert event_probabilities(metrics, [16])[0] == pytest.approx(0.1, rel=0.05)  # and not 1 - 0.98 ** 15 = 0.26


def test_step_without_groups_changes_nothing():
    controller = StragglerAwareGroupController(initial_group_size=16)
    before = controller.state_dict()
    controller.observe([])
    assert controller.state_dict() == before
    assert controller.group_size == 16


@pytest.mark.parametrize(
    "groups", [[[1, 1, 1]], [[5]], [[0, 0, 0, 0]], [[3, 3], [1]], [[5e-324] * 4], [[1.7e308] * 4]]
)
def test_equal_zero_and_single_lengths_are_no_event(groups):
    controller = StragglerAwareGroupController()
    controller.observe(groups)
    assert controller.metrics()["straggler_rate"] == 0


def test_zero_median_takes_any_longer_rollout_for_a_straggler():
    controller = StragglerAwareGroupController()
    controller.observe([[0, 0, 0, 5]])
    assert controller.metrics()["straggler_rate"] == 1


# --- properties on every path -----------------------------------------------------------------------------------------

REACTIONS = {  # whether a group of the size chosen, in this step, has an event
    "always": lambda controller, step: True,
    "never": lambda controller, step: False,
    "when not the smallest": lambda controller, step: controller.group_size > controller.group_sizes[0],
    "when the largest": lambda controller, step: controller.group_size == controller.group_sizes[-1],
    "when the smallest": lambda controller, step: controller.group_size == controller.group_sizes[0],
    "every other step": lambda controller, step: step % 2 == 0,
    "in credit": lambda controller, step: controller.metrics()["balance"] <= 0,
}


def adversarial_step(controller, reaction, step, groups):
    event = REACTIONS[reaction](controller, step)
    return [[1] * (controller.group_size - 1) + [9 if event else 1]] * groups


controllers = st.builds(
    StragglerAwareGroupController,
    group_sizes=st.sets(st.integers(3, 64), min_size=2, max_size=5),
    max_straggler_rate=st.floats(0.01, 0.99),
    tradeoff=st.floats(0.01, 100),
    discount=st.floats(0.1, 1),
)


def check_invariants(controller, excess):
    metrics = controller.metrics()
    assert excess <= metrics["balance"] + 1e-9
    assert metrics["balance"] <= metrics["virtual_queue"]
    assert controller.group_size in controller.group_sizes
    assert all(map(math.isfinite, metrics.values()))


@settings(deadline=None)
@given(controllers, steps_of_groups)
def test_excess_over_the_limit_never_exceeds_the_queue(controller, steps):
    excess = 0.0
    for groups in steps:
        controller.observe(groups)
        if groups:
            excess += controller.metrics()["straggler_rate"] - controller.max_straggler_rate
        check_invariants(controller, excess)


@settings(deadline=None)
@given(controllers, st.lists(st.tuples(st.sampled_from(sorted(REACTIONS)), st.integers(1, 64)), max_size=60))
def test_excess_never_exceeds_the_queue_when_lengths_react_to_the_size(controller, plan):
    excess = 0.0
    for step, (reaction, groups) in enumerate(plan):
        controller.observe(adversarial_step(controller, reaction, step, groups))
        excess += controller.metrics()["straggler_rate"] - controller.max_straggler_rate
        check_invariants(controller, excess)


@pytest.mark.parametrize("limit", [0.1, 0.2, 0.3])
@pytest.mark.parametrize(
    "reaction, allowance",
    [("never", 0), ("when not the smallest", 0.02), ("when the largest", 0.03), ("in credit", 0.02)],
)
def test_limit_holds_when_lengths_react_and_some_size_meets_it(reaction, allowance, limit):
    """A jump from no events to certain ones between two sizes is outside the hazard model: the balance alone finds it."""
    controller = StragglerAwareGroupController(max_straggler_rate=limit)
    for step in range(STEPS):
        controller.observe(adversarial_step(controller, reaction, step, SAMPLES // controller.group_size))
    assert controller.metrics()["straggler_rate_mean"] <= limit + allowance


@settings(deadline=None)
@given(controllers, steps_of_groups, st.integers(0, 30))
def test_restored_controller_continues_identically(straight, steps, cut):
    for groups in steps[:cut]:
        straight.observe(groups)
    restored = StragglerAwareGroupController(
        straight.group_sizes, max_straggler_rate=straight.max_straggler_rate, tradeoff=straight.tradeoff,
        discount=straight.discount,
    )  # fmt: skip
    restored.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert restored.metrics() == straight.metrics()
    for groups in steps[cut:]:
        straight.observe(groups)
        restored.observe(groups)
        assert restored.group_size == straight.group_size
    assert restored.metrics() == straight.metrics()
    assert restored.state_dict() == straight.state_dict()


@settings(deadline=None)
@given(steps_of_groups)
def test_same_history_in_any_order_and_container_gives_the_same_sizes(steps):
    lists, arrays = StragglerAwareGroupController(), StragglerAwareGroupController()
    for groups in steps:
        lists.observe(groups)
        arrays.observe([np.array(group) if len(group) % 2 else tuple(group) for group in reversed(groups)])
        assert arrays.group_size == lists.group_size
    assert arrays.state_dict() == lists.state_dict()


# --- streams whose tail drifts ----------------------------------------------------------------------------------------


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
            assert controller.feasible
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
    assert controller.feasible
    controller.observe([[1, 1, 1, 1]] * 4)
    assert controller.metrics()["feasible"] == 1.0


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
    assert controller.feasible


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups, words",
    [
        ([[1, 2], [3, float("nan")]], "group 1 has a length of nan"),
        ([[1, -2]], "group 0 has a length of -2"),
        ([[float("inf")]], "group 0 has a length of inf"),
        ([[1, 10**400]], "group 0 has a length of 10"),
        ([[1], []], "group 1 has no rollouts"),
        ([[1, None]], "group 0 has a length of None"),
        ([[1, 2], ["3", 4]], "group 1 has a length of 3"),
        ([[[1, 2], [3, 4]]], r"group 0 has a length of \[1, 2\]"),
        ([[1, [2]]], r"group 0 has a length of \[2\]"),
        ([np.array([1, 2]), np.array([3, np.nan])], "group 1 has a length of nan"),
    ],
)
def test_bad_lengths_are_named_and_change_nothing(groups, words):
    controller = StragglerAwareGroupController()
    controller.observe([[1, 1, 1, 9]])
    before = controller.state_dict()
    with pytest.raises(ValueError, match=words):
        controller.observe(groups)
    assert controller.state_dict() == before


@pytest.mark.parametrize(
    "argument, value",
    [
        ("group_sizes", ()),
        ("group_sizes", (1, 8)),
        ("group_sizes", (4, 6.5)),
        ("group_sizes", (4, float("inf"))),
        ("straggler_ratio", 1.0),
        ("straggler_ratio", float("nan")),
        ("max_straggler_rate", 0),
        ("max_straggler_rate", 1),
        ("max_straggler_rate", float("nan")),
        ("tradeoff", 0),
        ("tradeoff", float("inf")),
        ("discount", 0),
        ("discount", 1.5),
        ("initial_group_size", 5),
    ],
)
def test_bad_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        StragglerAwareGroupController(**{argument: value})


@pytest.mark.parametrize(
    "entry, words",
    [
        ({"group_size": 5}, "group_size 5"),
        ({"virtual_queue": float("nan")}, "virtual_queue"),
        ({"balance": float("-inf")}, "balance"),
        ({"hazard_a": "1"}, "hazard_a"),
        ({"hazard_b": 0}, "hazard_b"),
        ({"steps": -1}, "steps"),
        ({"seen": [4, 1, 0]}, "seen"),
        ({"seen": {"4": 1}}, "seen"),
        ({"seen": {"four": [1, 0]}}, "seen"),
        ({"seen": {"4": [1, 2]}}, "seen"),
        ({"seen": {"4": [float("nan"), 0]}}, "seen"),
    ],
)
def test_bad_state_is_named_and_changes_nothing(entry, words):
    controller = StragglerAwareGroupController(initial_group_size=16)
    before = controller.state_dict()
    with pytest.raises(ValueError, match=words):
        controller.load_state_dict({**before, "group_size": 8, **entry})
    with pytest.raises(ValueError, match="lacks"):
        controller.load_state_dict({"group_size": 8})
    assert controller.state_dict() == before


def test_state_may_be_loaded_under_another_limit():
    controller = StragglerAwareGroupController()
    controller.observe([[1, 1, 1, 9]])
    resumed = StragglerAwareGroupController(
        group_sizes=(2, 4, 8, 32), max_straggler_rate=0.3, tradeoff=1.0, discount=0.9
    )
    resumed.load_state_dict(controller.state_dict())
    resumed.observe([[1, 1, 1, 1]])
    assert resumed.group_size in resumed.group_sizes


def test_a_single_size_stays_and_is_measured():
    controller = StragglerAwareGroupController(group_sizes=[8])
    for lengths in ([1] * 7 + [9], [1] * 8, [1] * 7 + [9]):
        controller.observe([lengths])
        assert controller.group_size == 8
    assert controller.metrics()["straggler_rate_mean"] == pytest.approx(2 / 3)
    assert all(map(math.isfinite, controller.metrics().values()))
