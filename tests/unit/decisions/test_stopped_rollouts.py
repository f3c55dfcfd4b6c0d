"""The chance that a rollout which was stopped would have become a straggler."""

import math

import numpy as np
import pytest

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.stopped_rollouts import BINS, PRIOR_STRAGGLER_CHANCE, StragglerChance

RATIO = 2.5


def chance_of(ratios, finished=None, discount=1.0):
    chance = StragglerChance(RATIO, discount)
    chance.observe(np.asarray(ratios, float), np.ones(len(ratios), bool) if finished is None else np.asarray(finished))
    return chance


def test_where_nothing_is_known_the_prior_is_the_chance():
    chance = StragglerChance(RATIO, 0.98)
    assert chance.estimate(np.array([0.0, 1.0, RATIO, 9.0])) == pytest.approx(
        [PRIOR_STRAGGLER_CHANCE, PRIOR_STRAGGLER_CHANCE, 1, 1]
    )
    halfway = chance.estimate(np.array([RATIO**0.5]))
    assert halfway == pytest.approx(PRIOR_STRAGGLER_CHANCE**0.5)


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
