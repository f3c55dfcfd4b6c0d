"""The idle tail of a step: from its peak on, the time in which fewer than half as many rollouts run."""

from collections.abc import Sequence

import numpy as np


def idle_tail(spans: Sequence[tuple[float, float]], began: float, now: float) -> float:
    """Seconds since a step's peak in which fewer than half as many rollouts ran as at the peak.

    Args:
        spans: when each rollout ran, in seconds on one clock.
        began, now: the step's generation began and ends.
    """
    spans_R2 = np.array(spans).reshape(-1, 2).clip(began, now)
    if not len(spans_R2):
        return 0.0
    times_M, places_M = np.unique(spans_R2, return_inverse=True)
    changes_M = np.bincount(places_M.ravel(), weights=np.tile([1, -1], len(spans_R2)))
    running_M = changes_M.cumsum()
    seconds_M = np.diff(times_M, append=now)
    idle_M = running_M < running_M.max() / 2
    idle_M[: running_M.argmax()] = False
    return float(seconds_M[idle_M].sum())
