"""The places of a step: which groups are trained for sure, and in which order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.places import Places
from openrlhf_sagc.decisions.records import Group, Prompt


def group_of(number, *, owed=False, text=""):
    return Group(number, 0, Prompt(text, "", None, 1, must_finish=owed), 4, 4)


@pytest.mark.parametrize("order", ["abcd", "dcba", "dbca"])
def test_more_prompts_that_must_finish_than_places_are_committed_in_the_order_of_dispatch(order):
    groups = {text: group_of(number, owed=text != "a", text=text) for number, text in enumerate("abcd")}
    places, committed = Places(2, groups.values(), []), []
    for text in order:
        places.end(groups[text])
        places.accept(groups[text])
        committed += [group.prompt.text for group in places.take()]
    assert sorted(committed) == ["b", "c"] and places.taken == {1, 2}


def committed_one_by_one(num_groups, running, accepted, uncommitted, committed):
    """The rule of `take` in plain words: for each accepted group, count those that take a place before it."""
    owed = [group for group in running if group.prompt.must_finish]
    accepted_owed = sum(group.prompt.must_finish for group in accepted)
    for group in sorted(uncommitted, key=lambda group: group.number if group.prompt.must_finish else float("inf")):
        if group.prompt.must_finish:
            taken = len(committed) + sum(other.number < group.number for other in owed)
        else:
            taken = sum(not other.prompt.must_finish for other in committed) + len(owed) + accepted_owed
        if taken < num_groups:
            committed.append(group)


@given(
    st.integers(1, 12),
    st.integers(0, 20),
    st.integers(0, 6),
    st.integers(0, 6),
    st.floats(0, 1),
    st.integers(0, 10**6),
)
def test_what_is_committed_follows_from_the_places_taken_before(num_groups, count, before, kept, owed, seed):
    """Groups of this step, of the step before that run, and kept ones."""
    rng = random.Random(seed)
    groups = [group_of(number, owed=rng.random() < owed) for number in range(kept + before + count)]
    accepted, running = groups[:kept], groups[kept:]
    places, expected = Places(num_groups, running[:before], accepted), []
    fresh = running[before:]
    rng.shuffle(fresh)  # as the longest go first
    for group in fresh:
        places.run(group)
    committed_one_by_one(num_groups, running, accepted, accepted, expected)
    assert places.take() == expected
    for group in rng.sample(running, len(running)):
        running = [other for other in running if other is not group]
        accepted = [*accepted, group]
        places.end(group)
        places.accept(group)
        assert places.must_finish_running == sum(group.prompt.must_finish for group in running)
        known = list(expected)
        left = [group for group in accepted if group not in expected]
        committed_one_by_one(num_groups, running, accepted, left, expected)
        assert places.take() == expected[len(known) :]


def test_committing_costs_the_same_however_many_groups_wait():
    """Groups that were accepted and have no place yet are not looked at again; counted by their comparisons."""
    looks = []

    class Fresh(Prompt):
        @property
        def must_finish(self):
            looks.append(self)
            return False

    places = Places(1000, [group_of(number, owed=True) for number in range(1000)], [])
    for number in range(1000, 1500):
        places.accept(Group(number, 0, Fresh("", "", None, 1), 4, 4))
        assert not places.take()
    assert len(looks) <= 5 * 500
