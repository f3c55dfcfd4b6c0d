"""Groups that are put together from the rollouts of several engines."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.records import ROLLOUT, Group, Prompt, Rollout
from openrlhf_sagc.driver.group_parts import GroupParts

REWARDED, FAILED, STOPPED = "rewarded", "failed", "stopped"


def group_of(engines, size=2):
    return Group(7, 0, Prompt("prompt", "label", None, 1), size, len(engines), engines=tuple(engines))


def response_of(place, outcome, seconds=5.0):
    failure = "E" if outcome == FAILED else None
    return {"place": place, ROLLOUT: Rollout(9, seconds, 1.0, outcome != STOPPED, outcome == STOPPED, failure)}


@given(st.data())
def test_rollouts_in_any_order_are_put_together_in_theirs(data):
    outcomes = data.draw(st.lists(st.sampled_from([REWARDED, FAILED, STOPPED]), min_size=1, max_size=8))
    engines = data.draw(st.lists(st.integers(0, 2), min_size=len(outcomes), max_size=len(outcomes)))
    keep_first = data.draw(st.none() | st.integers(1, len(outcomes)))
    parts, rewarded = GroupParts(group_of(engines), keep_first, 0.0), 0
    waiting = data.draw(st.permutations(range(len(outcomes))))
    while waiting:
        assert not parts.is_whole and parts.left_on == {engines[place] for place in waiting}
        place, *waiting = waiting
        parts.put(place, response_of(place, outcomes[place]))
        rewarded += outcomes[place] == REWARDED
        enough = keep_first is not None and rewarded >= keep_first
        assert parts.has_enough == (enough and len(set(engines)) > 1)  # one engine stops its own
    assert parts.is_whole and not parts.left_on
    assert [response["place"] for response in parts.responses] == list(range(len(outcomes)))


def test_rollouts_run_from_the_end_of_vllms_queue_to_their_end_or_on():
    """Sent at 100 s, a second in the queue; the second one still runs at 110 s."""
    parts = GroupParts(group_of([0, 1, 1]), None, 100.0)
    parts.put(0, response_of(0, REWARDED, 5.0))
    parts.put(2, response_of(2, STOPPED, 0.5))
    assert parts.spans(110.0) == [(101.0, 105.0), (100.0, 110.0), (100.5, 100.5)]
