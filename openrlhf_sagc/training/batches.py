"""In the driver and in models' actors: batches on their way, four bytes a token until somebody reads their tensors.

OpenRLHF has three padded int64 tensors for the tokens of a batch. To touch that much new memory for thousands of samples
was most of what the driver did for a step. Here a batch is sent as arrays, and the actor that gets it makes the tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience


@dataclass(frozen=True)
class Tokens:
    """The tokens of B samples, of which OpenRLHF's tensors by token are made.

    Attributes:
        tokens_B: int32 arrays [T] of prompt and response, a T for each sample.
        ranges_B: of each sample the ranges of its action mask [T - 1] that are 1: first place and end, none of them empty.
        log_probs_B: float32 arrays [T - 1] of the engines' log-probabilities, or None.
        pad_token_id: stands where a sample is shorter than the longest.
    """

    tokens_B: list[np.ndarray]
    ranges_B: list[list[tuple[int, int]]]
    log_probs_B: list[np.ndarray | None] | None
    pad_token_id: int

    def sequences(self) -> torch.Tensor:
        """[B, T] int64 tokens."""
        return _padded(self.tokens_B, np.int64, self.pad_token_id)

    def attention_mask(self) -> torch.Tensor:
        """[B, T] int64, 1 where a sample has a token."""
        return self._mask([[(0, len(tokens_T))] for tokens_T in self.tokens_B], 0)

    def action_mask(self) -> torch.Tensor:
        """[B, T - 1] int64, 1 where the next token is trained."""
        return self._mask(self.ranges_B, 1)

    def rollout_log_probs(self) -> torch.Tensor | None:
        """[B, T - 1] float32 log-probabilities of the next token."""
        return None if self.log_probs_B is None else _padded(self.log_probs_B, np.float32, 0)

    def _mask(self, ranges_B: list[list[tuple[int, int]]], shorter: int) -> torch.Tensor:
        mask_BT = np.zeros((len(ranges_B), max(map(len, self.tokens_B)) - shorter), np.int64)
        for mask_T, ranges in zip(mask_BT, ranges_B):
            for start, end in ranges:
                mask_T[start:end] = 1
        return torch.from_numpy(mask_BT)


BY_TOKEN = ("sequences", "attention_mask", "action_mask", "rollout_log_probs")  # fields that `Tokens` makes


class Batch(Experience):
    """An Experience whose tensors by token are made when they are first read; it is unpickled as a plain Experience.

    Nobody may write to these tensors, since they are made anew where it is unpickled.

    Args:
        tokens: of its samples.
        fields: the other fields of an Experience.
    """

    def __init__(self, tokens: Tokens, **fields: Any) -> None:
        super().__init__(**fields)
        for name in BY_TOKEN:
            del self.__dict__[name]  # else the properties below would never be asked
        self._tokens = tokens

    sequences = cached_property(lambda batch: batch._tokens.sequences())
    attention_mask = cached_property(lambda batch: batch._tokens.attention_mask())
    action_mask = cached_property(lambda batch: batch._tokens.action_mask())
    rollout_log_probs = cached_property(lambda batch: batch._tokens.rollout_log_probs())

    def __reduce__(self) -> tuple:
        others = {name: value for name, value in vars(self).items() if name not in BY_TOKEN and name != "_tokens"}
        return _experience_of, (self._tokens, _mapped(_as_array, others))


def _experience_of(tokens: Tokens, others: dict[str, Any]) -> Experience:
    """Run where a `Batch` is unpickled."""
    return Experience(**{name: getattr(tokens, name)() for name in BY_TOKEN}, **_mapped(_as_tensor, others))


def _mapped(change: Callable[[Any], Any], fields: dict[str, Any]) -> dict[str, Any]:
    """What `change` makes of each value, and of those in `info`."""
    return {
        name: _mapped(change, value) if isinstance(value, dict) else change(value) for name, value in fields.items()
    }


def _as_array(value: Any) -> Any:
    """A tensor as an array, which is pickled without a copy; numpy has no bfloat16."""
    return value.numpy() if isinstance(value, torch.Tensor) and value.dtype is not torch.bfloat16 else value


def _as_tensor(value: Any) -> Any:
    """The tensor again, in memory of its own: what comes from Ray's store may only be read."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _padded(rows_B: list, dtype: type, padding: int) -> torch.Tensor:
    padded_BT: np.ndarray = np.full((len(rows_B), max(map(len, rows_B))), padding, dtype)
    for padded_T, row_T in zip(padded_BT, rows_B):
        padded_T[: len(row_T)] = row_T
    return torch.from_numpy(padded_BT)
