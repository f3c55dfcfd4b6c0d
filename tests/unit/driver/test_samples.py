"""Batches of samples are those that OpenRLHF makes of the same responses."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.length_penalty import apply_overlong_penalty
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_sagc.driver.evaluation import evaluation_metrics
from openrlhf_sagc.driver.samples import batch_of, sample_of


@st.composite
def steps(draw):
    """Responses of a step: all have a reward or none, and so on."""
    has_reward, has_score, has_log_probs = (draw(st.booleans()) for _ in range(3))
    responses = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 30))
        bounds = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
        log_probs = draw(st.lists(st.floats(-9, 0, width=32), min_size=count, max_size=count))
        tokens = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
        responses.append(
            {
                "observation_tokens": np.array(tokens, np.int32),
                "action_ranges": [(start, end) for start, end in zip(bounds[::2], bounds[1::2]) if start < end],
                "reward": draw(st.floats(-5, 5)) if has_reward else None,
                "scores": draw(st.floats(-5, 5)) if has_score else None,
                "rollout_log_probs": np.array(log_probs, np.float32) if has_log_probs else None,
                "truncated": draw(st.booleans()),
                "prompt": f"prompt {number}",
                "label": number,
                "images": draw(st.sampled_from([None, ["a.png"]])),
                "mm_train_inputs": draw(st.sampled_from([None, {"pixels": torch.ones(2)}])),
                "extra_logs": {},
            }
        )
    return responses


@given(steps(), st.integers(1, 40))
def test_a_batch_is_openrlhfs_bit_for_bit(responses, max_len):
    process = SamplesGenerator._process_response_into_experience
    each = [process(None, response, max_len=max_len) for response in responses]
    for place, sample in enumerate(each):
        sample.index = [place]
    theirs = Experience.concat_experiences(each, 7)
    samples = [sample_of(response, max_len) for response in responses]
    ours = batch_of(samples, list(range(len(samples))), 7)
    # What a tool returned is a response's to OpenRLHF.
    theirs.response_length = torch.stack([its.action_mask.sum() for its in each])
    theirs.info["response_clip_ratio"] &= torch.stack([is_models(response, max_len) for response in responses])
    for name, value in vars(theirs).items():
        check(getattr(ours, name), value)
    for sample, its in zip(samples, each):
        assert sample.response_length == its.action_mask.sum()
        assert sample.raw_score == next((x.item() for x in (its.scores, its.rewards) if x is not None), 0.0)


def is_models(response, max_len):
    """Whether the model wrote the last token that there was room for."""
    count = min(len(response["observation_tokens"]), max_len)
    return torch.tensor(any(start < count <= end for start, end in response["action_ranges"]))


def test_what_a_tool_returned_is_no_response():
    """A tool's page of 400 tokens: no penalty for length, nothing in the log's lengths, and no response that is cut off."""
    turns = [(10, 15), (415, 425)]
    response = {"observation_tokens": np.arange(450, dtype=np.int32), "action_ranges": turns, "extra_logs": {}}
    response |= {"rollout_log_probs": None, "prompt": "p", "label": "l", "reward": 1.0}
    samples = [sample_of(response, 450), sample_of({**response, "action_ranges": [(10, 15), (400, 450)]}, 450)]
    assert [sample.response_length for sample in samples] == [15, 55]
    batch = batch_of(samples, [0, 1], 7)
    assert batch.info["response_clip_ratio"].tolist() == [False, True]
    apply_overlong_penalty([batch], max_new_tokens=60, overlong_buffer_len=20)
    assert batch.rewards.tolist() == [1.0, 0.25]
    lengths = evaluation_metrics(samples, [(["set"], ["p"], ["l"], [None])], 2)
    assert lengths["eval_response_length_mean"] == 35


def check(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            check(ours[name], theirs[name])
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize("max_len", [600, 5000])
def test_a_sample_copies_no_token_of_its_response(max_len):
    response = {"observation_tokens": np.arange(1000, dtype=np.int32), "action_ranges": [(3, 1000)], "extra_logs": {}}
    response |= {"rollout_log_probs": np.zeros(1000, np.float32), "prompt": "p", "label": "l"}
    sample = sample_of(response, max_len)
    assert np.shares_memory(sample.tokens_T, response["observation_tokens"])
    assert np.shares_memory(sample.log_probs_T, response["rollout_log_probs"])
    assert len(sample.tokens_T) == len(sample.log_probs_T) + 1 == min(max_len, 1000)
