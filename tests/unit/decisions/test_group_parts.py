"""Groups that are put together from the rollouts of several engines."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.group_parts import GroupParts, needless
from openrlhf_sagc.decisions.records import ROLLOUT, Group, Prompt, Rollout

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
    size = data.draw(st.integers(1, len(outcomes)))
    parts, rewarded = GroupParts(group_of(engines, size)), 0
    waiting = data.draw(st.permutations(range(len(outcomes))))
    while waiting:
        assert not parts.is_whole and parts.left_on == [engines[place] for place in sorted(waiting)]
        place, *waiting = waiting
        parts.put(place, response_of(place, outcomes[place]))
        rewarded += outcomes[place] == REWARDED
        assert parts.has_enough == (rewarded >= size < len(outcomes))
    assert parts.is_whole and not parts.left_on
    assert [response["place"] for response in parts.responses] == list(range(len(outcomes)))


def test_the_members_are_the_first_rollouts_to_finish_with_a_reward():
    def members(size):
        parts = GroupParts(group_of([0] * 4, size))
        for place, (outcome, seconds) in enumerate([(FAILED, 1.0), (REWARDED, 9.0), (STOPPED, 2.0), (REWARDED, 3.0)]):
            parts.put(place, response_of(place, outcome, seconds))
        return parts.members

    assert members(2) == [3, 1]
    assert members(3) == [3, 1, 2]  # the stopped one could still have got a reward
    assert members(4) == [0, 1, 2, 3]


def test_groups_that_generate_are_needless_once_where_enough_others_only_wait_for_rewards():
    running = [GroupParts(group_of([0] * 2)._replace(number=number)) for number in range(4)]
    must_finish = running[3]
    must_finish.group = must_finish.group._replace(prompt=must_finish.group.prompt._replace(must_finish=True))
    running[0].generated |= {0, 1}
    assert running[0].is_generated and not needless(running, 2) and not needless(running, 0)
    running[1].generated.add(0)
    assert not needless(running, 2)
    running[1].put(1, response_of(1, REWARDED))
    assert needless(running, 2) == [running[2]] and not needless(running, 2)
    running[1].put(0, response_of(0, FAILED))
    assert not running[1].generated and running[1].is_generated and running[1].is_whole
