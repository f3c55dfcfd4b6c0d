"""Recent groups and their lengths, from which the groups of a step to come are drawn."""

import math
from collections import OrderedDict
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from openrlhf_sagc.decisions.length_prediction import key_of

PER_STEP = 64  # prompts that are kept of as many as a step trains
STEPS = 16  # whose prompts are kept: more than those of a frame
MOST = 4096  # groups, where a filter drops nearly all
# Share of the groups, the shorter and the longer ones each, among which one's chance to be kept is a mean.
WINDOW = 0.05
PRIOR_GROUPS = 8.0  # that the acceptance rate weighs as much as there
GUESSED = 4  # times the longest response so far, up to which those may go on that were stopped, before any step ran to its end


class Seen(NamedTuple):
    """A group: tokens of its rollouts, whether all of them ended, and whether it was kept; None if it was not judged."""

    tokens: tuple[int, ...]
    whole: bool
    kept: bool | None


class Draws(NamedTuple):
    """What groups are drawn from: mean log tokens and chance to be kept of each, and what rollouts are off their group's."""

    logs_S: np.ndarray
    chance_S: np.ndarray
    residuals: np.ndarray
    longest: float

    def tokens(self, drawn_G: np.ndarray, share_GR: np.ndarray) -> np.ndarray:
        """[G, R] tokens of new rollouts of these groups, by the share of the residuals that come before their own."""
        off_GR = self.residuals[(share_GR * len(self.residuals)).astype(int)]
        off_GR -= off_GR.mean(axis=1, keepdims=True)
        return np.minimum(np.exp(self.logs_S[drawn_G, None] + off_GR), self.longest)


class SeenGroups:
    """The same part of the prompts of every step, each as it was rolled out last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._longest = 1
        self._ran_to_end = False  # a step that stopped nothing

    def observe(self, groups: Iterable[tuple[str, Seen]], num_groups: int, is_long: bool) -> None:
        """A step is over: the identity of each prompt and its group.

        Args:
            num_groups: that the step trained.
            is_long: whether it was to run to its end.
        """
        self._ran_to_end |= is_long
        groups = list(groups)
        for prompt, seen in groups:
            self._longest = max(self._longest, *seen.tokens)
            key = key_of(prompt)
            if int(key, 16) < PER_STEP / num_groups * 16 ** len(key):
                self._seen[key] = seen
                self._seen.move_to_end(key)
        count = max(num_groups, len(groups))  # more than it trains where some are stopped or dropped
        most = min(STEPS * count * min(PER_STEP / num_groups, 1), MOST)
        while len(self._seen) > most:
            self._seen.popitem(last=False)

    @property
    def is_guess(self) -> bool:
        """Whether nothing is known of the longest responses, since all steps so far have stopped some."""
        return not self._ran_to_end and not all(seen.whole for seen in self._seen.values())

    def draws(self, rate: float) -> Draws | None:
        """What to draw from at this acceptance rate; None before any group."""
        groups = list(self._seen.values())
        if not groups:
            return None
        logs = [np.log(np.maximum(seen.tokens, 1)) for seen in groups]
        whole_S = np.array([seen.whole for seen in groups])
        logs_S = _finished(np.array([x_R.mean() for x_R in logs]), whole_S)
        off = [x_R - x_R.mean() for x_R, whole in zip(logs, whole_S) if whole] or [np.zeros(1)]
        freedom = sum(len(x_R) - 1 for x_R in off)
        residuals = np.concatenate(off) * math.sqrt(sum(map(len, off)) / max(freedom, 1))
        kept_S = np.array([rate if seen.kept is None else seen.kept for seen in groups], float)
        chance_S = _around(kept_S, logs_S, rate) if rate < 1 else np.ones(len(groups))
        return Draws(logs_S, chance_S, residuals, self._longest * (GUESSED if self.is_guess else 1))

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on; JSON-serialisable."""
        groups = {key: [list(seen.tokens), *seen[1:]] for key, seen in self._seen.items()}
        return {"groups": groups, "longest": self._longest, "ran_to_end": self._ran_to_end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        groups = state["groups"].items()
        self._seen = OrderedDict((key, Seen(tuple(tokens), *others)) for key, (tokens, *others) in groups)
        self._longest, self._ran_to_end = state["longest"], state["ran_to_end"]


def _finished(logs_S: np.ndarray, whole_S: np.ndarray) -> np.ndarray:
    """Mean log tokens as if no group had been stopped: those that were are the longest, as of a log-normal."""
    count, cut = len(logs_S), int((~whole_S).sum())
    if not cut or 2 * cut >= count:
        return logs_S
    order = np.lexsort((logs_S, ~whole_S))
    sorted_S, found_S = logs_S[order], logs_S.copy()
    middle, low = sorted_S[count // 2], sorted_S[int(NormalDist().cdf(-1) * count)]
    tops = np.array([NormalDist().inv_cdf((place + 0.5) / count) for place in range(count - cut, count)])
    found_S[order[-cut:]] = np.maximum(sorted_S[-cut:], middle + (middle - low) * tops)
    return found_S


def _around(kept_S: np.ndarray, logs_S: np.ndarray, rate: float) -> np.ndarray:
    """Each group's chance to be kept, from those of like lengths."""
    order, window = np.argsort(logs_S), np.ones(2 * int(WINDOW * len(logs_S)) + 1)
    kept, count = (np.convolve(x_S, window, "full") for x_S in (kept_S[order], np.ones(len(logs_S))))
    middle = slice(len(window) // 2, len(window) // 2 + len(logs_S))
    chance_S = np.empty(len(logs_S))
    chance_S[order] = (kept[middle] + PRIOR_GROUPS * rate) / (count[middle] + PRIOR_GROUPS)
    return chance_S
