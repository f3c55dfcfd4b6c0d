"""Samples are those that OpenRLHF makes of the same responses."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_sagc.driver.samples import sample_of


@st.composite
def responses(draw):
    count = draw(st.integers(1, 30))
    bounds = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
    numbers = st.none() | st.floats(-5, 5, width=32)
    log_probs = draw(st.none() | st.lists(st.floats(-9, 0, width=32), min_size=count, max_size=count))
    return {
        "observation_tokens": np.array(draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)), np.int32),
        "action_ranges": [(start, end) for start, end in zip(bounds[::2], bounds[1::2]) if start < end],
        "reward": draw(numbers),
        "scores": draw(numbers),
        "rollout_log_probs": None if log_probs is None else np.array(log_probs, np.float32),
        "truncated": draw(st.booleans()),
        "prompt": "prompt",
        "label": "label",
        "images": None,
        "extra_logs": {},
    }


@given(responses(), st.integers(1, 40))
def test_a_sample_is_openrlhfs_bit_for_bit(response, max_len):
    theirs = SamplesGenerator._process_response_into_experience(None, response, max_len=max_len)
    ours = sample_of(response, max_len)
    for name, value in vars(theirs).items():
        check(getattr(ours, name), value)


def check(ours, theirs):
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            check(ours[name], theirs[name])
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
    else:
        assert ours == theirs


def test_a_sample_shares_nothing_with_its_response_and_is_small_where_it_is_saved():
    tokens = np.arange(1000, dtype=np.int32)
    response = {"observation_tokens": tokens, "action_ranges": [(3, 1000)], "reward": 1.0, "scores": 1.0}
    response |= {"rollout_log_probs": np.zeros(1000, np.float32), "prompt": "p", "label": "l"}
    sample = sample_of(response, 5000)
    tokens[:], response["rollout_log_probs"][:] = 7, 9
    assert sample.sequences[0, -1] == 999 and not sample.rollout_log_probs.any()
    file = io.BytesIO()
    torch.save(sample.attention_mask, file)
    assert file.tell() < 5000
    with pytest.raises(RuntimeError, match="more than one element"):
        sample.attention_mask[:] = 0
