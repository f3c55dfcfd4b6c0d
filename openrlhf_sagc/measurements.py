"""What is measured of the rollouts of a step, for the controller and the log."""

import itertools
import statistics
from typing import NamedTuple


class Rollouts(NamedTuple):
    """One dispatched group of G rollouts."""

    tokens: list[int]  # [G] response tokens
    seconds: list[float]  # [G] from dispatch in the engine's actor to finish, without the wait in vLLM's queue
    queue_seconds: list[float]  # [G] that wait


def rollouts_of(responses: list[dict]) -> Rollouts:
    """Lengths of one group of G from the engine's responses."""
    waits = [response["queue_seconds"] for response in responses]
    return Rollouts(
        tokens=[response["tokens"] for response in responses],
        seconds=[max(response["seconds"] - wait, 0.0) for response, wait in zip(responses, waits)],
        queue_seconds=waits,
    )


def rollout_metrics(groups: list[Rollouts], longest: int) -> dict[str, float]:
    """Scalars of one step's rollouts for the log.

    Args:
        groups: every group that came back whole, at least one.
        longest: tokens a response may have.

    Returns:
        `sagc/length_headroom`, `longest` over the median response; `rollout/response_length_{median,max}` in tokens and
        `rollout/seconds_{median,max}` over all rollouts, the latter without the wait in vLLM's queue, whose mean is
        `rollout/queue_seconds`; `rollout/idle_fraction`: 1 - mean / max in tokens, which is the share of decode slots
        that stand idle where all rollouts start together.
    """
    tokens, seconds, waits = (list(itertools.chain.from_iterable(column)) for column in zip(*groups))
    median = statistics.median(tokens)
    return {
        "sagc/length_headroom": longest / max(median, 1),
        "rollout/response_length_median": float(median),
        "rollout/response_length_max": float(max(tokens)),
        "rollout/idle_fraction": 1 - statistics.fmean(tokens) / max(*tokens, 1),
        "rollout/seconds_median": statistics.median(seconds),
        "rollout/seconds_max": max(seconds),
        "rollout/queue_seconds": statistics.fmean(waits),
    }
