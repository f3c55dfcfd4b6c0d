"""The idle tail of a step, and its waits for rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.idle_tail import idle_seconds, wait_share


def idle_tail(running, began, now):
    tail, rewards = idle_seconds(running, [], began, now)
    assert rewards == 0
    return tail


def test_waits_for_rewards_are_no_idle_tail():
    """Four run until 102, 103, 104 and 106; each then waits for its reward, the last until 119, and a second wave does."""
    ends = (102.0, 103.0, 104.0, 106.0)
    running, rewarded = [(100.0, end) for end in ends], [(end, end + 13) for end in ends]
    assert idle_seconds(running, rewarded, 100.0, 120.0) == pytest.approx((106 - 104 + 120 - 119, 119 - 106))
    running += [(112.0, 114.0)] * 4
    assert idle_seconds(running, rewarded, 100.0, 119.0) == pytest.approx((2, 119 - 106 - 2))


def test_a_rollout_that_runs_is_the_tail_whatever_others_wait_for():
    running, rewarded = [(0.0, 2.0)] * 7 + [(0.0, 10.0)], [(2.0, 9.0)] * 7 + [(10.0, 11.0)]
    assert idle_seconds(running, rewarded, 0.0, 11.0) == pytest.approx((8, 1))


def test_the_idle_tail_begins_when_fewer_than_half_of_the_peak_run():
    """A second without a rollout before the peak; then six run, 5, 4, 3, 2, 1, 0."""
    spans = [(101.0, 101.0 + seconds) for seconds in (2, 3, 4, 5, 6, 9)]
    assert idle_tail(spans, 100.0, 112.0) == pytest.approx(112 - (101 + 5))


def test_a_dip_between_two_waves_is_idle_and_the_second_wave_is_not():
    spans = [(100.0, 103.0)] * 4 + [(104.0, 109.0)] * 2
    assert idle_tail(spans, 100.0, 110.0) == pytest.approx((104 - 103) + (110 - 109))


def test_two_slots_that_are_always_busy_have_no_tail():
    assert idle_tail([(100.0, 105.0)] * 2 + [(105.0, 110.0)] * 2, 100.0, 110.0) == 0.0


def test_groups_that_run_on_count_in_both_steps():
    first, second = [(100.0, 102.0)] * 4, [(100.0, 112.0)] * 3 + [(100.0, 120.0)]
    assert idle_tail(first + [(100.0, 104.0)] * 4, 100.0, 104.0) == 0.0  # four of eight still run
    assert idle_tail(second, 110.0, 120.0) == pytest.approx(120 - 112)


def test_a_step_without_a_rollout_has_no_tail():
    assert idle_tail([], 100.0, 103.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=20))
def test_the_tail_is_the_count_of_small_steps(drawn):
    """Against rollouts counted every eighth of a second, whose sums are exact."""
    drawn = [(round(8 * wait) / 8, round(8 * run) / 8) for wait, run in drawn]
    spans = [(wait, wait + run) for wait, run in drawn]
    ticks = [1 / 16 + tick / 8 for tick in range(800)]
    counts = [sum(start < tick < end for start, end in spans) for tick in ticks]
    peak = max(counts)
    idle = sum(2 * count < peak for count in counts[counts.index(peak) :]) / 8 if peak else 0.0
    assert not peak or idle_tail(spans, 0.0, 100.0) == pytest.approx(idle, abs=1e-3)


def test_engines_wait_where_nothing_runs_on_them():
    running = [(0, -5.0, 4.0), (0, 2.0, 6.0), (0, 8.0, 20.0), (1, 0.0, 1.0)]
    assert wait_share(running, 0.0, 10.0, 2) == pytest.approx(1 - (6 + 2 + 1) / 20)
    assert wait_share([], 0.0, 10.0, 3) == 1.0
