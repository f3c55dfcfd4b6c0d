"""Seconds of a step at every size, from steps of some sizes."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from openrlhf_sagc.decisions.step_model import PRIOR_STEPS, SHARES_F, StepModel, _expected_most

SAMPLES, SIZES = 512, (4, 8, 16, 32)


class Cluster:
    """Steps of SAMPLES samples: seconds of the busiest of some engines, and of training."""

    def __init__(self, engines, base=6e-3, squares=1e-8, trained=1e-5, within=0.4, between=0.8, seed=0):
        self.engines, self.base, self.squares, self.trained = engines, base, squares, trained
        self.within, self.between, self.rng = within, between, np.random.default_rng(seed)

    def groups(self, size, count=None):
        count = count or SAMPLES // size
        logs = 6 + self.between * self.rng.standard_normal((count, 1))
        logs = logs + self.within * self.rng.standard_normal((count, size))
        return np.clip(np.exp(logs), 1, 8192).astype(int)

    def seconds(self, groups):
        work = [0.0] * self.engines
        for place, group in enumerate(groups):
            work[place % self.engines] += self.squares * float(np.square(group).sum())
        return self.base * groups.max() + max(work) + self.trained * groups.sum()

    def mean_seconds(self, size, steps=300):
        return np.mean([self.seconds(self.groups(size)) for _ in range(steps)])


def step(model, cluster, size):
    groups = cluster.groups(size)
    model.observe(size, len(groups), groups.tolist(), [[False] * size] * len(groups))
    return cluster.seconds(groups)


def ratios(model, cluster):
    """Expected over true seconds of each size, in units of those of size 8."""
    expected = [model.forecast(size, SAMPLES // size).seconds / cluster.mean_seconds(size) for size in SIZES]
    return np.array(expected) / expected[1]


@pytest.mark.parametrize("engines, squares, trained", [(1, 1e-7, 1e-4), (16, 3e-7, 1e-5), (512, 1e-6, 1e-6)])
def test_steps_of_two_sizes_tell_the_seconds_of_all(engines, squares, trained):
    cluster = Cluster(engines, squares=squares, trained=trained)
    model = StepModel(engines)
    for number in range(60):
        model.timed(step(model, cluster, (8, 16)[number % 2]))
    assert ratios(model, cluster) == pytest.approx([1, 1, 1, 1], abs=0.12)
    for size in (8, 16):
        assert model.forecast(size, SAMPLES // size).seconds == pytest.approx(cluster.mean_seconds(size), rel=0.07)


def test_forecasts_count_effective_samples_and_the_groups_that_are_dropped():
    cluster = Cluster(1)
    model = StepModel(1)
    for _ in range(20):
        model.timed(step(model, cluster, 8))
    all_kept, half_kept = (model.forecast(8, 64, rate) for rate in (1.0, 0.5))
    assert all_kept.effective == half_kept.effective == 64 * 8 * 7 / 8
    assert half_kept.seconds > 1.2 * all_kept.seconds


def test_a_size_that_departs_from_the_model_is_learned():
    cluster, model = Cluster(4), StepModel(4)
    for number in range(80):
        size = (8, 32)[number % 2]
        model.timed(step(model, cluster, size) * (1.4 if size == 32 else 1.0))
    expected = [model.forecast(size, SAMPLES // size).seconds for size in (8, 32)]
    true = [cluster.mean_seconds(8), 1.4 * cluster.mean_seconds(32)]
    assert expected[1] / expected[0] == pytest.approx(true[1] / true[0], rel=0.07)


def test_what_was_tried_is_known_better():
    cluster, model = Cluster(4), StepModel(4)
    first = step(model, cluster, 8)
    unknown = model.forecast(32, 16).error
    model.timed(first)
    for _ in range(30):
        model.timed(step(model, cluster, 8))
    errors = [model.forecast(size, SAMPLES // size).error for size in SIZES]
    assert errors[1] == min(errors) < errors[3] / 2
    for _ in range(30):
        model.timed(step(model, cluster, 32))
    assert model.forecast(32, 16).error < errors[3] < unknown


def test_seconds_follow_a_change():
    cluster, model = Cluster(4), StepModel(4, discount=0.9)
    for number in range(60):
        model.timed(step(model, cluster, 8) * (1 if number < 30 else 2))
    assert model.forecast(8, 64).seconds == pytest.approx(2 * cluster.mean_seconds(8), rel=0.1)


def test_a_checkpoint_among_the_steps_counts_as_a_slow_step():
    cluster, models = Cluster(4), (StepModel(4), StepModel(4))
    for number in range(20):
        seconds = step(models[0], cluster, 8)
        models[0].timed(3 * seconds if number == 15 else seconds)
    plain = models[0].forecast(8, 64).seconds
    cluster = Cluster(4)
    for number in range(20):
        seconds = step(models[1], cluster, 8)
        models[1].timed(1e6 if number == 15 else seconds)
    assert models[1].forecast(8, 64).seconds == pytest.approx(plain, rel=0.1)


def test_groups_that_were_stopped_say_nothing_of_their_prompts():
    cluster = Cluster(1)
    model, other = StepModel(1), StepModel(1)
    groups = cluster.groups(8).tolist()
    stopped = [[99] * 8]
    model.observe(8, 64, groups, [[False] * 8] * len(groups))
    other.observe(8, 64, groups + stopped, [[False] * 8] * len(groups) + [[True] * 8])
    assert model.state_dict()["prompts"] == other.state_dict()["prompts"]
    other = StepModel(1)
    other.observe(8, 1, stopped, [[True] * 8])
    assert not other.has_seen
    other.timed(5.0)
    assert other.state_dict() == StepModel(1).state_dict()


lengths = st.integers(0, 10**6)
groups_of = st.sampled_from([2, 3, 8, 256]).flatmap(
    lambda size: st.lists(lengths, min_size=1, max_size=3).map(
        lambda few: [(few * size)[place:][:size] for place in range(len(few))]
    )
)
steps_of = st.lists(st.tuples(groups_of, st.booleans(), st.floats(0, 1e6) | st.none()), max_size=8)


def run(model, steps):
    for groups, stopped, seconds in steps:
        model.observe(
            len(groups[0]),
            len(groups),
            groups,
            [[stopped and place == 0 for place, _ in enumerate(g)] for g in groups],
        )
        if seconds is not None:
            model.timed(seconds)


@given(steps_of, st.sampled_from([1, 2, 1000]), st.sampled_from([0.5, 0.98, 1.0]))
@settings(max_examples=40)
def test_forecasts_are_finite_and_positive_whatever_was_seen(steps, engines, discount):
    model = StepModel(engines, discount)
    run(model, steps)
    if model.has_seen:
        for size in (2, 4, 33, 256):
            forecast = model.forecast(size, 8, 0.01)
            assert all(math.isfinite(number) and number > 0 for number in forecast)


@given(steps_of, st.integers(0, 12))
@settings(max_examples=40)
def test_a_restored_model_goes_on_identically(steps, cut):
    straight, restored = StepModel(3), StepModel(3)
    run(straight, steps[:cut])
    restored.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for model in (straight, restored):
        run(model, steps[cut:])
    assert restored.state_dict() == straight.state_dict()
    if straight.has_seen:
        assert [restored.forecast(size, 4) for size in SIZES] == [straight.forecast(size, 4) for size in SIZES]


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, None])
def test_bad_seconds_are_named_and_change_nothing(seconds):
    model = StepModel(1)
    step(model, Cluster(1), 8)
    before = model.state_dict()
    with pytest.raises(ValueError, match=f"seconds must be finite and not negative, got {seconds}"):
        model.timed(seconds)
    assert model.state_dict() == before


def test_rounds_that_close_early_take_longer_with_larger_groups():
    """Short rounds leave the slowest fifth behind: with larger groups the last that counts is longer, the longest is not."""
    cluster, model = Cluster(1024, squares=0.0, trained=0.0), StepModel(1024)
    for number in range(60):
        model.timed(step(model, cluster, (4, 32)[number % 2]))

    def closing(size):
        means = []
        for _ in range(50):
            ends = np.sort(cluster.groups(size, 10 * SAMPLES // size).max(axis=1))
            short, long = ends[: 8 * len(ends) // 10], ends[8 * len(ends) // 10 :]
            means.append(0.8 * short.max() + 0.2 * long.max())
        return np.mean(means)

    expected = [model.forecast(size, SAMPLES // size, 1.0, 1.25).seconds for size in (4, 32)]
    assert expected[1] / expected[0] == pytest.approx(closing(32) / closing(4), rel=0.1)
    plain = [model.forecast(size, SAMPLES // size).seconds for size in (4, 32)]
    assert all(early < late for early, late in zip(expected, plain))
    assert plain[1] / plain[0] < expected[1] / expected[0]


def test_lengths_beyond_all_that_were_seen_leave_the_forecasts_finite():
    model = StepModel(1)
    for tokens in (10, 10, 10, 10**8):
        model.observe(8, 4, [[tokens] * 8] * 4, [[False] * 8] * 4)
        model.timed(tokens / 10)
    for size in SIZES:
        forecast = model.forecast(size, 32 // size)
        assert 0 < forecast.seconds < math.inf and 0 <= forecast.error <= 1


def test_the_expected_largest_of_draws_with_weights():
    found = _expected_most(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 1.0]), 2)
    assert found == pytest.approx(1 * 4 / 16 + 2 * (9 - 4) / 16 + 3 * (16 - 9) / 16)


@pytest.mark.parametrize("size", SIZES)
def test_the_fit_is_the_least_of_all_with_no_negative_share(size):
    """As SciPy has it, on steps of one size, whose features hardly differ: there coordinate descent is slow."""
    model, cluster = StepModel(num_engines=4), Cluster(engines=4)
    for _ in range(60):
        model.timed(step(model, cluster, size))
    prior = PRIOR_STEPS * np.eye(len(SHARES_F))
    root = np.linalg.cholesky(model._squares_FF + prior)
    moment_F = sum(sum_F for _, sum_F in model._seen.values()) + PRIOR_STEPS * SHARES_F
    assert model._shares_F == pytest.approx(nnls(root.T, np.linalg.solve(root, moment_F))[0], abs=1e-9)
