"""How fast engines decode, learned from when the rollouts of a step ran and how many tokens they have.

A rollout takes `first` seconds besides its decoding: its prompt, an agent's tools. An engine gives a token to each rollout that runs
there in every iteration, which takes

    seconds = base + per_request * rollouts that run + per_held * tokens that these hold.

So a rollout of n tokens runs for n times `base`, and for what its engine decodes and holds meanwhile. At most `slots`
rollouts run, and hold at most `room` tokens; the others wait. A step's rollouts are taken to be spread evenly over the
engines, and each to decode evenly. The model is ours; in it `first` is the same for all rollouts.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from openrlhf_sagc.decisions.least_squares import least_squares

DISCOUNT = 0.9  # factor by which a step's evidence fades with every later step
COSTS = 4  # that are fitted: the three above, and `first`
QUEUE = 0.02  # share of a step's seconds; where rollouts wait for less, nothing is seen of slots and room
FULL = 0.75  # share of the rollouts that ran at once, below which slots were no limit: what waited waited for something else


class Ran(NamedTuple):
    """A rollout's tokens, and when it was sent, began to run and ended, in seconds on one clock."""

    tokens: int
    sent: float
    began: float
    ended: float


class Speed(NamedTuple):
    """Of an engine, see above; infinite slots or room stand for no limit that was seen."""

    base: float
    per_request: float
    per_held: float
    first: float = 0.0
    slots: float = math.inf
    room: float = math.inf

    @property
    def queues(self) -> bool:
        """Whether rollouts were seen to wait."""
        return math.isfinite(self.slots) or math.isfinite(self.room)

    def alone(self, tokens: np.ndarray) -> np.ndarray:
        """Seconds of rollouts that have an engine for themselves."""
        return self.first + (self.base + self.per_request) * tokens + self.per_held * tokens**2 / 2

    def seconds(self, tokens_ER: np.ndarray) -> np.ndarray:
        """[E, R] at which the rollouts of each engine end that are sent in this order; 0 tokens stand for none."""
        return self._decoding(tokens_ER) + self.first * (tokens_ER > 0)

    def _decoding(self, tokens_ER: np.ndarray) -> np.ndarray:
        """[E, R] of these seconds, those of the decoding."""
        # One that runs holds half of its tokens on average, a long one for longer.
        held = float((tokens_ER**2).sum() / 2 / max(tokens_ER.sum(), 1.0))
        most, count = max(min(self.slots, self.room / max(held, 1.0)), 1.0), tokens_ER.shape[1]
        if count > most:
            return np.array([self._queued(tokens_R, int(most)) for tokens_R in tokens_ER])
        order_ER = np.argsort(tokens_ER, axis=1)
        sorted_ER, longer_R = np.take_along_axis(tokens_ER, order_ER, 1), count - 1 - np.arange(count)
        ends_ER = self.base * sorted_ER
        for cost, sums_ER in ((self.per_request, sorted_ER), (self.per_held, sorted_ER**2 / 2)):
            ends_ER += cost * (sums_ER.cumsum(axis=1) + longer_R * sums_ER)
        seconds_ER = np.empty_like(ends_ER)
        np.put_along_axis(seconds_ER, order_ER, ends_ER, 1)
        return seconds_ER

    def _queued(self, tokens_R: np.ndarray, slots: int) -> np.ndarray:
        """[R] seconds where at most so many run."""
        begin_R, free = np.zeros(len(tokens_R)), tokens_R[:slots].tolist()
        heapq.heapify(free)
        for place in range(slots, len(tokens_R)):
            begin_R[place] = free[0]
            heapq.heapreplace(free, free[0] + tokens_R[place])
        end_R = begin_R + tokens_R
        knots_M, *running = _open(begin_R, end_R, np.ones(len(end_R)))
        decoded_M, held_M = _totals(knots_M, *running)
        return np.interp(end_R, knots_M, self.base * knots_M + self.per_request * decoded_M + self.per_held * held_M)


class EngineSpeed:
    """Learns the speed of engines from one step after another.

    Args:
        num_engines: that share a step's rollouts.
    """

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._normal_FF, self._moment_F = np.zeros((COSTS, COSTS)), np.zeros(COSTS)
        self._slots = self._room = math.inf

    def observe(self, ran: Sequence[Ran]) -> None:
        """The rollouts of a step are over."""
        table_R4 = np.array([x for x in ran if x.tokens and x.sent <= x.began < x.ended < math.inf])
        if not len(table_R4):
            return
        tokens_R, sent_R, begin_R, end_R = table_R4.T
        seconds_R = end_R - begin_R
        speed_R = tokens_R / seconds_R
        knots_M, *opened = _open(begin_R, end_R, speed_R)
        decoded_R, held_R = (
            (np.interp(end_R, knots_M, total_M) - np.interp(begin_R, knots_M, total_M)) / self._num_engines
            for total_M in _totals(knots_M, *opened)
        )
        features_RF = np.stack([tokens_R, decoded_R, speed_R * held_R, np.ones(len(tokens_R))], axis=1)
        relative_RF = features_RF / seconds_R[:, None]
        self._normal_FF = DISCOUNT * self._normal_FF + relative_RF.T @ features_RF
        self._moment_F = DISCOUNT * self._moment_F + relative_RF.T @ seconds_R
        self._observe_queue(sent_R, begin_R, end_R, speed_R)

    def _observe_queue(self, sent_R: np.ndarray, begin_R: np.ndarray, end_R: np.ndarray, speed_R: np.ndarray) -> None:
        """While rollouts wait on each engine its slots are full, or its room: what varies less.

        A slow iteration lets rollouts wait too. What runs at once in a later step says that there was no limit.
        """
        knots_M = np.unique(np.concatenate([sent_R, begin_R, end_R]))
        middles_M, ones_R = (knots_M[:-1] + knots_M[1:]) / 2, np.ones(len(sent_R))
        waiting_M, _ = _at(middles_M, *_open(sent_R, begin_R, ones_R))
        full_M = np.diff(knots_M) * (waiting_M >= self._num_engines)
        running_M, _ = _at(middles_M, *_open(begin_R, end_R, ones_R))
        if full_M.sum() > QUEUE * (end_R.max() - sent_R.min()):
            _, held_M = _at(middles_M, *_open(begin_R, end_R, speed_R))
            self._observe_limits(full_M, running_M, held_M)
        if self._slots * self._num_engines < FULL * running_M.max():
            self._slots = self._room = math.inf

    def _observe_limits(self, full_M: np.ndarray, running_M: np.ndarray, held_M: np.ndarray) -> None:
        """What ran and was held in these spans, `full_M` seconds of which every engine let rollouts wait."""
        means = [np.average(x_M, weights=full_M) for x_M in (running_M, held_M)]
        if min(means) <= 0:
            return
        spreads = [np.average((x_M / mean - 1) ** 2, weights=full_M) for x_M, mean in zip((running_M, held_M), means)]
        if spreads[0] <= spreads[1]:
            self._slots = float(means[0] / self._num_engines)
        else:
            self._slots = float(running_M[full_M > 0].max() / self._num_engines)
            self._room = float(means[1] / self._num_engines)

    @property
    def speed(self) -> Speed | None:
        """What is known; None before any rollout."""
        scale_F = np.sqrt(self._normal_FF.diagonal())
        if not scale_F.all():
            return None
        normal_FF = self._normal_FF / np.outer(scale_F, scale_F) + 1e-9 * np.eye(COSTS)
        costs = (least_squares(normal_FF, self._moment_F / scale_F) / scale_F).tolist()
        return Speed(costs[0], costs[1], costs[2], costs[3], self._slots, self._room)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on; JSON-serialisable."""
        limits = [limit if math.isfinite(limit) else None for limit in (self._slots, self._room)]
        return {"normal": self._normal_FF.tolist(), "moment": self._moment_F.tolist(), "limits": limits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._normal_FF, self._moment_F = np.array(state["normal"]), np.array(state["moment"])
        self._slots, self._room = (math.inf if limit is None else limit for limit in state["limits"])


def _open(begin_R: np.ndarray, end_R: np.ndarray, height_R: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Knots, and from each of them on the sum of the heights of what is open, and of heights times begins."""
    knots_M, places = np.unique(np.concatenate([begin_R, end_R]), return_inverse=True)
    heights_M, begins_M = (
        np.bincount(places.ravel(), weights=np.concatenate([x_R, -x_R])).cumsum()
        for x_R in (height_R, height_R * begin_R)
    )
    return knots_M, heights_M, begins_M


def _at(
    times_T: np.ndarray, knots_M: np.ndarray, heights_M: np.ndarray, begins_M: np.ndarray
) -> tuple[np.ndarray, ...]:
    """At these times the sum of the heights, and of what they have added up since their begins."""
    places_T = np.searchsorted(knots_M, times_T, "right") - 1
    heights_T, begins_T = (np.where(places_T < 0, 0.0, x_M[places_T]) for x_M in (heights_M, begins_M))
    return heights_T, heights_T * times_T - begins_T


def _totals(knots_M: np.ndarray, heights_M: np.ndarray, begins_M: np.ndarray) -> tuple[np.ndarray, ...]:
    """Up to each knot, the integrals of both."""
    spans_M = np.diff(knots_M)
    added_M = heights_M[:-1] * np.diff(knots_M**2) / 2 - begins_M[:-1] * spans_M
    return tuple(np.concatenate([[0.0], x_M.cumsum()]) for x_M in (heights_M[:-1] * spans_M, added_M))
