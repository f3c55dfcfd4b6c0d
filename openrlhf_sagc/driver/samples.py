"""Samples of a step: numbers and arrays from the response on. OpenRLHF's tensors are made of whole batches, see training/batches.py."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.engine.answers import LOGS
from openrlhf_sagc.engine.responses import num_action_tokens
from openrlhf_sagc.training.batches import Batch, Tokens


@dataclass(frozen=True, slots=True)
class Sample:
    """What is trained of a rollout. Its arrays are the response's own, so that a step copies no token before it is sent.

    Attributes:
        tokens_T: int32 [T], prompt and response, as many as are kept.
        ranges: first place and end of each range of the action mask [T - 1] that is trained, in order.
        log_probs_T: float32 [T - 1], the engine's, or None.
        prompt, label, images, mm_train_inputs: as the response has them.
        reward, score: rounded to float32, in which they are trained; None if a reward model gives them later.
        truncated: whether the response was cut at its limit.
        clipped: whether the model wrote the last token that there was room for.
        logs: what the reward asks to be logged, by name.
    """

    tokens_T: np.ndarray
    ranges: list[tuple[int, int]]
    log_probs_T: np.ndarray | None
    prompt: Any
    label: Any
    images: Any
    mm_train_inputs: Any
    reward: float | None
    score: float | None
    truncated: bool
    clipped: bool
    logs: dict[str, float]

    @property
    def response_length(self) -> int:
        """Tokens that the model wrote, over which the loss is a mean; what a tool returned between them is no response."""
        return num_action_tokens(self.ranges)

    @property
    def raw_score(self) -> float:
        """What dynamic sampling judges: the score before any shaping, 0 if a reward model gives it later."""
        score = self.reward if self.score is None else self.score
        return 0.0 if score is None else score

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the fields by name, arrays as tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Sample":
        """The sample of a `state_dict()`."""
        log_probs = state["log_probs_T"]
        arrays: dict[str, np.ndarray | None] = {"tokens_T": np.asarray(state["tokens_T"], np.int32)}
        arrays["log_probs_T"] = None if log_probs is None else np.asarray(log_probs, np.float32)
        return cls(**{**state, **arrays})


def sample_of(response: dict[str, Any], max_len: int) -> Sample:
    """What is trained of a response.

    Args:
        response: as `plain_response` gives it, with its reward and scores as floats or None.
        max_len: tokens of prompt and response that are kept.
    """
    tokens_T = response["observation_tokens"][:max_len]
    count, log_probs = len(tokens_T), response["rollout_log_probs"]
    ranges = [(max(start - 1, 0), min(end, count) - 1) for start, end in response["action_ranges"]]
    return Sample(
        tokens_T=tokens_T,
        ranges=[(start, end) for start, end in ranges if start < end],
        log_probs_T=None if log_probs is None else log_probs[1:max_len],
        prompt=response["prompt"],
        label=response["label"],
        images=response.get("images"),
        mm_train_inputs=response.get("mm_train_inputs"),
        reward=_as_float32(response.get("reward")),
        score=_as_float32(response.get("scores")),
        truncated=response.get("truncated", False),
        clipped=count >= max_len and any(start < count <= end for start, end in response["action_ranges"]),
        logs=response[LOGS],
    )


def batch_of(samples: Sequence[Sample], places: list[int], pad_token_id: int) -> Batch:
    """The batch that OpenRLHF makes of these samples, bit for bit where no tool has written a token.

    Args:
        samples: all of which have what one of them has: a reward, a score, log-probabilities.
        places: of each of them in its step.
        pad_token_id: stands where a sample is shorter than the longest.
    """
    first = samples[0]
    tokens = Tokens(
        [sample.tokens_T for sample in samples],
        [sample.ranges for sample in samples],
        None if first.log_probs_T is None else [sample.log_probs_T for sample in samples],
        pad_token_id,
    )
    rewards = None if first.reward is None else torch.tensor([sample.reward for sample in samples])
    scores = None if first.score is None else torch.tensor([sample.score for sample in samples])
    info = {"response_clip_ratio": torch.tensor([sample.clipped for sample in samples])}
    info |= {name: value.clone() for name, value in (("reward", rewards), ("score", scores)) if value is not None}
    return Batch(
        tokens,
        index=places,
        prompts=[sample.prompt for sample in samples],
        labels=[sample.label for sample in samples],
        images=[sample.images for sample in samples],
        mm_train_inputs=[sample.mm_train_inputs for sample in samples],
        rewards=rewards,
        scores=scores,
        response_length=torch.tensor([sample.response_length for sample in samples]),
        truncated=torch.tensor([sample.truncated for sample in samples]),
        total_length=torch.tensor([float(len(sample.tokens_T)) for sample in samples]),
        info=info,
    )


def loss_tokens(group: Group) -> int:
    """Tokens of a group that is trained, over which its loss is a mean."""
    return sum(sample.response_length for sample in group.samples)


def _as_float32(value: float | None) -> float | None:
    return None if value is None else float(np.float32(value))
