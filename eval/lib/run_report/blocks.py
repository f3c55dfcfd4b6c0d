"""Intervals of one run's steps: a bootstrap over blocks of neighbouring steps, which keeps what they have in common.

Suffixes of arrays: B draws, N steps.
"""

from collections.abc import Callable

import numpy as np
from lib.run_report.statistics import LEVEL

DRAWS = 2000
AT_ONCE = 1_000_000  # numbers
MOST = 20_000_000  # numbers that are drawn; a long run has fewer draws
LEAST_STEPS = 20  # behind the warm-up, with fewer of which no verdict is given


def block_length(steps: int) -> int:
    """Steps of a block: the cube root of all, at least 5, so that most blocks have a long round of tail batching."""
    return int(min(max(5, round(steps ** (1 / 3))), steps))


def drawn(values_N: np.ndarray, statistic: Callable[..., np.ndarray], seed: int = 0) -> np.ndarray:
    """[B + 1] the statistic of the values, and of draws of blocks that begin anywhere and go round at the end.

    Args:
        values_N: finite.
        statistic: of the last axis, as numpy's mean and median.
        seed: another one for another arm.
    """
    number = len(values_N)
    if number < 2:
        return np.full(3, np.nan) if not number else np.array([values_N[0], np.nan, np.nan])
    length, generator = block_length(number), np.random.default_rng(seed)
    blocks, draws = -(-number // length), max(min(DRAWS, MOST // number), 100)
    found = [[float(statistic(values_N))]]
    for start in range(0, draws, at_once := max(AT_ONCE // number, 1)):
        starts = generator.integers(number, size=(min(at_once, draws - start), blocks, 1))
        at_BN = ((starts + np.arange(length)) % number).reshape(len(starts), -1)[:, :number]
        found.append(statistic(values_N[at_BN], axis=-1))
    return np.concatenate(found)


def summary(draws_B: np.ndarray) -> dict[str, float | None]:
    """`value`, `low` and `high` of draws whose first is the value; no ends where there are none."""
    finite = draws_B[1:][np.isfinite(draws_B[1:])]
    if len(finite) < 2:
        return {"value": float(draws_B[0]), "low": None, "high": None}
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": float(draws_B[0]), "low": float(low), "high": float(high)}


def of_steps(runs: list[np.ndarray], statistic: Callable[..., np.ndarray], seed: int = 0) -> dict[str, float | None]:
    """The statistic's mean over runs of one arm, with the interval of their steps; runs without a step are left out."""
    draws = means_of_draws(runs, statistic, seed)
    return {"value": np.nan, "low": None, "high": None} if draws is None else summary(draws)


def means_of_draws(runs: list[np.ndarray], statistic: Callable[..., np.ndarray], seed: int) -> np.ndarray | None:
    """[B] draws of the statistic's mean over runs; None without any step."""
    all_draws = [drawn(values[np.isfinite(values)], statistic, seed + 1000 * n) for n, values in enumerate(runs)]
    all_draws = [draws for draws in all_draws if np.isfinite(draws[0])]
    if not all_draws:
        return None
    count = min(map(len, all_draws))
    return np.mean([draws[:count] for draws in all_draws], axis=0)


def ratio(slower: list[np.ndarray], faster: list[np.ndarray]) -> dict[str, float | None]:
    """How many times as large the mean of one arm's steps is as that of another's."""
    pair = [means_of_draws(runs, np.mean, seed) for seed, runs in enumerate((slower, faster), 1)]
    if pair[0] is None or pair[1] is None:
        return {"value": np.nan, "low": None, "high": None}
    count = min(map(len, pair))
    return summary(pair[0][:count] / pair[1][:count])
