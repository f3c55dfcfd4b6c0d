"""When a round is short or long, and how long a prompt may wait."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.tail_batching import TailBatcher


@pytest.mark.parametrize(
    "num_groups, waiting, drained, kind",
    [
        (16, 0, False, "short"),
        (16, 15, False, "short"),
        (16, 16, False, "long"),
        (16, 1, True, "long"),
        (16, 0, True, "short"),
    ],
)
def test_a_long_round_is_due_when_a_step_of_prompts_waits_or_no_others_are_left(num_groups, waiting, drained, kind):
    batcher = TailBatcher(response_ratio=1.25)
    short, long = Round(False, 1.25, 10), Round(True, 1.0, 8)
    assert batcher.decide(num_groups, 8, Outlook(waiting, drained)) == {"short": short, "long": long}[kind]


def test_a_prompt_has_its_groups_rollouts_unless_more_are_asked_for():
    assert TailBatcher().decide(16, 8, Outlook(0, False)) == Round(False, 1.25, 8)


def test_rollouts_of_a_short_round_are_rounded_up():
    ratios = {(1.0, 8): 8, (1.25, 4): 5, (1.1, 10): 11, (1.25, 6): 8}
    for (ratio, size), rollouts in ratios.items():
        assert TailBatcher(response_ratio=ratio).decide(4, size, Outlook(0, False)).rollouts == rollouts


@pytest.mark.parametrize("ratio", [0.99, 0, -1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["prompt_ratio", "response_ratio"])
def test_ratios_out_of_range_are_refused(name, ratio):
    with pytest.raises(ValueError, match=f"^{name} must be a finite number of at least 1, got {ratio}"):
        TailBatcher(**{name: ratio})


@given(
    st.floats(1, 3),
    st.sampled_from([1, 4]),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=50, max_size=80),
)
@settings(max_examples=200)
def test_no_prompt_waits_longer_than_the_bound(ratio, pool, num_groups, rounds):
    """Whatever the rounds leave behind, a prompt behind w others is taken within (w // P + 1) * (max_wait + pool) rounds.

    The planner is saved and restored in between.
    """
    batcher, queue, frame = TailBatcher(prompt_ratio=ratio, pool=pool), [], []
    for now, (left_behind, restored) in enumerate(rounds):
        assert all(now <= deadline for deadline in queue + frame)
        plan = batcher.decide(num_groups, 4, Outlook(len(queue), False, len(frame) / num_groups))
        if plan.begins:
            taken = max(min(len(queue) // num_groups, plan.steps), 1) * num_groups
            frame, queue = queue[:taken], queue[taken:]
        if plan.steps:
            frame = frame[: len(frame) - num_groups] if len(frame) > num_groups else []  # the order is the frame's
        elif plan.long:
            queue = queue[num_groups:]
        else:
            for _ in range(left_behind):
                queue.append(now + (len(queue) // num_groups + 1) * (batcher.max_wait + pool))
        batcher.observe(len(queue))
        if restored:
            state = json.loads(json.dumps(batcher.state_dict()))
            batcher = TailBatcher(prompt_ratio=ratio, pool=pool)
            batcher.load_state_dict(state)
