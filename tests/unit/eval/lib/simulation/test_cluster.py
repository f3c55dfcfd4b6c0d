"""Engines that share a clock, against closed forms."""

import pytest
from engine_costs import costs_of
from hypothesis import given
from hypothesis import strategies as st
from lib.simulation.cluster import Cluster
from lib.simulation.engine import Request


@given(lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=60), prompt=st.integers(0, 300))
def test_one_engine_that_admits_all_has_a_closed_form(lengths, prompt):
    costs = costs_of(decode_base=0.01, decode_per_request=1e-4, decode_per_kv_token=1e-7, prefill_per_token=1e-5)
    cluster = Cluster(costs, 1)
    cluster.dispatch({0: [Request(prompt, tokens) for tokens in lengths]}, [[0] * len(lengths)])
    assert cluster.next_group()[0] == 0
    kv_tokens = sum(prompt * n + n * (n - 1) / 2 for n in lengths)
    seconds = 0.01 * max(lengths) + 1e-4 * sum(lengths) + 1e-7 * kv_tokens + 1e-5 * prompt * len(lengths)
    assert cluster.now == pytest.approx(seconds, rel=1e-9)


def test_stopping_leaves_idle_engines_and_says_what_was_whole():
    cluster = Cluster(costs_of(), 2)
    cluster.dispatch({0: [Request(0, 3)], 1: [Request(0, 3)], 2: [Request(0, 9)]}, [(0,), (1,), (0,)])
    assert cluster.next_group()[0] == 0
    left = cluster.stop()
    assert {group: [request.ended for request in requests] for group, requests in left.items()} == {
        1: [None],
        2: [None],
    }
    assert [engine.unfinished for engine in cluster.engines] == [0, 0] and cluster.now == 3
    cluster.dispatch({3: [Request(0, 4)]}, [(0,)])
    assert cluster.next_group()[0] == 3 and cluster.now == 7


def test_a_group_that_is_whole_drops_its_others_on_all_engines():
    """Rollouts of 3, 5 and 9 steps a second on three engines, and of 4 beside them: two of the first three are wanted."""
    noted = []
    cluster = Cluster(costs_of(), 3, lambda group, places: noted.append((group, *places)))
    first, others = [Request(0, tokens) for tokens in (9, 3, 5)], [Request(0, 7) for _ in range(3)]
    cluster.dispatch({0: first, 1: others}, [(0, 1, 2), (2, 0, 0)], keep_first=2)
    number, back = cluster.next_group()
    assert (number, cluster.now) == (0, 5) and back is first and noted == [(0, 1), (0, 2)]
    assert [request.ended for request in first] == [None, 3, 5] and first[0].decoded == 5
    assert [engine.unfinished for engine in cluster.engines] == [2, 0, 1]
    assert cluster.next_group()[0] == 1 and cluster.now == 7


def test_a_rollout_that_ends_in_the_step_of_the_stop_has_ended():
    """Engine 1 is in a step of 2 s when engine 0 makes the group whole: it ends the rollout, and another group's too."""
    cluster = Cluster(costs_of(), 2)
    cluster.engines[1].costs = costs_of(decode_base=2.0)
    groups = {0: [Request(0, 3), Request(0, 2), Request(0, 9)], 1: [Request(0, 2), Request(0, 9)]}
    cluster.dispatch(groups, [(0, 1, 1), (1, 0)], keep_first=1)
    assert cluster.next_group()[0] == 0 and cluster.now == 3
    assert [request.ended for request in groups[0]] == [3, 4, None]
    assert cluster.next_group()[0] == 1
    assert [request.ended for request in groups[1]] == [4, None] and not any(e.unfinished for e in cluster.engines)


def test_a_rollout_beyond_the_cache_is_refused():
    cluster = Cluster(costs_of(kv_limit=20), 1)
    with pytest.raises(ValueError, match="kv_limit 20 is less than a rollout of 21 tokens, prompt included"):
        cluster.dispatch({0: [Request(10, 11)]}, [(0,)])
    assert cluster.engines[0].unfinished == 0
