"""What a group size is worth: as the logarithm of the size, or by the effective samples a second of its steps.

Both are utilities for the rule of controller.py: up to a constant, the higher the better. docs/controller.md derives them.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

OBJECTIVES = ("size", "throughput")
OPTIMISM = 0.5  # standard errors by which seconds are taken to be fewer: sizes that are little known are tried


class Forecast(NamedTuple):
    """Of a step at some size: effective samples, seconds in any unit, and the standard error of their logarithm."""

    effective: float
    seconds: float
    error: float


def size_utilities(sizes: Sequence[int]) -> list[float]:
    """U(G) = log(G / G_min) / log(G_max / G_min), of sizes in ascending order."""
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    return [math.log(size / sizes[0]) / span for size in sizes]


def throughput_utilities(forecasts: Sequence[Forecast], probabilities: Sequence[float], limit: float) -> list[float]:
    """What each size adds to the most effective samples a second that the limit allows.

    With e_G effective samples and T_G seconds a step, and theta the largest ratio of mean e to mean T of any mix of sizes
    whose mean event probability is at most the limit, U(G) = (e_G - theta * T_G) / e up to a factor, e being the mean of
    that mix: of the mixes that meet the limit it has the largest mean utility, which is 0. The utilities span 1 at most.

    Args:
        forecasts, probabilities: of every size, in ascending order; the smallest stands in where no size meets the limit.
    """
    effective = [forecast.effective for forecast in forecasts]
    seconds = [forecast.seconds * math.exp(-OPTIMISM * forecast.error) for forecast in forecasts]
    mixes = [
        [sum(share * values[place] for place, share in mix.items()) for values in (effective, seconds)]
        for mix in _extreme_mixes(probabilities, limit)
    ]
    most, duration = max(mixes, key=lambda mix: mix[0] / mix[1])
    worth = [(e - most / duration * s) / most for e, s in zip(effective, seconds)]
    span = max(*worth, 0.0) - min(*worth, 0.0)
    return [utility / max(span, 1.0) for utility in worth]


def _extreme_mixes(probabilities: Sequence[float], limit: float) -> Iterator[dict[int, float]]:
    """Places and shares of the mixes that meet the limit, of which all others are mixes."""
    under = [place for place, probability in enumerate(probabilities) if probability <= limit]
    over = [place for place, probability in enumerate(probabilities) if probability > limit]
    for place in under or [0]:
        yield {place: 1.0}
    for low, high in itertools.product(under, over):
        share = (limit - probabilities[low]) / (probabilities[high] - probabilities[low])
        yield {low: 1 - share, high: share}
