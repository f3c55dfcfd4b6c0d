"""A real engine gives what a rollout has so far, and goes on from it."""

import time

import numpy as np
import pytest
import ray
from one_engine import AGENTS, MAX_LEN
from vllm import SamplingParams

from openrlhf_sagc.decisions.records import AskBegun, Collect, Dispatch, Prompt, Share

pytestmark = pytest.mark.stack
LENGTH = 600


def test_a_real_engines_response_goes_on_from_its_tokens(make_scheduler):
    scheduler = make_scheduler([""] * 4, reward=("--reward.remote_url", AGENTS / "hash_reward.py"))
    (engine,) = scheduler.vllm_engines
    ray.get(scheduler.engines._ready)
    greedy = {"temperature": 0.0, "max_tokens": LENGTH, "ignore_eos": True, "logprobs": 1}

    def ask(what, **params):
        (answer,) = ray.get(engine.generate_responses.remote(what, "", SamplingParams(**greedy | params), MAX_LEN))
        return answer

    def collected():
        (ended,) = ask(Collect())
        return ended.response

    prompt = Prompt("one two three", "", None, 1)
    ask(Dispatch([Share(1, prompt, (0,))]))
    begun = None
    while begun is None or len(begun.tokens) < 20:
        time.sleep(0.01)
        begun = ask(AskBegun())[1, 0]
    whole = collected()
    first, _ = whole["action_ranges"][0]
    had = len(begun.tokens)
    assert had < LENGTH and begun.finish_reason is None
    np.testing.assert_array_equal(whole["observation_tokens"][first : first + had], begun.tokens)
    np.testing.assert_array_equal(whole["rollout_log_probs"][first : first + had], begun.log_probs)

    ask(Dispatch([Share(2, prompt, (0,), {0: begun})]))
    again = collected()
    assert again["action_ranges"] == whole["action_ranges"] == [(first, first + LENGTH)]
    np.testing.assert_array_equal(
        again["observation_tokens"][: first + had], whole["observation_tokens"][: first + had]
    )
    np.testing.assert_array_equal(again["rollout_log_probs"][: first + had], whole["rollout_log_probs"][: first + had])
    same = np.cumprod(again["observation_tokens"] == whole["observation_tokens"]).astype(bool)
    assert same.sum() > first + had + 5  # until rounding tells a prefilled cache from a decoded one, if it does
    np.testing.assert_allclose(again["rollout_log_probs"][same], whole["rollout_log_probs"][same], atol=0.05)
