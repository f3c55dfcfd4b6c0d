"""The queue of prompts: those that were put back, then the data, episode after episode."""

import random

import pytest
from random_runs import Source

from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Part, Prompt


@pytest.mark.parametrize("max_put_back, drawn", [(9, "xy01"), (1, "x012"), (0, "0123")])
def test_prompts_that_were_put_back_come_first_and_no_more_than_allowed(max_put_back, drawn):
    queue = PromptQueue(Source(9))
    fresh = iter(random.Random(1).sample(range(9), 9))
    for text in "xy":
        queue.put_back(Prompt(text, "", None, 1))
    prompts = queue.draw(4, max_put_back=max_put_back, next_episode_allowed=False)
    expected = [text if text in "xy" else str(next(fresh)) for text in drawn]
    assert [prompt.text for prompt in prompts] == expected
    assert [prompt.must_finish for prompt in prompts] == [text in "xy" for text in drawn]


def test_a_step_goes_on_into_the_next_episode_only_behind_a_prompt_of_this_one():
    queue = PromptQueue(Source(3))
    first = queue.draw(2, max_put_back=0, next_episode_allowed=False)
    second = queue.draw(2, max_put_back=0, next_episode_allowed=False)
    assert [prompt.episode for prompt in first + second] == [1, 1, 1, 2]
    assert queue.is_drained and queue.close_episode([]) and queue.episode == 2
    queue = PromptQueue(Source(2))
    queue.draw(3, max_put_back=0, next_episode_allowed=False)
    assert not queue.close_episode([first[0]])  # one of its prompts is in flight
    assert queue.draw(1, max_put_back=0, next_episode_allowed=False)[0].episode == 2


def test_unused_prompts_that_had_waited_are_drawn_ahead_of_all_others():
    queue = PromptQueue(Source(9))
    queue.put_back(Prompt("waits", "", None, 1))
    prompts = [Prompt(text, "", None, 1, must_finish=text in "bd") for text in "abcd"]
    queue.put_back_unused(prompts)
    drawn = queue.draw(5, max_put_back=9, next_episode_allowed=False)
    assert [prompt.text for prompt in drawn] == ["b", "d", "waits", "a", "c"]
    assert all(prompt.must_finish for prompt in drawn)


def test_a_step_that_waits_for_all_its_prompts_does_not_count_their_first_attempt():
    queue = PromptQueue(Source(4))
    queue.begin_frame(1, 4, lambda prompt: 1.0, from_data=True)
    first, *_ = queue.draw_part(4, Part(0, 1), must_finish=True, next_episode_allowed=False)
    assert (first.must_finish, first.stops) == (True, -1)
    queue.put_back(first._replace(stops=0))  # as a step does that has stopped its group
    queue.begin_frame(1, 4, lambda prompt: 1.0, from_data=True)
    again = queue.draw_part(4, Part(0, 1), must_finish=True, next_episode_allowed=True)
    assert {prompt.text: prompt.stops for prompt in again if prompt.episode == 1} == {first.text: 0}


def test_what_an_episode_has_left_are_its_prompts_and_those_that_wait():
    queue = PromptQueue(Source(5))
    assert queue.left == 5
    first, *_ = queue.draw(2, max_put_back=0, next_episode_allowed=False)
    queue.put_back(first)
    assert queue.left == 4
    resumed = PromptQueue(Source(5))
    resumed.load_state_dict(queue.state_dict([]))
    assert resumed.left == 4
    queue.draw(4, max_put_back=0, next_episode_allowed=True)  # one of the next episode
    assert queue.is_drained and queue.left == 1
    queue.draw(1, max_put_back=1, next_episode_allowed=True)
    assert queue.left == 0 and queue.close_episode([]) and queue.left == 4
