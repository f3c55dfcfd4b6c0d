"""Groups that are stopped count as what they would have become."""

import json
import math

import numpy as np
import pytest

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.stopped_rollouts import BINS, PRIOR, StragglerChance

RATIO = 2.5


def lognormal_groups(rng, groups, size, sigma=0.6):
    return np.exp(rng.normal(0, sigma, (groups, size))) * 100


def chance_of(ratios, finished=None, discount=1.0):
    chance = StragglerChance(RATIO, discount)
    chance.observe(np.asarray(ratios, float), np.ones(len(ratios), bool) if finished is None else np.asarray(finished))
    return chance


def test_where_nothing_is_known_the_prior_is_the_chance():
    chance = StragglerChance(RATIO, 0.98)
    assert chance.estimate(np.array([0.0, 1.0, RATIO, 9.0])) == pytest.approx([PRIOR, PRIOR, 1, 1])
    halfway = chance.estimate(np.array([RATIO**0.5]))
    assert halfway == pytest.approx(PRIOR**0.5)


def test_the_chance_is_the_share_of_those_that_came_as_far():
    """Of 1,000 rollouts past the median 300 end early, 600 later, 100 are stragglers."""
    chance = chance_of([1.01] * 300 + [2.0] * 600 + [3.0] * 100)
    assert chance.estimate(np.array([1.0, 1.9, 2.4])) == pytest.approx([0.1, 100 / 700, 1], rel=0.03)


def test_stopped_rollouts_are_not_counted_as_ended():
    """The product-limit estimate: stopping a random half at a ratio leaves the chance as it was."""
    rng = np.random.default_rng(1)
    ratios = np.exp(np.abs(rng.normal(0, 0.6, 40_000)))
    stops = np.where(rng.random(40_000) < 0.5, rng.uniform(1, RATIO, 40_000), np.inf)
    whole = chance_of(ratios).estimate(np.array([1.0, 1.5, 2.0]))
    cut = chance_of(np.minimum(ratios, stops), ratios <= stops).estimate(np.array([1.0, 1.5, 2.0]))
    assert cut == pytest.approx(whole, abs=0.03)
    ignored = (ratios[ratios <= stops] >= RATIO).mean()
    assert whole[0] > 1.5 * ignored


def test_evidence_fades():
    chance = StragglerChance(RATIO, 0.5)
    for ratio in (3.0,) * 8 + (1.01,) * 8:
        chance.observe(np.array([ratio] * 50), np.ones(50, bool))
    assert chance.estimate(np.array([1.0]))[0] < 0.05


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"entered": [1.0], "ended": [0.0]},
        {"entered": [0.0] * BINS, "ended": [1.0] * BINS},
        [],
        {"entered": 1, "ended": 0},
    ]
    + [{"entered": [value] * BINS, "ended": [0.0] * BINS} for value in (math.nan, math.inf, -1.0)],
)
def test_a_state_that_is_none_is_refused(state):
    controller = StragglerAwareGroupController()
    before = controller.state_dict()
    with pytest.raises(ValueError, match="^controller state's stopped must hold"):
        controller.load_state_dict(before | {"stopped": state})
    assert controller.state_dict() == before


@pytest.mark.parametrize("running", [[[True]], [[True] * 4, [True] * 4], []])
def test_running_of_another_shape_is_refused(running):
    controller = StragglerAwareGroupController()
    before = controller.state_dict()
    with pytest.raises(ValueError, match="running must have an entry for every rollout of every group"):
        controller.observe([[1, 2, 3, 4]], running)
    assert controller.state_dict() == before


def test_nothing_stopped_is_as_without_saying_so():
    rng = np.random.default_rng(2)
    plain, explicit = StragglerAwareGroupController(), StragglerAwareGroupController()
    for _ in range(20):
        groups = lognormal_groups(rng, 16, 8)
        plain.observe(groups)
        explicit.observe(groups, np.zeros((16, 8), bool))
    assert plain.state_dict() == explicit.state_dict()


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_the_rate_is_that_of_the_groups_had_they_run_on(share):
    """Steps that stop the slowest groups: counted as they stood or left out, the rate would be far too low."""
    rng = np.random.default_rng(3)
    controller = StragglerAwareGroupController(group_sizes=(8,), straggler_ratio=RATIO)
    true, left_out, as_they_stood = [], [], []

    def events(groups):
        return groups.max(axis=1) >= RATIO * np.median(groups, axis=1)

    for _ in range(300):
        groups = lognormal_groups(rng, 20, 8)
        end = np.quantile(groups.max(axis=1), 1 - share)
        seen = np.minimum(groups, end)
        controller.observe(seen, groups > end)
        true.append(events(groups).mean())
        as_they_stood.append(events(seen).mean())
        left_out.append(events(groups[(groups <= end).all(axis=1)]).mean())
    rate, truth = controller.metrics()["straggler_rate_mean"], np.mean(true)
    assert rate == pytest.approx(truth, abs=0.02)
    assert np.mean(left_out) < truth - 0.1 and np.mean(as_they_stood) < truth - 0.03


def test_a_rollout_that_is_a_straggler_already_counts_as_one():
    controller = StragglerAwareGroupController(group_sizes=(4,))
    controller.observe([[10, 10, 10, 90]], [[False, False, False, True]])
    assert controller.metrics()["straggler_rate"] == 1


def test_saved_and_loaded_it_goes_on_the_same():
    rng = np.random.default_rng(4)
    whole, part = StragglerAwareGroupController(), StragglerAwareGroupController()
    for step in range(30):
        groups = lognormal_groups(rng, 16, whole.group_size)
        running = groups > 200
        whole.observe(np.minimum(groups, 200), running)
        if step == 15:
            state, part = json.loads(json.dumps(part.state_dict())), StragglerAwareGroupController()
            part.load_state_dict(state)
        part.observe(np.minimum(groups, 200), running)
    assert part.state_dict() == whole.state_dict()


@pytest.mark.parametrize("when", [0.02, 0.3, 1.0, 1.5])
def test_groups_stopped_before_their_median_is_known_have_the_rate_of_the_others(when):
    """Half of the groups are whole, half stopped at this multiple of their median: no more than half are above it."""
    rng = np.random.default_rng(5)
    controller = StragglerAwareGroupController(group_sizes=(8,), straggler_ratio=RATIO)
    true = []
    for _ in range(200):
        groups = lognormal_groups(rng, 40, 8)
        stop = np.where(np.arange(40) % 2, np.inf, when * np.median(groups, axis=1))[:, None]
        controller.observe(np.minimum(groups, stop), groups > stop)
        true.append((groups.max(axis=1) >= RATIO * np.median(groups, axis=1)).mean())
    assert controller.metrics()["straggler_rate_mean"] == pytest.approx(np.mean(true), abs=0.03)
