"""The records that pass between the parts."""

from openrlhf_sagc.decisions.records import Rollout, first_to_finish


def rollout(seconds, *, stopped=False, failure=None):
    return Rollout(5, seconds, 0.0, not stopped, stopped, failure)


def test_the_group_is_the_first_rollouts_to_finish_with_a_reward():
    rollouts = [rollout(1.0, failure="E"), rollout(9.0), rollout(2.0, stopped=True), rollout(3.0)]
    assert first_to_finish(rollouts, 2) == [3, 1]
    assert first_to_finish(rollouts, 3) == [3, 1, 2]  # the stopped one could still have got a reward
    assert first_to_finish(rollouts, 4) == [0, 1, 2, 3]
