"""What a token weighs in the update where rounds of tail batching train short and long prompts apart.

A loss that is a mean over tokens divides by the tokens of its optimizer step. So a token of a long round weighs less than
one of a short round, and in plain steps all weigh about the same. They do again if a step counts as
`step_weight` plain steps. docs/tail_batching.md derives it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DISCOUNT = 0.5  # of the frames before, with each frame: about two of them count
OTHER_LENGTHS = 1.5  # a frame whose mean differs by more than this factor makes those before it void
MOST_ROUNDS = 32  # of a frame, where no prompts wait for a long round
WINDOW = 100  # steps whose shares are logged


class Trained(NamedTuple):
    """A group that a step trains: response tokens of all its samples, and how many these are."""

    tokens: int
    samples: int


class PlainSteps(NamedTuple):
    """What is known of plain steps: mean tokens of a sample, and how many groups a step has."""

    length: float
    groups: float


def step_weight(tokens: float, samples: float, plain: PlainSteps | None) -> float:
    """How many plain steps an optimizer step counts as: nearly the mean length of its samples over that of plain steps.

    A plain step that has a long group has more tokens to divide by for that, so its tokens weigh a little less. This is
    the same for a round of such groups.

    Args:
        tokens, samples: that it trains.
        plain: None for a plain step, which counts as one, like a step without tokens.
    """
    if plain is None or not plain.length or not tokens:
        return 1.0
    ratio = tokens / samples / plain.length
    return ratio / (1 + (ratio - 1) / plain.groups)


class TokenWeights:
    """Learns what a sample of a plain step is long, and accounts for what each prompt has in the update.

    A frame is sorted steps, or short rounds and the long rounds after them. Only whole frames have short and long prompts in their true
    proportion, so the mean is over earlier frames. The first frame has none before it: there it is over the steps so far.

    Args:
        by_frame: whether steps are rounds; else each of them is a plain step, which counts as one.
    """

    def __init__(self, *, by_frame: bool):
        self._by_frame = by_frame
        self._earlier = np.zeros(2)  # tokens and samples of the frames before, discounted
        self._frame = np.zeros(2)  # the same of this frame
        self._rounds = 0  # of this frame
        self._was_long = False
        self._weight = 1.0
        # Of each step [3, G]: its groups' mean lengths, tokens and parts of the update.
        self._shares: deque[np.ndarray] = deque(maxlen=WINDOW)

    def weigh(self, groups: Sequence[Trained], long: bool, begins: bool = False) -> PlainSteps | None:
        """A step is about to be trained.

        Args:
            groups: that it trains, at least one.
            long: whether it is a long round.
            begins: whether it is the first of a frame of sorted steps.

        Returns:
            What `step_weight` needs; None for a plain step.
        """
        tokens_G, samples_G = np.array(groups, dtype=float).T
        totals_2 = np.array([tokens_G.sum(), samples_G.sum()])
        plain = PlainSteps(self._plain_length(totals_2, long, begins), len(groups)) if self._by_frame else None
        tokens, samples = totals_2.tolist()
        self._weight = step_weight(tokens, samples, plain)
        self._shares.append(np.stack([tokens_G / samples_G, tokens_G, self._weight * tokens_G / max(tokens, 1)]))
        return plain

    def _plain_length(self, totals_2: np.ndarray, long: bool, begins: bool) -> float:
        if begins or self._was_long and not long or self._rounds == MOST_ROUNDS:
            self._end_frame()
        self._was_long = long
        self._rounds += 1
        self._frame = self._frame + totals_2
        tokens, samples = self._earlier if self._earlier[1] else self._frame
        return float(tokens / samples)

    def _end_frame(self) -> None:
        if self._earlier.all() and self._frame.all():
            ratio = (self._frame[0] / self._frame[1]) / (self._earlier[0] / self._earlier[1])
            if not 1 / OTHER_LENGTHS < ratio < OTHER_LENGTHS:
                self._earlier = np.zeros(2)
        self._earlier = DISCOUNT * self._earlier + self._frame
        self._frame, self._rounds = np.zeros(2), 0

    def tenths(self) -> tuple[np.ndarray, np.ndarray]:
        """[10] shares of the tokens and [10] of the update that the last steps' prompts had, by their mean response
        length, the shortest first; fewer than ten prompts leave a share of 0."""
        lengths_N, *shares_2_N = np.concatenate(self._shares, axis=1)
        tenths_10 = np.array_split(np.argsort(lengths_N, kind="stable"), 10)
        tokens_10, update_10 = (np.array([share_N[places].sum() for places in tenths_10]) for share_N in shares_2_N)
        return tokens_10 / max(tokens_10.sum(), 1e-12), update_10 / max(update_10.sum(), 1e-12)

    def metrics(self) -> dict[str, float]:
        """Of the last step `step_weight`; of the last 100 `{longest,shortest}_tenth_{tokens,update}`: the share that the
        tenth of prompts with the longest or the shortest responses has of all tokens, and of the update."""
        if not self._shares:
            return {}
        tokens_10, update_10 = self.tenths()
        shares = {
            f"{name}_tenth_{of}": float(shares_10[place])
            for name, place in (("longest", -1), ("shortest", 0))
            for of, shares_10 in (("tokens", tokens_10), ("update", update_10))
        }
        return {"step_weight": self._weight, **shares}

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on, between two steps; JSON-serialisable."""
        return {
            "earlier": self._earlier.tolist(),
            "frame": self._frame.tolist(),
            "rounds": self._rounds,
            "was_long": self._was_long,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`, empty if the run had none; the shares begin anew."""
        self._earlier = np.array(state.get("earlier", [0.0, 0.0]))
        self._frame = np.array(state.get("frame", [0.0, 0.0]))
        self._rounds, self._was_long = state.get("rounds", 0), state.get("was_long", False)
