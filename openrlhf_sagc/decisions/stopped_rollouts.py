"""What an unfinished rollout would have become: the product-limit estimate (Kaplan and Meier, 1958) over length ratios.

A rollout that ends unfinished at r times its group's median, mostly because it was stopped, has not shown whether it would
have become a straggler. Rollouts that got as far and did finish say how often that happens. This use of the estimate is ours.
"""

import sys

import numpy as np

BINS = 12  # between the median and the straggler ratio, all of the same ratio
PRIOR_STRAGGLER_CHANCE = 0.1  # of a rollout above the median, while nothing is known
PRIOR_ROLLOUTS = 1.0  # that this prior weighs as much as, in every bin


class StragglerChance:
    """Chance that a rollout which has reached some ratio to its group's median goes on to the straggler ratio.

    Args:
        straggler_ratio: as of the controller, > 1.
        discount: factor by which a step's evidence fades with every later step, in (0, 1].
    """

    def __init__(self, straggler_ratio: float, discount: float) -> None:
        self._edges = np.geomspace(1.0, straggler_ratio, BINS + 1)
        self._discount = discount
        # Discounted rollouts by bin: those seen to enter it and then to leave it or end in it, and those that ended in it.
        self._entered = np.zeros(BINS)
        self._ended = np.zeros(BINS)

    def observe(self, ratios_N: np.ndarray, finished_N: np.ndarray) -> None:
        """Learn from one step.

        Args:
            ratios_N: [N] length over the median of the group, float64.
            finished_N: [N] bool; the bin that an unfinished rollout ends in learns nothing from it.
        """
        bins_N = np.searchsorted(self._edges, ratios_N, side="right") - 1  # -1 below the median, BINS for stragglers
        ended = np.bincount(bins_N[finished_N & (bins_N >= 0)], minlength=BINS + 1)
        unfinished = np.bincount(bins_N[~finished_N & (bins_N >= 0)], minlength=BINS + 1)
        reached = np.cumsum((ended + unfinished)[::-1])[::-1]
        self._entered = self._discount * self._entered + (reached - unfinished)[:BINS]
        self._ended = self._discount * self._ended + ended[:BINS]

    def estimate(self, ratios_N: np.ndarray) -> np.ndarray:
        """[N] chances of rollouts that ended unfinished at `ratios_N`; 1 at the straggler ratio or above it."""
        ends = PRIOR_ROLLOUTS * (1 - PRIOR_STRAGGLER_CHANCE ** (1 / BINS))
        passes = 1 - (self._ended + ends) / (self._entered + PRIOR_ROLLOUTS)
        onwards = np.append(np.cumprod(passes[::-1])[::-1], 1.0)
        return onwards[np.maximum(np.searchsorted(self._edges, ratios_N, side="right") - 1, 0)]

    def state_dict(self) -> dict[str, list[float]]:
        """What `load_state_dict` needs to go on; JSON-serialisable."""
        return {"entered": self._entered.tolist(), "ended": self._ended.tolist()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Go on from `state_dict()`.

        Raises:
            ValueError: it is no such state; this object is unchanged.
        """
        try:
            entered, ended = (np.array(state[name], dtype=np.float64) for name in ("entered", "ended"))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"controller state's stopped must hold entered and ended, got {state}") from None
        whole = entered.shape == ended.shape == (BINS,)
        if (
            not whole
            or not (0 <= ended).all()
            or not (ended <= entered).all()
            or not entered.max() < sys.float_info.max
        ):
            raise ValueError(f"controller state's stopped must hold {BINS} counts each, got {state}")
        self._entered, self._ended = entered, ended
