"""Groups in flight: which are trained, which stay."""

import pytest

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
