"""Responses as agents return them, made into plain data or a failure."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_sagc.engine.answers import Failure
from openrlhf_sagc.engine.responses import num_action_tokens, plain_response

GOOD = {"observation_tokens": [1, 2, 3, 4, 5], "action_ranges": [(2, 5)], "reward": 1.0, "scores": None}


def plain(response, logprobs=None, max_length=20, **settings):
    request = {"prompt": "p", "label": {"a": 1}, "images": None, "max_length": max_length}
    request["sampling_params"] = SimpleNamespace(logprobs=logprobs)
    return plain_response(response, request, who="the agent", vocabulary=100, **settings)


def test_a_response_has_openrlhfs_fields_alone_and_what_was_sent():
    """What an agent adds may be of a class that the driver does not know."""
    response = plain({**GOOD, "prompt": object(), "label": None, "memory": object(), "extra_logs": {"turns": 2}})
    assert (response["prompt"], response["label"], response["images"]) == ("p", {"a": 1}, None)
    assert "memory" not in response and response["extra_logs"] == {"turns": 2.0}
    assert response["truncated"] is False and response["rollout_log_probs"] is None


@pytest.mark.parametrize("value", [(1, 2, 3, 4, 5), torch.arange(1, 6), np.arange(1, 6), [np.int64(1), 2, 3, 4, 5]])
def test_tokens_of_any_kind_are_whole_numbers(value):
    tokens = plain({**GOOD, "observation_tokens": value})["observation_tokens"]
    assert tokens.tolist() == [1, 2, 3, 4, 5] and tokens.dtype == np.int32


@pytest.mark.parametrize(
    "ranges, expected",
    [
        ([[2, 5]], [(2, 5)]),
        (((1, 2), (4, 5)), [(1, 2), (4, 5)]),
        (torch.tensor([[4, 5], [1, 2]]), [(1, 2), (4, 5)]),
        ([(1, 4), (2, 5)], [(1, 4), (4, 5)]),
        ([(3, 400), (3, 3)], [(3, 5)]),
        ([(np.int64(3), 10**400), (7, 9)], [(3, 5)]),
    ],
)
def test_ranges_count_as_what_they_cover(ranges, expected):
    response = plain({**GOOD, "action_ranges": ranges})
    assert response["action_ranges"] == expected
    sample = SamplesGenerator._process_response_into_experience(None, response, max_len=20)
    assert sample.action_mask.sum() == num_action_tokens(expected)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"observation_tokens": None}, "a dict without observation_tokens"),
        ({"action_ranges": None}, "a dict without action_ranges"),
        ({"observation_tokens": []}, "observation_tokens [] instead of whole numbers"),
        ({"observation_tokens": "12345"}, "observation_tokens '12345' instead of whole numbers"),
        ({"observation_tokens": [1, None, 3]}, "observation_tokens [1, None, 3] instead of whole numbers"),
        ({"observation_tokens": [1, 2.0, 3]}, "observation_tokens [1, 2.0, 3] instead of whole numbers"),
        ({"observation_tokens": [[1, 2, 3]]}, "observation_tokens [[1, 2, 3]] instead of whole numbers"),
        ({"observation_tokens": [1, -1, 3]}, "the token -1, and the model has 100"),
        ({"observation_tokens": [1, 100, 3]}, "the token 100, and the model has 100"),
        ({"action_ranges": (2, 5)}, "action_ranges (2, 5): a range is two whole numbers"),
        ({"action_ranges": [(1.0, 3.0)]}, "action_ranges [(1.0, 3.0)]: a range is two"),
        ({"action_ranges": [(6, 3)]}, "action_ranges [(6, 3)]: a range is two"),
        ({"action_ranges": [(-2, 5)]}, "action_ranges [(-2, 5)]: a range is two"),
        ({"action_ranges": []}, "a response without a token of its own: its action_ranges are empty"),
        ({"action_ranges": [(5, 9)]}, "a response without a token of its own: its action_ranges are empty"),
        ({"truncated": "length"}, "truncated 'length' instead of True or False"),
        ({"mm_train_inputs": {"pixel_values": [1]}}, "mm_train_inputs {'pixel_values': [1]} instead of tensors under"),
    ],
)
def test_what_the_driver_would_trip_over_costs_its_sample(fields, line):
    with pytest.raises(Failure) as error:
        plain({**GOOD, **fields})
    assert str(error.value).startswith(f"the agent returned {line}")


@pytest.mark.parametrize(
    "response, line",
    [
        ([GOOD, GOOD], "the agent returned a list of 2 instead of a dict of one sample"),
        (None, "the agent returned a NoneType instead of a dict of one sample"),
        ((x for x in ()), "the agent returned a generator instead of a dict of one sample"),
    ],
)
def test_what_is_no_response_is_named(response, line):
    with pytest.raises(Failure) as error:
        plain(response)
    assert str(error.value) == line


def test_a_token_of_an_image_that_the_model_sampled_costs_its_sample():
    """Prompts and environments may have some. The actor would look for the image of one that was sampled."""
    known = {"who": "the agent", "vocabulary": 100, "media_tokens": frozenset({3, 9})}
    request = {"max_length": 20, "sampling_params": SimpleNamespace(logprobs=None)}
    for ranges in ([(0, 2), (3, 5)], [(3, 5)]):
        assert plain_response({**GOOD, "action_ranges": ranges}, request, **known)["action_ranges"] == ranges
    assert plain_response({**GOOD, "action_ranges": [(0, 5)]}, {**request, "max_length": 2}, **known)
    with pytest.raises(
        Failure, match="the agent returned the id 3, a token that stands for an image, among the response's"
    ):
        plain_response(GOOD, request, **known)


@pytest.mark.parametrize("truncated", [None, True, 1, np.bool_(True), torch.tensor(False), 0.0])
def test_truncated_is_a_flag(truncated):
    assert plain({**GOOD, "truncated": truncated})["truncated"] is bool(truncated)


@pytest.mark.parametrize("ranges, max_length", [([(3, 5)], 3), ([(0, 1)], 20), ([(0, 1), (4, 5)], 4)])
def test_a_response_whose_tokens_are_all_cut_off_is_a_failure(ranges, max_length):
    """Alone in its micro-batch it would divide the loss by 0; no model predicts the first token."""
    with pytest.raises(Failure, match=rf"none of the response's \d tokens lies within --data.max_len {max_length}"):
        plain({**GOOD, "action_ranges": ranges}, max_length=max_length)


@given(
    ranges=st.lists(st.tuples(st.integers(-1, 12), st.integers(-1, 12)), max_size=4),
    num_tokens=st.integers(1, 10),
    max_length=st.integers(1, 12),
)
def test_every_response_that_is_let_through_has_a_trained_token_and_the_length_that_it_covers(
    ranges, num_tokens, max_length
):
    try:
        response = plain({**GOOD, "observation_tokens": [1] * num_tokens, "action_ranges": ranges}, None, max_length)
    except Failure:
        return
    sample = SamplesGenerator._process_response_into_experience(None, response, max_len=max_length)
    assert sample.action_mask.any()
    covered = {token for start, end in ranges for token in range(start, min(end, num_tokens))}
    assert num_action_tokens(response["action_ranges"]) == len(covered)


@pytest.mark.parametrize(
    "values, line",
    [
        ([0.0] * 4, "rollout_log_probs [0.0, 0.0, 0.0, 0.0] for 5 tokens"),
        ("five.", "rollout_log_probs 'five.' for 5 tokens"),
        ([0.0] * 4 + [None], "rollout_log_probs with None among them"),
        ([0.0] * 4 + [float("nan")], "rollout_log_probs with nan among them"),
        (
            None,
            "no rollout_log_probs, which the training needs: return them, or give --algo.advantage.is_correction_level off",
        ),
    ],
)
def test_log_probabilities_are_checked_where_they_are_needed_and_dropped_elsewhere(values, line):
    response = {**GOOD, "rollout_log_probs": values}
    assert plain(response)["rollout_log_probs"] is None
    with pytest.raises(Failure) as error:
        plain(response, logprobs=1)
    assert str(error.value) == f"the agent returned {line}"


@pytest.mark.parametrize("values", [[-0.5] * 5, torch.full([5], -0.5), [torch.tensor(-0.5)] * 5, (-0.5,) * 5])
def test_log_probabilities_of_any_kind_are_numbers(values):
    log_probs = plain({**GOOD, "rollout_log_probs": values}, logprobs=1)["rollout_log_probs"]
    assert log_probs.tolist() == [-0.5] * 5 and log_probs.dtype == np.float32


def test_an_agent_may_lack_log_probs_where_no_flag_asks_for_them():
    log_probs = plain({**GOOD, "rollout_log_probs": None}, logprobs=1, may_lack_log_probs=True)["rollout_log_probs"]
    assert np.isnan(log_probs).all() and log_probs.shape == (5,) and log_probs.dtype == np.float32
    with pytest.raises(Failure, match="rollout_log_probs"):
        plain({**GOOD, "rollout_log_probs": [0.0]}, logprobs=1, may_lack_log_probs=True)


tokens_and_log_probs = st.lists(st.tuples(st.integers(0, 99), st.floats(-1e30, 0)), min_size=1, max_size=30)
logs = st.dictionaries(st.sampled_from(["turns", "solved"]), st.floats(-5, 5))


@given(tokens_and_log_probs, st.data())
def test_a_sample_of_arrays_is_openrlhfs_sample_of_lists_in_every_field(drawn, data):
    tokens, log_probs = map(list, zip(*drawn))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), min_size=2, max_size=6)))
    response = {
        "observation_tokens": tokens,
        "action_ranges": list(zip(cuts[::2], cuts[1::2])),
        "rollout_log_probs": log_probs,
        "truncated": data.draw(st.booleans()),
        "reward": data.draw(st.none() | st.floats(-5, 5)),
        "scores": data.draw(st.none() | st.floats(-5, 5)),
        "extra_logs": data.draw(logs),
    }
    max_length, keeps = data.draw(st.integers(1, 40)), data.draw(st.booleans())
    try:
        ours = plain(response, logprobs=keeps or None, max_length=max_length)
    except Failure:
        assume(False)
    theirs = {**response, "prompt": "p", "label": {"a": 1}, "images": None}
    theirs["rollout_log_probs"] = log_probs if keeps else None
    theirs["action_ranges"] = ours["action_ranges"]
    samples = [
        SamplesGenerator._process_response_into_experience(None, response, max_len=max_length)
        for response in (ours, theirs)
    ]
    for field in fields(Experience):
        mine, other = (getattr(sample, field.name) for sample in samples)
        assert_same(mine, other, field.name)


def assert_same(mine, other, name):
    if isinstance(other, torch.Tensor):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape) and torch.equal(mine, other), name
    elif isinstance(other, dict):
        assert mine.keys() == other.keys()
        for key in other:
            assert_same(mine[key], other[key], f"{name} {key}")
    else:
        assert mine == other, name
