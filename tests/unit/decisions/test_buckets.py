"""Which groups make a bucket."""

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.buckets import LEAST_SHARE, BucketPlan
from openrlhf_sagc.decisions.records import Group, Prompt


def groups_of(numbers, size=4):
    return [Group(number, 0, Prompt("", "", None, 1), size, size, samples=[None] * size) for number in numbers]


def numbers_of(groups):
    return [group.number for group in groups]


def test_a_bucket_is_half_of_what_is_left_and_the_last_groups_stay():
    plan = BucketPlan(12, 4, ranks=5, micro_batch_size=1)
    sent = [numbers_of(plan.add([group])) for group in groups_of(range(12))]
    # 12, 6 and 3 groups are left. The rest has a sample for each of five ranks, with two rewards of each group too.
    assert [bucket for bucket in sent if bucket] == [[0, 1, 2, 3, 4, 5], [6, 7, 8]] and sent[5] == [*range(6)]
    assert plan.sent == set(range(9)) and numbers_of(plan.rest(groups_of(range(12)))) == [9, 10, 11]


def test_a_bucket_has_a_micro_batch_for_each_rank():
    plan = BucketPlan(8, 4, ranks=2, micro_batch_size=6)
    assert [len(plan.add([group])) for group in groups_of(range(8))] == [0, 0, 0, 4, 0, 0, 3, 0]


def test_groups_of_one_call_are_one_bucket():
    plan = BucketPlan(8, 4, ranks=1, micro_batch_size=1)
    assert numbers_of(plan.add(groups_of(range(8)))) == list(range(7)) and plan.add([]) == []


@given(
    num_groups=st.integers(1, 40),
    size=st.sampled_from([2, 4, 8]),
    ranks=st.integers(1, 40),
    micro_batch_size=st.integers(1, 16),
    steps=st.integers(1, 5),
)
def test_a_bucket_has_its_share_and_something_is_left(num_groups, size, ranks, micro_batch_size, steps):
    plan = BucketPlan(num_groups, size, ranks=ranks, micro_batch_size=micro_batch_size, optimizer_steps=steps)
    groups = groups_of(range(num_groups), size)
    buckets = [bucket for group in groups if (bucket := plan.add([group]))]
    left = num_groups
    for bucket in buckets:
        assert len(bucket) >= left * LEAST_SHARE and len(bucket) * size >= ranks * max(micro_batch_size, steps)
        left -= len(bucket)
    rest = plan.rest(groups)
    assert numbers_of([group for bucket in buckets for group in bucket] + rest) == list(range(num_groups))
    assert len(rest) * 2 >= min(ranks * steps, num_groups * 2)  # a group has two samples at least


def test_a_bucket_of_groups_with_failed_rewards_has_a_sample_for_each_rank_and_step():
    plan = BucketPlan(8, 4, ranks=4, micro_batch_size=1, optimizer_steps=4)
    short = [group._replace(samples=[None] * 3) for group in groups_of(range(8))]
    assert [len(plan.add([group])) for group in short] == [0] * 8  # four groups of three are 12 samples, not 16
