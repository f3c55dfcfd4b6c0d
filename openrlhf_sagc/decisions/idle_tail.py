"""Where the engines have little or nothing to do: a step's idle tail, its waits for rewards, and how long engines stand idle."""

from collections.abc import Sequence

import numpy as np


def idle_seconds(
    running: Sequence[tuple[float, float]], rewarded: Sequence[tuple[float, float]], began: float, now: float
) -> tuple[float, float]:
    """Seconds of a step's idle tail and of its waits for rewards; no second is in both.

    The idle tail is when, after the step's peak, fewer than half as many rollouts run as at the peak. It waits for rewards
    when none runs, and some have only their reward to come.

    Args:
        running: when each rollout ran, in seconds on one clock.
        rewarded: when each rollout waited for its reward.
        began, now: the step's generation began and ends.
    """
    spans_R2 = np.array([*running, *rewarded]).reshape(-1, 2).clip(began, now)
    if not len(spans_R2):
        return 0.0, 0.0
    times_M, places_M = np.unique(spans_R2, return_inverse=True)
    changes_R2 = np.tile([1, -1], (len(spans_R2), 1))
    is_running_R2 = np.repeat(np.arange(len(spans_R2)) < len(running), 2).reshape(-1, 2)
    running_M, waiting_M = (
        np.bincount(places_M.ravel(), weights=(changes_R2 * of_kind).ravel()).cumsum()
        for of_kind in (is_running_R2, ~is_running_R2)
    )
    seconds_M = np.diff(times_M, append=now)
    rewards_M = (running_M < 0.5) & (waiting_M > 0.5)
    idle_M = (running_M < running_M.max() / 2) & ~rewards_M
    idle_M[: running_M.argmax()] = False
    return float(seconds_M[idle_M].sum()), float(seconds_M[rewards_M].sum())


def wait_share(running: Sequence[tuple[int, float, float]], began: float, now: float, num_engines: int) -> float:
    """Share of the engines' time from `began` to `now` in which nothing runs on them.

    Args:
        running: of each rollout its engine, and when it ran, in seconds on one clock.
        num_engines: engines.
    """
    busy, until = 0.0, [began] * num_engines
    for engine, start, end in sorted(running, key=lambda ran: ran[1]):
        start, end = max(start, until[engine]), min(end, now)
        if end > start:
            busy, until[engine] = busy + end - start, end
    return 1 - busy / max(num_engines * (now - began), 1e-9)
