"""What groups of a step to come are drawn from."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest

from openrlhf_sagc.decisions.seen_groups import GUESSED, MOST, PER_STEP, STEPS, Seen, SeenGroups


def seen_of(groups, num_groups=PER_STEP, is_long=True):
    """As steps of so many groups leave them."""
    seen, named = SeenGroups(), [(f"{n}\0label", group) for n, group in enumerate(groups)]
    for start in range(0, len(named), num_groups):
        seen.observe(named[start : start + num_groups], num_groups, is_long)
    return seen


def test_a_group_is_drawn_with_the_mean_of_its_log_tokens():
    draws = seen_of([Seen((10, 10), True, None), Seen((5, 20), True, None)]).draws(1.0)
    assert draws.logs_S == pytest.approx([math.log(10)] * 2)
    tokens = draws.tokens(np.array([0, 1]), np.array([[0.0, 0.9], [0.9, 0.0]]))
    assert np.log(tokens).mean(axis=1) == pytest.approx(draws.logs_S)
    assert tokens.max() <= 20 and tokens.std() > 0


def test_the_same_part_of_the_prompts_of_every_step_is_kept():
    groups = [Seen((n + 1,), True, None) for n in range(4 * PER_STEP)]
    few, all_of_them = seen_of(groups, len(groups)), seen_of(groups[:PER_STEP], PER_STEP)
    assert 0.6 * PER_STEP < len(few.draws(1.0).logs_S) < 1.4 * PER_STEP == 1.4 * len(all_of_them.draws(1.0).logs_S)
    again = seen_of(groups, len(groups))
    again.observe([(f"{n}\0label", group) for n, group in enumerate(groups)], len(groups), True)
    assert again.draws(1.0).logs_S.tolist() == few.draws(1.0).logs_S.tolist()


def test_all_steps_of_a_frame_are_left_where_a_step_asks_for_more_groups_than_it_trains():
    """Its last steps are all alike."""
    seen = SeenGroups()
    for step in range(3 * STEPS):
        seen.observe([(f"{step} {n}", Seen((step + 1,), True, None)) for n in range(24)], 8, True)
    assert np.exp(seen.draws(1.0).logs_S).round().min() == 2 * STEPS + 1
    seen.observe([(f"{n}", Seen((n + 1,), True, None)) for n in range(9000)], 8, True)
    assert len(seen.draws(1.0).logs_S) == MOST


def test_small_steps_are_forgotten_after_as_many_steps_as_large_ones():
    seen = SeenGroups()
    for step in range(3 * STEPS):
        seen.observe([(f"{step} {n}", Seen((step + 1,), True, None)) for n in range(4)], 4, True)
    assert np.exp(seen.draws(1.0).logs_S).round().min() == 2 * STEPS + 1


def test_old_groups_are_forgotten():
    most = PER_STEP * STEPS
    seen = SeenGroups()
    for n in range(most + 7):
        seen.observe([(f"{n}", Seen((n + 1,), True, None))], PER_STEP, True)
    assert np.exp(seen.draws(1.0).logs_S) == pytest.approx(range(8, most + 8))


def test_groups_that_were_stopped_count_as_the_longest():
    """As of a log-normal, whose shorter two thirds were seen."""
    normals = [NormalDist(6, 1).inv_cdf((n + 0.5) / 300) for n in range(300)]
    groups = [Seen((round(math.exp(min(x, normals[200]))),) * 2, n < 200, None) for n, x in enumerate(normals)]
    found = seen_of(groups).draws(1.0).logs_S
    assert found[:200] == pytest.approx(normals[:200], abs=0.03)
    assert sorted(found[200:]) == pytest.approx(normals[200:], abs=0.15)


def test_how_long_they_may_get_is_a_guess_before_any_step_ran_to_its_end():
    groups = [Seen((10,), True, None)] * 3 + [Seen((50,), False, None)]
    short, long = seen_of(groups, is_long=False), seen_of(groups)
    assert short.is_guess and short.draws(1.0).longest == GUESSED * 50
    assert not long.is_guess and long.draws(1.0).longest == 50
    assert not seen_of(groups[:3], is_long=False).is_guess


def test_long_groups_are_kept_less_often_where_that_was_seen():
    groups = [Seen((n + 1,), True, n < 300) for n in range(400)]
    chance = seen_of(groups).draws(0.75).chance_S
    assert chance[:250].min() > 0.9 and chance[350:].max() < 0.3
    assert seen_of(groups).draws(1.0).chance_S.tolist() == [1.0] * 400
    unknown = seen_of([Seen((n + 1,), True, None) for n in range(40)]).draws(0.75).chance_S
    assert unknown == pytest.approx([0.75] * 40)


def test_a_resumed_run_draws_the_same():
    seen, other = seen_of([Seen((3, 4), True, True), Seen((50, 9), False, None)], is_long=False), SeenGroups()
    other.load_state_dict(json.loads(json.dumps(seen.state_dict())))
    for mine, its in zip(seen.draws(0.5), other.draws(0.5)):
        assert np.array_equal(mine, its)
    assert other.is_guess and other.state_dict() == seen.state_dict()
    assert SeenGroups().draws(1.0) is None
