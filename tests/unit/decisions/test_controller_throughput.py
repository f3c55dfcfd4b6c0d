"""The controller with the objective throughput: the fastest size within the limit, and the same guarantees."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.objectives import Forecast

STEPS, SAMPLES, SIZES = 200, 256, (4, 8, 16, 32)


def controller_of(**settings):
    return StragglerAwareGroupController(**{"objective": "throughput", **settings})


def forecasts_of(seconds):
    """Steps of SAMPLES samples that take these seconds."""
    return [Forecast(SAMPLES * (size - 1) / size, duration, 0.0) for size, duration in zip(SIZES, seconds)]


def groups_of(rng, hazard, size):
    return np.where(rng.random((SAMPLES // size, size)) < hazard, 9, 1)


@pytest.mark.parametrize(
    "seconds, fastest",
    [((1, 1, 1, 1), 32), ((1, 1.05, 1.3, 1.7), 8), ((1, 1.3, 1.5, 1.7), 4), ((2, 1.5, 1.2, 1.3), 16)],
)
def test_without_a_limit_that_binds_it_takes_the_size_with_the_most_effective_samples_a_second(seconds, fastest):
    rng, controller = np.random.default_rng(0), controller_of(max_straggler_rate=0.95)
    for _ in range(20):
        controller.observe(groups_of(rng, 0.005, controller.group_size), forecasts=forecasts_of(seconds))
        assert controller.group_size == fastest
        assert controller.metrics()["price"] == 0


@pytest.mark.parametrize("hazard, limit", [(0.02, 0.2), (0.04, 0.3)])
@pytest.mark.parametrize("seconds", [(1, 1, 1, 1), (1, 0.9, 0.85, 0.85)])
def test_within_the_limit_it_comes_near_the_best_mix_of_sizes(hazard, limit, seconds):
    rng, controller = np.random.default_rng(1), controller_of(max_straggler_rate=limit)
    forecasts, sizes = forecasts_of(seconds), []
    for _ in range(STEPS):
        sizes.append(controller.group_size)
        controller.observe(groups_of(rng, hazard, controller.group_size), forecasts=forecasts)
    effective, duration = ({size: f[i] for size, f in zip(SIZES, forecasts)} for i in (0, 1))
    rate = sum(effective[size] for size in sizes) / sum(duration[size] for size in sizes)
    chance = {size: 1 - (1 - hazard) ** (size - 1) for size in SIZES}
    meets = [size for size in SIZES if chance[size] <= limit]
    assert controller.metrics()["straggler_rate_mean"] <= limit + 0.02
    assert rate >= 0.99 * max(effective[size] / duration[size] for size in meets)
    assert max(chance[size] for size in meets) - 0.05 < controller.metrics()["straggler_rate_mean"]


def test_without_forecasts_it_is_the_objective_size():
    rng, plain, other = np.random.default_rng(2), StragglerAwareGroupController(), controller_of()
    for _ in range(50):
        groups = groups_of(rng, 0.03, plain.group_size)
        plain.observe(groups)
        other.observe(groups)
        assert other.group_size == plain.group_size
    plain.observe(groups, forecasts=forecasts_of((1, 2, 3, 4)))  # size has no use for them
    other.observe(groups)
    assert other.state_dict() == plain.state_dict()


# --- the guarantees on the limit, whatever is forecast ----------------------------------------------------------------

numbers = st.floats(1e-3, 1e3)
forecasts = st.lists(st.builds(Forecast, numbers, numbers, st.floats(0, 2)), min_size=4, max_size=4)
steps = st.tuples(forecasts, st.lists(st.booleans(), min_size=1, max_size=8), st.booleans())
plans = st.lists(steps, max_size=40)


@given(plans, st.floats(0.01, 0.99))
def test_excess_over_the_limit_never_exceeds_the_queue(plan, limit):
    controller, excess = controller_of(max_straggler_rate=limit), 0.0
    for expected, events, ends in plan:
        groups = [[1] * (controller.group_size - 1) + [9 if event else 1] for event in events]
        controller.observe(groups, forecasts=expected, frame_ends=ends)
        metrics = controller.metrics()
        excess += metrics["straggler_rate"] - limit
        assert excess <= metrics["balance"] + 1e-9
        assert metrics["balance"] <= metrics["virtual_queue"]
        assert controller.group_size in SIZES and all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("limit", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("seconds", [(1, 1, 1, 1), (4, 3, 2, 1), (1, 2, 3, 4), (1, 0.5, 0.5, 1)])
@pytest.mark.parametrize("least", [8, 16, 32])
@pytest.mark.parametrize("frame", [1, 5])
def test_limit_holds_when_lengths_react_and_some_size_meets_it(least, seconds, limit, frame):
    """Groups from `least` on always have an event, which no model foresees: the balance alone finds it."""
    controller = controller_of(max_straggler_rate=limit)
    for step in range(STEPS):
        size = controller.group_size
        groups = [[1] * (size - 1) + [9 if size >= least else 1]] * (SAMPLES // size)
        controller.observe(groups, forecasts=forecasts_of(seconds), frame_ends=step % frame == 0)
    assert controller.metrics()["straggler_rate_mean"] <= limit + 0.03


@given(plans, st.integers(0, 40))
def test_restored_controller_continues_identically(plan, cut):
    straight, restored = controller_of(), controller_of()

    def run(controller, steps):
        for expected, events, ends in steps:
            groups = [[1] * (controller.group_size - 1) + [9 if event else 1] for event in events]
            controller.observe(groups, forecasts=expected, frame_ends=ends)

    run(straight, plan[:cut])
    restored.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert restored.metrics() == straight.metrics()
    for controller in (straight, restored):
        run(controller, plan[cut:])
    assert restored.state_dict() == straight.state_dict()


@pytest.mark.parametrize("sizes", [(2,), (2, 4), (2, 32), (128, 256), (2, 16, 256)])
@pytest.mark.parametrize("objective", ["size", "throughput"])
@pytest.mark.parametrize("hazard", [0.0005, 0.02])
def test_small_and_large_sizes_keep_the_limit_if_one_of_them_does(sizes, objective, hazard):
    """A group of 2 has no event at a ratio of 2.5: it meets every limit."""
    rng, controller = np.random.default_rng(3), controller_of(group_sizes=sizes, objective=objective)
    chances = [(1 - (1 - hazard) ** (size - 1)) * (size > 2) for size in sizes]
    for _ in range(STEPS):
        size = controller.group_size
        groups = np.where(rng.random((2048 // size, size)) < hazard, 9, 1)
        controller.observe(groups, forecasts=[Forecast(2048 * (size - 1) / size, 1.0, 0.0) for size in sizes])
        assert controller.group_size in sizes
    rate = controller.metrics()["straggler_rate_mean"]
    assert rate <= max(0.2, chances[0]) + 0.02
    assert rate >= min(0.2, chances[-1]) - 0.03 or chances[0] > 0.2
    assert controller.metrics()["feasible"] == (chances[0] <= 0.2)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [Forecast(0.0, 1.0, 0.1), Forecast(1.0, -1.0, 0.1), Forecast(1.0, math.inf, 0.1), Forecast(1.0, 1.0, math.nan)],
)
def test_bad_forecasts_are_named_and_change_nothing(wrong):
    controller = controller_of()
    before = controller.state_dict()
    with pytest.raises(ValueError, match="forecast at size 16 must have finite numbers above 0"):
        controller.observe([[1, 1, 1, 9]], forecasts=[*forecasts_of((1, 1, 1, 1))[:2], wrong, wrong])
    with pytest.raises(ValueError, match="forecasts must be one for each of .*, got 3"):
        controller.observe([[1, 1, 1, 9]], forecasts=forecasts_of((1, 1, 1, 1))[:3])
    assert controller.state_dict() == before
