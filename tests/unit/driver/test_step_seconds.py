"""A step's seconds by part, and the engines' idle tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.records import Rollout
from openrlhf_sagc.driver.step_seconds import IDLE_TAIL, RunningRollouts, StepClock, step_seconds


def scalars(total, generation, experience=0.0, training=0.0, sync=0.0, other=0.0, idle_tail=0.0, **more):
    timings = {"step_total": total, "generation": generation, "make_experience": experience}
    timings |= {"ppo_train": training, "broadcast": sync, "other": other}
    return {f"timing/{name}": value for name, value in timings.items()} | {IDLE_TAIL: idle_tail, **more}


def parts_of(logged):
    return {name.removeprefix("step_seconds/"): value for name, value in step_seconds(logged).items()}


def test_parts_of_a_synchronous_step():
    logged = scalars(10.0, 4.0, 1.0, 3.0, 0.5, 1.5, idle_tail=2.5, actor_optimizer_seconds=0.75)
    expected = {"decoding": 1.5, "idle_tail": 2.5, "experience": 1.0, "training": 2.25, "optimizer": 0.75}
    assert parts_of(logged) == pytest.approx(expected | {"sync": 0.5, "other": 1.5})


def test_a_frozen_actor_has_no_optimizer_step():
    parts = parts_of(scalars(7.0, 4.0, training=3.0))
    assert (parts["training"], parts["optimizer"]) == (3.0, 0.0)


@pytest.mark.parametrize(
    "total, decoding, idle_tail, other",
    [(6.0, 0.0, 0.0, 0.5), (7.0, 0.0, 1.0, 0.5), (9.0, 1.0, 2.0, 0.5), (16.5, 8.0, 2.0, 1.0)],
    ids=["all hidden", "a part of the tail seen", "all of the tail seen", "waited for more than generation"],
)
def test_an_asynchronous_step_hides_the_beginning_of_its_generation(total, decoding, idle_tail, other):
    parts = parts_of(scalars(total, 10.0, 1.0, 4.0, 0.5, 0.5, idle_tail=2.0))
    assert (parts["decoding"], parts["idle_tail"], parts["other"]) == (decoding, idle_tail, other)


seconds = st.floats(0, 1e4)


@given(seconds, seconds, seconds, seconds, seconds, seconds, seconds, seconds)
def test_parts_sum_to_the_step(generation, experience, training, sync, other, idle_tail, optimizer, waited):
    """`waited`: of an asynchronous step, for rollouts and for what is done between steps."""
    for total in (generation + experience + training + sync + other, experience + training + sync + other + waited):
        logged = scalars(total, generation, experience, training, sync, other, idle_tail)
        parts = parts_of({**logged, "actor_optimizer_seconds": optimizer})
        assert sum(parts.values()) == pytest.approx(total) and min(parts.values()) >= 0


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def rollouts(clock):
    """A step's generation has begun at 100 s."""
    running = RunningRollouts(clock)
    running.begin()
    return running


def rollout_of(seconds, queue_seconds=0.0):
    return Rollout(10, seconds, queue_seconds, finished=True, stopped=False, failure=None)


def test_the_idle_tail_begins_when_fewer_than_half_of_the_peak_run(rollouts, clock):
    clock.now = 101.0  # a second without a rollout, before the peak
    rollouts.send(0, 4)
    rollouts.send(1, 2)
    clock.now = 112.0
    rollouts.take_back(1, [rollout_of(2.0), rollout_of(3.0)])  # 5 and 4 of 6 run
    rollouts.take_back(0, [rollout_of(4.0), rollout_of(5.0), rollout_of(6.0), rollout_of(9.0)])  # 3, 2, 1, 0
    assert rollouts.idle_tail() == pytest.approx(112 - (101 + 5))


def test_a_dip_between_two_waves_is_idle_and_the_second_wave_is_not(rollouts, clock):
    rollouts.send(0, 4)
    clock.now = 104.0
    rollouts.send(1, 2)
    clock.now = 110.0
    rollouts.take_back(0, [rollout_of(3.0)] * 4)
    rollouts.take_back(1, [rollout_of(5.0)] * 2)
    assert rollouts.idle_tail() == pytest.approx((104 - 103) + (110 - 109))


def test_rollouts_in_the_queue_of_vllm_do_not_run(rollouts, clock):
    rollouts.send(0, 4)
    clock.now = 110.0
    rollouts.take_back(0, [rollout_of(5.0)] * 2 + [rollout_of(10.0, 5.0)] * 2)  # two slots, always busy
    assert rollouts.idle_tail() == 0.0


def test_groups_that_run_on_count_in_both_steps(rollouts, clock):
    rollouts.send(0, 4)
    rollouts.send(1, 4)
    clock.now = 104.0
    rollouts.take_back(0, [rollout_of(2.0)] * 4)
    assert rollouts.idle_tail() == 0.0  # four of eight still run
    clock.now = 110.0
    rollouts.begin()
    clock.now = 120.0
    rollouts.take_back(1, [rollout_of(12.0)] * 3 + [rollout_of(20.0)])
    assert rollouts.idle_tail() == pytest.approx(120 - 112)


def test_a_step_without_a_rollout_has_no_tail(rollouts, clock):
    clock.now = 103.0
    assert rollouts.idle_tail() == 0.0


@given(st.lists(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=5), max_size=8))
def test_the_tail_is_the_count_of_small_steps(groups):
    """Against rollouts counted every eighth of a second, whose sums are exact."""
    clock = Clock()
    running = RunningRollouts(clock)
    spans = []
    for number, members in enumerate(groups):
        members = [(round(8 * wait) / 8, round(8 * run) / 8) for wait, run in members]
        running.send(number, len(members))
        spans += [(wait, wait + run) for wait, run in members]
        clock.now = 200.0
        running.take_back(number, [rollout_of(wait + run, wait) for wait, run in members])
        clock.now = 100.0
    clock.now = 200.0
    ticks = [1 / 16 + tick / 8 for tick in range(800)]
    counts = [sum(start < tick < end for start, end in spans) for tick in ticks]
    peak = max(counts)
    idle = sum(2 * count < peak for count in counts[counts.index(peak) :]) / 8 if peak else 0.0
    assert not peak or running.idle_tail() == pytest.approx(idle, abs=1e-3)


def test_a_step_after_the_first_lasts_until_the_next_one_begins_without_what_is_left_out(clock):
    steps = StepClock(clock)
    with steps.left_out():  # before the first step
        clock.now = 103.0
    assert steps.next_step() is None
    clock.now = 103.25
    assert steps.next_step() is None  # the first step warms up
    clock.now = 110.0
    with steps.left_out():
        clock.now = 115.0
    clock.now = 116.0
    assert steps.next_step() == pytest.approx(116 - 103.25 - 5)
    clock.now = 118.5
    assert steps.next_step() == pytest.approx(2.5)
