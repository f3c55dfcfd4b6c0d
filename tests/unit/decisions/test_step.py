"""The plan and the account of one step."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.dynamic_sampling import REASONS, DynamicSampler, Verdict, groups_to_ask
from openrlhf_sagc.decisions.group_parts import GroupParts
from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.records import Group, Prompt, Round
from openrlhf_sagc.decisions.step import Step


def step_of(num_groups=16, size=8, *, rate=1.0, round=None, cap=10, **more):
    return Step(0, size, num_groups, round or Round(True, 1.0, size), rate, cap * num_groups, **more)


def asked(step, accepted, running):
    """Groups that the step asks for while so many are accepted and run."""
    return with_groups(step, accepted, running).groups_to_dispatch()


def with_groups(step, accepted, running):
    step.flight.accepted, step.flight.running = [None] * accepted, dict.fromkeys(range(running))
    return step


def kept(count):
    return [Verdict(4, None)] * count


def dropped(count):
    return [Verdict(4, "all_wrong")] * count


def test_groups_under_way_count_towards_the_step():
    prompts = [Prompt(text, "", None, 1) for text in "abcde"]
    groups = [Group(number, 0, prompt, 4, 4) for number, prompt in enumerate(prompts)]
    flight = InFlight(accepted=groups[:3], running={group.number: GroupParts(group) for group in groups[3:]})
    step = step_of(8, 4, flight=flight)
    assert (step.carried_accepted, step.carried_running) == (3, 2)
    assert asked(step, 3, 2) == 3
    assert asked(step, 8, 0) == 0
    assert step.has_groups and not step_of().has_groups and step_of(dispatched=1).has_groups


def test_a_group_that_was_stopped_is_asked_for_again_unless_the_step_is_full():
    step = step_of(2, 4, dispatched=2)
    assert asked(step, 0, 1) == 1
    assert asked(step, 2, 0) == 0


def test_a_short_round_dispatches_more_than_is_expected_to_fill_the_step():
    assert asked(step_of(16, round=Round(False, 1.25, 10)), 0, 0) == 20
    assert asked(step_of(16, rate=0.5), 0, 0) > 32


@pytest.mark.parametrize("cap", [1, 3, 10])
def test_the_cap_bounds_what_a_step_dispatches(cap):
    step = step_of(16, rate=0.001, cap=cap)
    while count := asked(step, 0, 0):
        step.dispatched += count
    assert step.dispatched == 16 * cap


def test_most_steps_are_filled_by_their_first_dispatch():
    """And they ask for less than 1.35 times what is needed at an acceptance rate of 0.45."""
    rng, sampler = random.Random(1), DynamicSampler()
    filled, total = 0, 0
    for _ in range(120):
        step = step_of(16, rate=sampler.acceptance_rate(8))
        first = asked(step, 0, 0)
        step.verdicts = [sampler.judge([float(rng.random() < 0.55)] * 7 + [1.0]) for _ in range(first)]
        filled += sum(verdict.reason is None for verdict in step.verdicts) >= 16
        total += first
        sampler.observe(step.verdicts)
    assert filled > 80
    assert total / 120 < 16 / 0.45 * 1.35


@given(st.lists(st.sampled_from([None, *REASONS])))
def test_every_verdict_is_counted_once(reasons):
    step = step_of(verdicts=[Verdict(4, reason) for reason in reasons])
    accepted = reasons.count(None)
    assert step.dropped.total() + accepted == len(reasons) and None not in step.dropped
    assert step.pass_rate == (pytest.approx(100 * accepted / len(reasons)) if reasons else None)


def test_samples_rolled_out_are_at_least_those_of_a_step_without_a_drop():
    assert step_of(16, 8, dispatched=3).samples_rolled_out == 16 * 8
    running = {n: GroupParts(Group(n, 0, Prompt("a", "", None, 1), 4, 5)) for n in range(5)}  # of the step before
    assert step_of(16, 8, dispatched=20, flight=InFlight(running=running)).samples_rolled_out == 20 * 8 + 5 * 4


def filled(num_groups, expected, kept, seed):
    """Dispatches of a step, and its groups over those that it trains, where groups are kept by chance and come back in turn."""
    rng, step, dispatches = random.Random(seed), step_of(num_groups, rate=expected, cap=1000), 0
    flight = with_groups(step, 0, 0).flight
    while len(flight.accepted) < num_groups:
        if count := step.groups_to_dispatch():
            flight.running |= dict.fromkeys(range(step.dispatched, step.dispatched + count))
            step.dispatched, dispatches = step.dispatched + count, dispatches + 1
        flight.running.popitem()
        step.verdicts.append(Verdict(8, None if rng.random() < kept else "all_wrong"))
        flight.accepted += [None] * (step.verdicts[-1].reason is None)
    return dispatches, step.dispatched / num_groups


@pytest.mark.parametrize("expected", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("num_groups", [64, 256, 1024])
def test_a_first_step_that_expected_ten_times_as_many_groups_to_be_kept_refills_in_few_dispatches(
    num_groups, expected
):
    dispatches, ratio = filled(num_groups, expected, expected / 10, 0)
    assert dispatches <= 100 and ratio < 1.2 * 10 / expected


def test_a_step_that_expected_the_right_share_dispatches_nothing_more_for_its_doubts():
    """Two standard errors: chance passes them rarely, and then not by much."""
    ratios = [filled(256, 0.6, 0.6, seed)[1] for seed in range(20)]
    assert sum(ratios) / len(ratios) < 1.03 * groups_to_ask(256, 0.6) / 256


def test_a_refill_waits_for_its_share_as_long_as_enough_run():
    step = step_of(100)
    assert [asked(step, 0, 100 - missing) for missing in (1, 3, 4)] == [0, 0, 4]
    assert asked(step, 75, 24) == 1 and asked(step, 99, 0) == 1
