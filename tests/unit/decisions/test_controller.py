import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.controller import StragglerAwareGroupController

STEPS, SAMPLES = 200, 256  # of a path, and of each of its steps

lengths = st.floats(0, 1e6) | st.integers(0, 10**6)
steps_of_groups = st.lists(st.lists(st.lists(lengths, min_size=1, max_size=33), max_size=6), max_size=30)


# --- what one step does -----------------------------------------------------------------------------------------------


def test_event_is_max_against_the_averaged_median():
    controller = StragglerAwareGroupController()
    controller.observe([[1, 1, 1, 2.5], [1, 1, 3, 5], [1, 2.5], [7, 7, 7, 7]])
    # Medians 1, 2, 1.75 and 7: the longest of the first two groups is just 2.5 times as long.
    assert controller.metrics()["straggler_rate"] == 0.5


@given(st.lists(st.lists(lengths, min_size=1, max_size=33), min_size=1, max_size=6))
def test_rate_and_hazard_count_what_numpys_median_says(groups):
    controller = StragglerAwareGroupController()
    controller.observe(groups)
    medians = [np.median(np.array(group, float)) for group in groups]
    hits = [sum(x >= 2.5 * m and x > m for x in g) if min(g) < max(g) else 0 for g, m in zip(groups, medians)]
    assert controller.metrics()["straggler_rate"] == sum(map(bool, hits)) / len(groups)
    hits = [hit for group, hit in zip(groups, hits) if len(group) > 2]  # smaller ones cannot have an event
    trials = sum(len(group) - 1 for group in groups if len(group) > 2)
    assert controller.metrics()["hazard"] == pytest.approx((1 + sum(hits)) / (21 + trials))


def test_hazard_queue_and_balance_follow_their_formulas():
    controller = StragglerAwareGroupController(discount=0.5, max_straggler_rate=0.2)
    controller.observe([[1, 1, 1, 9], [1, 1, 1, 1]])
    assert controller.metrics()["hazard"] == pytest.approx((1 + 1) / (1 + 1 + 20 + 6 - 1))
    assert controller.metrics()["virtual_queue"] == controller.metrics()["balance"] == pytest.approx(0.5 - 0.2)
    controller.observe([[1, 1, 1, 1]])
    assert controller.metrics()["hazard"] == pytest.approx((1 + 0.5) / (1 + 0.5 + 20 + 0.5 * 5 + 3))
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


@given(controllers, steps_of_groups)
def test_excess_over_the_limit_never_exceeds_the_queue(controller, steps):
    excess = 0.0
    for groups in steps:
        controller.observe(groups)
        if groups:
            excess += controller.metrics()["straggler_rate"] - controller.max_straggler_rate
        check_invariants(controller, excess)


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


@given(steps_of_groups)
def test_same_history_in_any_order_and_container_gives_the_same_sizes(steps):
    lists, arrays = StragglerAwareGroupController(), StragglerAwareGroupController()
    for groups in steps:
        lists.observe(groups)
        arrays.observe([np.array(group) if len(group) % 2 else tuple(group) for group in reversed(groups)])
        assert arrays.group_size == lists.group_size
    assert arrays.state_dict() == lists.state_dict()


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
        ("objective", "speed"),
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


def test_within_a_frame_the_size_stays_but_falls_while_the_balance_is_above_half_of_v():
    quiet, events = [[1, 1, 1, 1]] * 4, [[1, 1, 1, 9]] * 4
    controller = StragglerAwareGroupController(initial_group_size=8, tradeoff=2.0)
    controller.observe(quiet, frame_ends=False)
    assert controller.group_size == 8
    for _ in range(10):
        controller.observe(quiet)
    assert controller.group_size == 32
    sizes = []
    for _ in range(20):
        controller.observe(events, frame_ends=False)
        sizes.append((controller.group_size, controller.metrics()["balance"] > 1))
    assert {above for size, above in sizes if size == 32} == {False}
    assert {above for size, above in sizes if size < 32} == {True} and sizes[-1][0] == 4
    for _ in range(100):
        controller.observe(quiet, frame_ends=False)
    assert controller.group_size == 4
    controller.observe(quiet)
    assert controller.group_size > 4
