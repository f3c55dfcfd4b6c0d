"""The last responses to each prompt, as they go to the engines."""

import numpy as np

import openrlhf_sagc.driver.earlier_responses as module
from openrlhf_sagc.driver.earlier_responses import MOST_RESPONSES, EarlierResponses


def response(*tokens, prompt=(1, 2)):
    tokens = [*prompt, *tokens]
    return {"observation_tokens": np.array(tokens, np.int32), "action_ranges": [(len(prompt), len(tokens))]}


def tokens_of(earlier, *prompts):
    read = lambda text: np.frombuffer(text, np.int32).tolist()  # noqa: E731
    return [(read(prompt), [*map(read, texts)]) for prompt, texts in earlier.of(prompts)]


def test_the_last_responses_to_a_prompt_are_given():
    earlier = EarlierResponses()
    assert tokens_of(earlier, "a", "b") == []
    earlier.keep("a", [response(3), response(4, 5)])
    assert tokens_of(earlier, "b", "a") == [([1, 2], [[4, 5], [3]])]
    earlier.keep("a", [response(6)])
    assert tokens_of(earlier, "a") == [([1, 2], [[6]])]
    assert earlier.mib == 3 * 4 / 2**20


def test_what_tools_wrote_between_belongs_to_the_text():
    earlier = EarlierResponses()
    earlier.keep("a", [{"observation_tokens": np.arange(8), "action_ranges": [(2, 3), (5, 6)]}])
    assert tokens_of(earlier, "a") == [([0, 1], [[2, 3, 4, 5]])]


def test_the_longest_of_a_large_group_are_kept():
    earlier = EarlierResponses()
    earlier.keep("a", [response(*range(length)) for length in range(1, 33)])
    assert [len(text) for text in tokens_of(earlier, "a")[0][1]] == list(range(32, 32 - MOST_RESPONSES, -1))


def test_a_response_without_a_token_of_the_model_is_left_out():
    earlier = EarlierResponses()
    earlier.keep("a", [{"observation_tokens": np.arange(3), "action_ranges": []}, {"prompt": "a"}])
    assert tokens_of(earlier, "a") == []


def test_memory_is_bounded_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    earlier = EarlierResponses()
    for prompt in "abcd":
        earlier.keep(prompt, [response(*range(10))])
    assert len(tokens_of(earlier, *"abcd")) == 2
    assert len(tokens_of(earlier, *"cd")) == 2
    assert earlier.mib == 96 / 2**20
