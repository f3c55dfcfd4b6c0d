"""The records that pass between the parts."""

from openrlhf_sagc.decisions.records import Rollout


def test_the_wait_for_vllm_is_no_part_of_a_rollouts_running_seconds():
    assert Rollout(5, 7.5, 2.5, True, False, None).running_seconds == 5.0
    assert Rollout(0, 1.0, 1.5, False, True, None).running_seconds == 0.0  # stopped while it waited
    rewarded = Rollout(5, 7.5, 2.5, True, False, None, reward_seconds=4.0)
    assert (rewarded.generated, rewarded.running_seconds) == (3.5, 1.0)
