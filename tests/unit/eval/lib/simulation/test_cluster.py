"""Engines that share a clock, against closed forms."""

import pytest
from engine_costs import costs_of
from hypothesis import given
from hypothesis import strategies as st
from lib.simulation.cluster import Cluster
from lib.simulation.engine import Request


def requests_of(*lengths, group=0, engines=None, prompt=0):
    """The rollouts of a group with these tokens, on these engines."""
    engines = engines or [0] * len(lengths)
    return [Request(prompt, tokens, group, place, engines[place]) for place, tokens in enumerate(lengths)]


def ends(requests):
    """Group and place of each."""
    return [(request.group, request.place) for request in requests]


@given(lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=60), prompt=st.integers(0, 300))
def test_one_engine_that_admits_all_has_a_closed_form(lengths, prompt):
    costs = costs_of(decode_base=0.01, decode_per_request=1e-4, decode_per_kv_token=1e-7, prefill_per_token=1e-5)
    cluster, ended = Cluster(costs, 1), 0
    cluster.dispatch(requests_of(*lengths, prompt=prompt))
    while ended < len(lengths):
        ended += len(cluster.ended())
    kv_tokens = sum(prompt * n + n * (n - 1) / 2 for n in lengths)
    seconds = 0.01 * max(lengths) + 1e-4 * sum(lengths) + 1e-7 * kv_tokens + 1e-5 * prompt * len(lengths)
    assert cluster.now == pytest.approx(seconds, rel=1e-9)


def test_stopping_leaves_idle_engines_and_says_what_ran():
    cluster = Cluster(costs_of(), 2)
    cluster.dispatch([*requests_of(3, 9, engines=[0, 0]), *requests_of(4, group=1, engines=[1])])
    assert ends(cluster.ended()) == [(0, 0)]
    left = cluster.stop()
    assert ends(left) == [(0, 1), (1, 0)] and [request.ended for request in left] == [None, None]
    assert [engine.unfinished for engine in cluster.engines] == [0, 0] and cluster.now == 3
    cluster.dispatch(requests_of(4, group=3))
    assert ends(cluster.ended()) == [(3, 0)] and cluster.now == 7


def test_a_surplus_is_dropped_on_its_engines_at_once():
    """Rollouts of 3, 5 and 9 steps a second on three engines, and of 7 beside them: two of the first three are wanted."""
    cluster = Cluster(costs_of(), 3)
    first = requests_of(9, 3, 5, engines=[0, 1, 2])
    cluster.dispatch([*first, *requests_of(7, 7, 7, group=1, engines=[2, 0, 0])])
    assert ends(cluster.ended()) == [(0, 1)] and ends(cluster.ended()) == [(0, 2)] and cluster.now == 5
    cluster.drop({0: [0]})
    assert ends(cluster.ended()) == [(0, 0)] and cluster.now == 5
    assert [request.ended for request in first] == [None, 3, 5] and first[0].decoded == 5
    assert [engine.unfinished for engine in cluster.engines] == [2, 0, 1]
    rest = [*cluster.ended(), *cluster.ended()]
    assert sorted(ends(rest)) == [(1, 0), (1, 1), (1, 2)] and cluster.now == 7


def test_a_rollout_that_ends_in_the_step_of_the_stop_has_ended():
    """Engine 1 is in a step of 2 s when it is to drop the group: it ends the rollout, and another group's too."""
    cluster = Cluster(costs_of(), 2)
    cluster.engines[1].costs = costs_of(decode_base=2.0)
    group = requests_of(3, 2, 9, engines=[0, 1, 1])
    cluster.dispatch([*group, *requests_of(2, 9, group=1, engines=[1, 0])])
    assert ends(cluster.ended()) == [(0, 0)] and cluster.now == 3
    cluster.drop({0: [1, 1]})
    assert sorted(ends(cluster.ended())) == [(0, 1), (0, 2), (1, 0)]
    assert [request.ended for request in group] == [3, 4, None]
    assert ends(cluster.ended()) == [(1, 1)] and not any(engine.unfinished for engine in cluster.engines)


def test_a_freed_slot_is_given_away_once_the_surplus_is_gone():
    """One slot: the dropped rollout waits for it, and does not get it for a moment."""
    cluster = Cluster(costs_of(max_running=1), 1)
    group = requests_of(3, 9)
    cluster.dispatch([*group, *requests_of(2, group=1)])
    assert ends(cluster.ended()) == [(0, 0)]
    cluster.drop({0: [0]})
    assert ends(cluster.ended()) == [(0, 1)]
    assert group[1].started is None and ends(cluster.ended()) == [(1, 0)] and cluster.now == 5


def test_a_rollout_beyond_the_cache_is_refused():
    cluster = Cluster(costs_of(kv_limit=20), 1)
    with pytest.raises(ValueError, match="kv_limit 20 is less than a rollout of 21 tokens, prompt included"):
        cluster.dispatch(requests_of(11, prompt=10))
    assert cluster.engines[0].unfinished == 0
