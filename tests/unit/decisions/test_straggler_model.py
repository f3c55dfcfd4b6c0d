"""The model of stragglers, in the controller that uses it: groups that are stopped count as what they would have become."""

import json

import numpy as np
import pytest

from openrlhf_sagc.controller import StragglerAwareGroupController

RATIO = 2.5


def lognormal_groups(rng, groups, size, sigma=0.6):
    return np.exp(rng.normal(0, sigma, (groups, size))) * 100


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
