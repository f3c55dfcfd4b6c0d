"""Groups in flight: which are trained, which stay."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.records import Group, Prompt, Round
from openrlhf_sagc.decisions.step import Step


def test_prompts_that_must_finish_are_trained_first_and_then_by_dispatch():
    flight, step = GroupsInFlight(), Step(1, 4, 2, Round(True, 1.0, 4), 1.0, 99)
    prompts = [Prompt(text, "", None, 1, must_finish=text == "c") for text in "abcd"]
    for group in flight.new_groups(step, prompts):
        flight.accept(group, [])
    old = Group(-1, 0, Prompt("old", "", None, 1), 4, 4)
    flight.accept(old, [])
    trained, unused = flight.close(step, keep=True)
    assert [group.prompt.text for group in trained] == ["c", "old"] and not unused
    assert [group.prompt.text for group in flight.accepted] == ["a", "b", "d"]
    assert [group.prompt.text for group in flight.close(step, keep=False)[1]] == ["d"] and not flight.accepted


def test_kept_groups_have_their_own_size_after_a_save():
    flight, step = GroupsInFlight(), Step(0, 4, 1, Round(False, 1.0, 4), 1.0, 99)
    groups = flight.new_groups(step, [Prompt(text, "", None, 1) for text in "ab"])
    assert [(group.size, group.rollouts) for group in groups] == [(4, 4)] * 2
    for group in groups:
        flight.accept(group, ["sample"] * 4)
    flight.close(step, keep=True)
    restored = GroupsInFlight()
    restored.load_state_dict(flight.state_dict())
    (kept,) = restored.accepted
    assert (kept.prompt.text, kept.size) == ("b", 4)


@pytest.mark.parametrize("order", ["abcd", "dcba", "dbca"])
def test_more_prompts_that_must_finish_than_places_are_committed_in_the_order_of_dispatch(order):
    flight, step = GroupsInFlight(), Step(1, 4, 2, Round(True, 1.0, 4), 0.5, 99)
    prompts = [Prompt(text, "", None, 1, must_finish=text != "a") for text in "abcd"]
    groups = {group.prompt.text: group for group in flight.new_groups(step, prompts)}
    flight.run(groups.values())
    committed = []
    for text in order:
        flight.accept(flight.take_back(groups[text].number, []), [])
        committed += [group.prompt.text for group in flight.commit(step)]
    trained, unused = flight.close(step, keep=False)
    assert sorted(committed) == [group.prompt.text for group in trained] == ["b", "c"]
    assert [group.prompt.text for group in unused] == ["d", "a"]


def committed_one_by_one(flight, step, uncommitted, committed):
    """The rule of `commit` in plain words: for each accepted group, count those that take a place before it."""
    owed = [group for group in flight.running.values() if group.prompt.must_finish]
    accepted_owed = sum(group.prompt.must_finish for group in flight.accepted)
    for group in sorted(uncommitted, key=lambda group: group.number if group.prompt.must_finish else float("inf")):
        if group.prompt.must_finish:
            taken = len(committed) + sum(other.number < group.number for other in owed)
        else:
            taken = sum(not other.prompt.must_finish for other in committed) + len(owed) + accepted_owed
        if taken < step.num_groups:
            committed.append(group)
    return committed


@given(st.integers(1, 12), st.integers(0, 20), st.floats(0, 1), st.booleans(), st.integers(0, 10**6))
def test_what_is_committed_follows_from_the_places_taken_before(num_groups, count, owed, keep, seed):
    rng, flight = random.Random(seed), GroupsInFlight()
    for number in range(2):
        step = Step(number, 4, num_groups, Round(True, 1.0, 4), 0.5, 99)
        prompts = [Prompt("", "", None, 1, must_finish=rng.random() < owed) for _ in range(count)]
        groups = flight.new_groups(step, prompts)
        rng.shuffle(groups)  # as the longest go first
        flight.run(groups)
        expected = committed_one_by_one(flight, step, flight.accepted, [])
        assert flight.commit(step) == expected
        for running in rng.sample(groups, count):
            flight.accept(flight.take_back(running.number, []), [])
            left = [group for group in flight.accepted if group not in expected]
            before = list(expected)
            committed_one_by_one(flight, step, left, expected)
            assert flight.commit(step) == expected[len(before) :]
        flight.close(step, keep=keep)


def test_committing_costs_the_same_however_many_groups_wait():
    """Groups that were accepted and have no place yet are not looked at again; counted by their comparisons."""
    looks = []

    class Fresh(Prompt):
        @property
        def must_finish(self):
            looks.append(self)
            return False

    flight, step = GroupsInFlight(), Step(0, 4, 1000, Round(True, 1.0, 4), 1.0, 10**6)
    slow = flight.new_groups(step, [Prompt("", "", None, 1, must_finish=True)] * 1000)
    flight.run(slow)
    for group in flight.new_groups(step, [Fresh("", "", None, 1)] * 500):
        flight.accept(group, [])
        assert not flight.commit(step)
    assert len(looks) <= 5 * 500
