import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.controller import StragglerAwareGroupController

lengths = st.floats(0, 1e6) | st.integers(0, 10**6)
steps_of_groups = st.lists(st.lists(st.lists(lengths, min_size=1, max_size=33), max_size=6), max_size=30)


def lognormal_step(rng, size, groups=16, sigma=0.6):
    return rng.lognormal(5, sigma, (groups, size)).tolist()


def test_event_is_max_against_the_averaged_median():
    controller = StragglerAwareGroupController()
    controller.observe([[1, 1, 1, 2.5], [1, 1, 3, 5], [1, 2.5], [7, 7, 7, 7]])
    # Medians 1, 2, 1.75 and 7: the longest of the first two groups is just 2.5 times as long.
    assert controller.metrics()["straggler_rate"] == 0.5


def test_hazard_and_queue_follow_their_formulas():
    controller = StragglerAwareGroupController(discount=0.5, max_straggler_rate=0.2)
    controller.observe([[1, 1, 1, 9], [1, 1, 1, 1]])
    assert controller.hazard == pytest.approx((1 + 1) / (1 + 1 + 20 + 6 - 1))
    assert controller.metrics()["virtual_queue"] == pytest.approx(0.5 - 0.2)
    controller.observe([[1, 1, 1, 1]])
    assert controller.hazard == pytest.approx((1 + 0.5) / (1 + 0.5 + 20 + 0.5 * 5 + 3))
    assert controller.metrics()["virtual_queue"] == pytest.approx(0.3 - 0.2)


def test_size_maximises_drift_plus_penalty_with_ties_to_the_smaller():
    controller = StragglerAwareGroupController(group_sizes=(4, 8, 16, 32))
    controller.observe([[1, 1, 1, 1]])
    assert controller.group_size == 32  # an empty queue leaves only the utility
    for _ in range(30):
        controller.observe([[1, 1, 1, 9]] * 4)
    queue, hazard = controller.metrics()["virtual_queue"], controller.hazard
    values = {g: 2.0 * math.log(g / 4) / math.log(8) - queue * (1 - (1 - hazard) ** (g - 1)) for g in (4, 8, 16, 32)}
    assert controller.group_size == max(values, key=values.get) == 4


@settings(deadline=None)
@given(steps_of_groups)
def test_excess_over_the_limit_never_exceeds_the_queue(steps):
    controller = StragglerAwareGroupController()
    excess = 0.0
    for groups in steps:
        controller.observe(groups)
        if groups:
            excess += controller.metrics()["straggler_rate"] - controller.max_straggler_rate
        assert excess <= controller.metrics()["virtual_queue"] + 1e-9
        assert controller.group_size in controller.group_sizes
        assert all(map(math.isfinite, controller.metrics().values()))


@settings(deadline=None)
@given(steps_of_groups, st.integers(0, 30))
def test_restored_controller_continues_identically(steps, cut):
    straight = StragglerAwareGroupController()
    for groups in steps[:cut]:
        straight.observe(groups)
    restored = StragglerAwareGroupController()
    restored.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for groups in steps[cut:]:
        straight.observe(groups)
        restored.observe(groups)
    assert restored.metrics() == straight.metrics()
    assert restored.state_dict() == straight.state_dict()


def test_long_run_rate_stays_under_a_limit_that_small_groups_can_meet():
    rng = np.random.default_rng(0)
    controller = StragglerAwareGroupController(max_straggler_rate=0.3)
    sizes = []
    for _ in range(400):
        sizes.append(controller.group_size)
        controller.observe(lognormal_step(rng, controller.group_size))
    assert controller.metrics()["straggler_rate_mean"] <= 0.32
    assert np.mean(sizes[100:]) > 4  # and not by hiding at the smallest size
    assert controller.feasible


def test_says_when_even_the_smallest_size_breaks_the_limit():
    rng = np.random.default_rng(0)
    controller = StragglerAwareGroupController(max_straggler_rate=0.02)
    for _ in range(100):
        controller.observe(lognormal_step(rng, controller.group_size, sigma=1.5))
    assert controller.group_size == 4
    assert controller.metrics()["feasible"] == 0.0


def test_step_without_groups_changes_nothing():
    controller = StragglerAwareGroupController(initial_group_size=16)
    before = controller.state_dict()
    controller.observe([])
    assert controller.state_dict() == before
    assert controller.group_size == 16


@pytest.mark.parametrize("groups", [[[1, 1, 1]], [[5]], [[0, 0, 0, 0]], [[3, 3], [1]]])
def test_equal_zero_and_single_lengths_are_no_event(groups):
    controller = StragglerAwareGroupController()
    controller.observe(groups)
    assert controller.metrics()["straggler_rate"] == 0


@pytest.mark.parametrize(
    "groups, words",
    [
        ([[1, 2], [3, float("nan")]], "group 1 has a length of nan"),
        ([[1, -2]], "group 0 has a length of -2"),
        ([[float("inf")]], "group 0 has a length of inf"),
        ([[1], []], "group 1 has no rollouts"),
        ([[1, None]], "group 0 has a length of None"),
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
        ("group_sizes", (8,)),
        ("group_sizes", (8, 8)),
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
        ({"hazard_a": "1"}, "hazard_a"),
        ({"steps": -1}, "steps"),
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
