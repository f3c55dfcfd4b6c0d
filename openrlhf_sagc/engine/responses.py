"""In an engine's actor: responses of agents and of OpenRLHF's own executor, made into plain data before they leave.

What the driver would trip over costs its sample here. What nobody needs is left behind: an object that the driver cannot
unpickle would end the run. What there is for each token travels as an array of 4 bytes each, which Ray sends without a copy.
A list of numbers would cost both ends far more than all else that the driver does for a sample.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from openrlhf_sagc.engine.answers import LARGEST, LEFT_OUT, LOGS, Failure, as_logs, kind_of, numbers_of, plain, short


def plain_response(
    response: Any,
    request: dict,
    *,
    who: str,
    vocabulary: int,
    media_tokens: frozenset[int] = frozenset(),
    may_lack_log_probs: bool = False,
) -> dict:
    """OpenRLHF's response with its prompt, label and images as they were sent; reward and scores are as they came.

    Tokens are int32, log-probabilities float32, to which OpenRLHF rounds them as well.

    Args:
        response: what an executor returned.
        request: what it was given.
        who: returned it, for the messages.
        vocabulary: tokens that the model knows.
        media_tokens: of them those that stand for a part of an image or a video in a prompt.
        may_lack_log_probs: which then are NaN, and the sample is trained without importance correction.

    Raises:
        Failure: it is no response of one sample, or has no token that could be trained.
    """
    if not isinstance(response, Mapping):
        raise Failure(f"{who} returned {kind_of(response)} instead of a dict of one sample")
    for name in ("observation_tokens", "action_ranges"):
        if response.get(name) is None:
            raise Failure(f"{who} returned a dict without {name}")
    tokens = _tokens(response["observation_tokens"], who, vocabulary)
    ranges = _ranges(response["action_ranges"], who, len(tokens))
    _check_trained(ranges, who, request["max_length"])
    if media_tokens:
        _check_media(tokens[: request["max_length"]], ranges, who, media_tokens)  # the others are not trained
    needs_log_probs = request["sampling_params"].logprobs is not None
    numbers, left_out = numbers_of(as_logs(response.get(LOGS)))
    return {
        **{name: request.get(name) for name in ("prompt", "label", "images")},
        "mm_train_inputs": _image_tensors(response.get("mm_train_inputs"), who),
        "observation_tokens": np.array(tokens, np.int32),
        "action_ranges": ranges,
        "rollout_log_probs": _log_probs(response, who, len(tokens), may_lack_log_probs) if needs_log_probs else None,
        "truncated": _flag(response.get("truncated"), who),
        "reward": response.get("reward"),
        "scores": response.get("scores"),
        LOGS: numbers,
        LEFT_OUT: left_out,
    }


def num_action_tokens(ranges: list[tuple[int, int]]) -> int:
    """Tokens in ranges that do not overlap."""
    return sum([end - start for start, end in ranges])


def _tokens(value: Any, who: str, vocabulary: int) -> list[int]:
    tokens = _as_list(value)
    if tokens is not None and set(map(type, tokens)) != {int}:
        tokens = [_whole_number(token) for token in tokens]
    if not tokens or None in tokens:
        raise Failure(f"{who} returned observation_tokens {short(value)} instead of whole numbers")
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < vocabulary:
            raise Failure(f"{who} returned the token {short(token)}, and the model has {vocabulary}")
    return tokens


def _ranges(value: Any, who: str, num_tokens: int) -> list[tuple[int, int]]:
    """The ranges in order, cut where they overlap or reach beyond the tokens; there may be none left."""
    rows = _as_list(value)
    pairs: list[list[Any]] = [[_whole_number(number) for number in _as_list(row) or ()] for row in rows or ()]
    if rows is None or not all(len(pair) == 2 and None not in pair and 0 <= pair[0] <= pair[1] for pair in pairs):
        raise Failure(
            f"{who} returned action_ranges {short(value)}: a range is two whole numbers, its first token and its end"
        )
    ranges: list[tuple[int, int]] = []
    after = 0
    for start, end in sorted(pairs):
        start, end = max(start, after), min(end, num_tokens)
        if start < end:
            ranges.append((start, end))
            after = end
    return ranges


def _check_trained(ranges: list[tuple[int, int]], who: str, max_length: int) -> None:
    """A sample without a trained token, alone in its micro-batch, would divide the loss by 0."""
    if not ranges:
        raise Failure(f"{who} returned a response without a token of its own: its action_ranges are empty")
    if not any(max(start, 1) < min(end, max_length) for start, end in ranges):  # no model predicts the first token
        count = num_action_tokens(ranges)
        raise Failure(f"none of the response's {count} tokens lies within --data.max_len {max_length}")


def _check_media(tokens: list[int], ranges: list[tuple[int, int]], who: str, media_tokens: frozenset[int]) -> None:
    """A model may sample the token of an image. In training it would look for the image there, which ends the run."""
    for start, end in ranges:
        if sampled := media_tokens.intersection(tokens[start:end]):
            raise Failure(
                f"{who} returned the id {min(sampled)}, a token that stands for an image, among the response's own"
            )


def _log_probs(response: Mapping, who: str, num_tokens: int, may_lack: bool) -> np.ndarray:
    """A finite number for each token, or NaN for all."""
    value = response.get("rollout_log_probs")
    if value is None and may_lack:
        return np.full(num_tokens, np.nan, np.float32)
    if value is None:
        raise Failure(
            f"{who} returned no rollout_log_probs, which the training needs: return them, or give --algo.advantage.is_correction_level off"
        )
    numbers = _as_list(value)
    if numbers is None or len(numbers) != num_tokens:
        raise Failure(f"{who} returned rollout_log_probs {short(value)} for {num_tokens} tokens")
    numbers = [*map(plain, numbers)]
    for number in numbers:
        if not isinstance(number, (int, float)) or not abs(number) <= LARGEST:
            raise Failure(f"{who} returned rollout_log_probs with {short(number)} among them")
    return np.array(numbers, np.float32)


def _flag(value: Any, who: str) -> bool:
    value = plain(value)
    if value is not None and (not isinstance(value, (int, float)) or math.isnan(value)):
        raise Failure(f"{who} returned truncated {short(value)} instead of True or False")
    return bool(value)


def _image_tensors(value: Any, who: str) -> dict[str, torch.Tensor] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        raise Failure(f"{who} returned mm_train_inputs {short(value)} instead of tensors under names")
    return {str(name): tensor.detach().cpu() for name, tensor in value.items()}


def _as_list(value: Any) -> list | None:
    """The elements of a list, tuple, tensor or array; None if it is none of these."""
    value = plain(value)
    return list(value) if isinstance(value, (list, tuple)) else None


def _whole_number(value: Any) -> int | None:
    value = plain(value)
    return int(value) if isinstance(value, int) else None
