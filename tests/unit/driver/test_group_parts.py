"""Groups that are put together from the rollouts of several engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.records import ROLLOUT, Group, Prompt, Rollout, first_to_finish
from openrlhf_sagc.driver.group_parts import GroupParts

REWARDED, FAILED, STOPPED = "rewarded", "failed", "stopped"


def group_of(rollouts, size=2):
    return Group(7, 0, Prompt("prompt", "label", None, 1), size, rollouts, engines=(0,) * rollouts)


def response_of(place, outcome, seconds=5.0):
    failure = "E" if outcome == FAILED else None
    return {"place": place, ROLLOUT: Rollout(9, seconds, 1.0, outcome != STOPPED, outcome == STOPPED, failure)}


@given(st.data())
def test_rollouts_in_any_order_are_put_together_in_theirs(data):
    outcomes = data.draw(st.lists(st.sampled_from([REWARDED, FAILED, STOPPED]), min_size=1, max_size=8))
    keep_first = data.draw(st.none() | st.integers(1, len(outcomes)))
    parts, rewarded = GroupParts(group_of(len(outcomes)), keep_first), 0
    waiting = data.draw(st.permutations(range(len(outcomes))))
    while waiting:
        assert not parts.is_whole and sorted(parts.left) == sorted(waiting)
        place, *waiting = waiting
        parts.put(place, [response_of(place, outcomes[place])])
        rewarded += outcomes[place] == REWARDED
        assert parts.has_enough == (keep_first is not None and rewarded >= keep_first)
    assert parts.is_whole and not parts.left
    assert [response["place"] for response in parts.responses] == list(range(len(outcomes)))


@pytest.mark.parametrize("keep_first, first", [(2, [0, 1]), (None, [2, 0])])
def test_a_rollout_that_was_held_back_is_not_faster_for_it(keep_first, first):
    """Three that take 5, 6 and 4 s; the last one was sent 3 s after the others. What it ran for stays."""
    parts = GroupParts(group_of(3), keep_first)
    for place, seconds, sent in ((0, 5.0, 100.0), (1, 6.0, 100.0), (2, 4.0, 103.0)):
        parts.sent(sent)
        parts.put(place, [response_of(place, REWARDED, seconds)], sent)
    rollouts = [response[ROLLOUT] for response in parts.responses]
    assert first_to_finish(rollouts, 2) == first
    assert [rollout.running_seconds for rollout in rollouts] == [4.0, 5.0, 3.0]


def test_a_rollout_that_never_began_has_no_seconds():
    parts = GroupParts(group_of(2), 1)
    parts.sent(100.0)
    parts.put(0, [response_of(0, STOPPED, 0.0)])
    assert parts.responses[0][ROLLOUT].seconds == 0.0
