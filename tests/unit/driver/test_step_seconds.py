"""A step's seconds by part, and the engines' idle tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.driver.step_seconds import IDLE_TAIL, REWARD_WAIT, StepClock, step_seconds


def scalars(total, generation, experience=0.0, training=0.0, sync=0.0, other=0.0, idle_tail=0.0, rewards=0.0, **more):
    timings = {"step_total": total, "generation": generation, "make_experience": experience}
    timings |= {"ppo_train": training, "broadcast": sync, "other": other}
    return {f"timing/{name}": value for name, value in timings.items()} | {
        IDLE_TAIL: idle_tail,
        REWARD_WAIT: rewards,
        **more,
    }


def parts_of(logged):
    return {name.removeprefix("step_seconds/"): value for name, value in step_seconds(logged).items()}


def test_parts_of_a_synchronous_step():
    logged = scalars(10.0, 4.0, 1.0, 3.0, 0.5, 1.5, idle_tail=2.5, rewards=1.0, actor_optimizer_seconds=0.75)
    expected = {
        "decoding": 0.5,
        "idle_tail": 2.5,
        "rewards": 1.0,
        "experience": 1.0,
        "training": 2.25,
        "optimizer": 0.75,
    }
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


@given(seconds, seconds, seconds, seconds, seconds, seconds, seconds, seconds, seconds)
def test_parts_sum_to_the_step(generation, experience, training, sync, other, idle_tail, rewards, optimizer, waited):
    """`waited`: of an asynchronous step, for rollouts and for what is done between steps."""
    for total in (generation + experience + training + sync + other, experience + training + sync + other + waited):
        logged = scalars(total, generation, experience, training, sync, other, idle_tail, rewards)
        parts = parts_of({**logged, "actor_optimizer_seconds": optimizer})
        assert sum(parts.values()) == pytest.approx(total) and min(parts.values()) >= 0


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_step_after_the_first_lasts_until_the_next_one_begins_without_what_is_left_out(clock):
    steps = StepClock(clock)
    with steps.left_out():  # before the first step
        clock.now = 103.0
    assert steps.step_over() is None
    steps.begin()
    clock.now = 103.25
    assert steps.step_over() is None  # the first step warms up
    steps.begin()
    clock.now = 110.0
    with steps.left_out():
        clock.now = 115.0
    clock.now = 116.0
    assert steps.step_over() == pytest.approx(116 - 103.25 - 5)
    clock.now = 117.0
    assert steps.step_over() is None  # the call before this one rolled nothing out
    clock.now = 117.5
    steps.begin()
    clock.now = 118.5
    assert steps.step_over() == pytest.approx(1.5)
