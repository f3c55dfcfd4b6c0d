"""Sorted steps: which prompts share a step, how long one may wait, and what is stopped."""

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Source

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Ended, Outlook, Rollout
from openrlhf_sagc.decisions.sorted_steps import MOST_STEPS, STEPS, SortedSteps, fraction, steps_of_frame

GROUPS = 4  # of a step


class Prompts(Source):
    """Prompts in the order of their numbers, since the order of the data is not what is tested."""

    def take(self, count):
        taken = range(self.place, min(self.place + count, self.count))
        self.place = taken.stop
        return [(str(prompt), "label", None) for prompt in taken], len(taken) < count


def planner_of(prompt_ratio=1.0, seed=0, filters=False, groups=GROUPS):
    return StepPlanner(
        StragglerAwareGroupController([2]),
        DynamicSampler(tolerance=1e-6 if filters else None, max_gen_batches=1000),
        SortedSteps(prompt_ratio=prompt_ratio, seed=seed),
        LengthPredictor(),
        hold="prompts",
        samples=0,
        prompts=groups,
        signal="tokens",
        num_engines=1,
    )


def taught(planner, count):
    """The planner, which has seen that prompt n has responses of 10 n tokens."""
    for prompt in range(count):
        planner.predictor.observe(f"{prompt}\0label", [10.0 * prompt + 1] * 64, [False] * 64)
    return planner


def ended(group, finished=True):
    tokens = 10 * int(group.prompt.text) + 1
    rollout = Rollout(tokens, float(tokens), 0.0, finished, not finished, None)
    return [Ended(group.number, place, {ROLLOUT: rollout}) for place in range(group.rollouts)]


def roll_out(planner, queue, is_kept=lambda group: True):
    """A step whose groups come back the shortest first; its groups as they were dispatched, then as they were trained."""
    step = planner.begin(queue)
    running = dispatched = step.dispatch()
    while step.waits:
        running = sorted(running, key=lambda group: int(group.prompt.text))
        for back in step.receive(ended(running[0])):
            step.judge(back, (0.0, float(is_kept(back.group))), [1, 1])
        more = step.dispatch()
        running, dispatched = running[1:] + more, dispatched + more
    for group in running:
        step.receive(ended(group, finished=False))
    step.end()
    if len(step.flight.accepted) < step.num_groups:
        return None
    step.close(keep=False, tokens_of=lambda group: 1)
    return dispatched, step.trained


def numbers(groups):
    return sorted(int(group.prompt.text) for group in groups)


def test_a_frame_is_cut_into_steps_of_like_prompts_in_an_order_drawn_by_the_seed():
    orders = set()
    for seed in range(8):
        planner, queue = taught(planner_of(seed=seed), 200), PromptQueue(Prompts(200))
        steps = [numbers(roll_out(planner, queue)[1]) for _ in range(STEPS)]
        assert sorted(steps) == [list(range(begin, begin + GROUPS)) for begin in range(0, GROUPS * STEPS, GROUPS)]
        orders.add(tuple(step[0] for step in steps))
        assert numbers(roll_out(planner, queue)[1])[0] >= GROUPS * STEPS
    assert len(orders) == 8


def test_without_a_history_steps_are_those_of_the_data_and_nothing_is_stopped():
    planner, queue = planner_of(), PromptQueue(Prompts(40))
    for _ in range(STEPS):
        dispatched, trained = roll_out(planner, queue)
        assert len(dispatched) == len(trained) == GROUPS
    assert not len(queue) and not queue.frame


def test_a_frame_ends_with_its_episode_whose_last_step_is_filled_up():
    planner, queue = taught(planner_of(), 22), PromptQueue(Prompts(22))
    trained = [group.prompt for _ in range(6) for group in roll_out(planner, queue)[1]]
    assert sorted((prompt.episode, int(prompt.text)) for prompt in trained) == [
        *((1, prompt) for prompt in range(22)),
        (2, 0),
        (2, 1),
    ]
    assert queue.close_episode([]) and not queue.frame
    few = PromptQueue(Prompts(3))  # fewer than a step
    assert numbers(roll_out(taught(planner_of(), 3), few)[1]) == [0, 0, 1, 2] and few.close_episode([])


def test_a_surplus_stops_a_prompt_once_at_most():
    planner, queue, stopped = taught(planner_of(prompt_ratio=1.05, groups=20), 2000), PromptQueue(Prompts(2000)), []
    for _ in range(4 * STEPS):
        dispatched, trained = roll_out(planner, queue)
        assert len(dispatched) == 21
        stopped += sorted(set(numbers(dispatched)) - set(numbers(trained)))
    assert len(stopped) == len(set(stopped)) == 4 * STEPS


def test_a_surplus_of_less_than_a_prompt_is_none():
    assert SortedSteps(prompt_ratio=1.05).decide(19, 2, Outlook()).prompt_ratio == 1
    assert SortedSteps(prompt_ratio=1.05).decide(20, 2, Outlook()).prompt_ratio == 1.05


@pytest.mark.parametrize("ratio", [0.99, 1.07, math.nan, math.inf])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(ValueError, match=f"^prompt_ratio must be from 1 to 1.06 where steps are sorted, got {ratio}"):
        SortedSteps(prompt_ratio=ratio)


@given(
    st.sampled_from([1.0, 1.02, 1.06]), st.integers(0, 99), st.integers(1, 300), st.sampled_from([4, 20]), st.data()
)
@settings(max_examples=60, deadline=None)
def test_a_prompt_is_trained_within_two_frames(ratio, seed, count, groups, data):
    """Whatever is expected of it, and wherever the run is resumed: a step trains what an earlier one has left behind."""
    planner, queue, drawn_at = planner_of(ratio, seed, groups=groups), PromptQueue(Prompts(count)), {}
    for prompt in data.draw(st.sets(st.integers(0, count - 1), max_size=40)):
        planner.predictor.observe(f"{prompt}\0label", [data.draw(st.floats(1, 1e4))], [False])
    for number in range(60):
        if (found := roll_out(planner, queue)) is None:
            break
        dispatched, trained = found
        held = [*queue.frame.prompts, *queue.waiting, *(group.prompt for group in trained)]
        for prompt in held:
            drawn_at.setdefault((prompt.text, prompt.episode), number)
        for group in trained:
            assert number - drawn_at.pop((group.prompt.text, group.prompt.episode)) < 2 * MOST_STEPS
        assert all(number - first < 2 * MOST_STEPS for first in drawn_at.values())
        queue.close_episode([])
        if data.draw(st.booleans()):
            states = json.loads(json.dumps([planner.state_dict(), queue.state_dict([])]))
            source, planner = queue._source, planner_of(ratio, seed, groups=groups)
            queue = PromptQueue(source)
            planner.load_state_dict(states[0])
            queue.load_state_dict(states[1])


def test_what_dynamic_sampling_asks_for_is_of_like_length_and_nothing_is_left_behind():
    planner, queue = taught(planner_of(filters=True), 4000), PromptQueue(Prompts(4000))
    done: set[int] = set()
    spans = []
    for _ in range(60):
        dispatched, _ = roll_out(planner, queue, lambda group: group.number % 2)
        found = numbers(dispatched)
        spans.append(found[-1] - found[0])
        done.update(found)
    frame = STEPS * GROUPS * 2  # prompts, at an acceptance rate of a half
    assert statistics.median(spans[20:]) < frame / 2
    assert not set(range(max(done) - 2 * frame)) - done


@pytest.mark.parametrize("count", range(33, 65, 3))
def test_episodes_end_where_dynamic_sampling_expects_drops_and_none_come(count):
    """A step draws fewer prompts than its part of the frame has. The longest and shortest were never drawn."""
    planner, queue = taught(planner_of(filters=True, groups=8), count), PromptQueue(Prompts(count))
    ends = []
    for number in range(10 * count // 8):
        assert roll_out(planner, queue)
        if queue.close_episode([]):
            ends.append(number)
    assert len(ends) >= 8, ends


def test_a_resumed_run_goes_on_in_its_frame():
    straight, killed = ((taught(planner_of(), 100), PromptQueue(Prompts(100))) for _ in range(2))
    for run in (straight, killed):
        for _ in range(STEPS // 2):
            roll_out(*run)
    source = killed[1]._source
    resumed = planner_of(), PromptQueue(source)
    for new, old in zip(resumed, (killed[0].state_dict(), killed[1].state_dict([]))):
        new.load_state_dict(json.loads(json.dumps(old)))
    for _ in range(STEPS):
        assert roll_out(*resumed) == roll_out(*straight)


def test_without_a_frame_under_way_one_begins():
    batcher = SortedSteps()
    first = batcher.decide(GROUPS, 2, Outlook())
    batcher.observe(0)
    assert first.begins and first.steps == STEPS
    for framed, steps, begins in ((5.0, STEPS - 1, False), (0.4, STEPS, True), (9.0, STEPS - 1, False)):
        round = batcher.decide(GROUPS, 2, Outlook(framed=framed))
        batcher.observe(0)
        assert (round.steps, round.begins) == (steps, begins)


@pytest.mark.parametrize(
    "left, frames", [(33, [11, 11, 11]), (32, [11, 11, 10]), (10.6, [11]), (14.9, [15]), (15, [8, 7]), (0.2, [1])]
)
def test_the_frames_of_an_episode_are_about_as_long(left, frames):
    found = []
    while left > 0:
        found.append(steps_of_frame(left))
        left -= found[-1]
    assert found == frames
    assert steps_of_frame(math.inf) == STEPS and all(1 <= steps_of_frame(n / 10) <= MOST_STEPS for n in range(5000))


def test_an_episode_of_eleven_steps_is_one_frame():
    """The eleventh step of a frame of ten would have whatever is left."""
    planner, queue = taught(planner_of(), 44), PromptQueue(Prompts(44))
    steps = [numbers(roll_out(planner, queue)[1]) for _ in range(11)]
    assert sorted(steps) == [list(range(begin, begin + GROUPS)) for begin in range(0, 44, GROUPS)]


def test_fractions_are_even_and_follow_from_seed_and_number():
    drawn = [fraction(1, number) for number in range(1000)]
    assert drawn == [fraction(1, number) for number in range(1000)] != [fraction(2, number) for number in range(1000)]
    assert 0 <= min(drawn) and max(drawn) < 1 and abs(sum(drawn) / 1000 - 0.5) < 0.03
