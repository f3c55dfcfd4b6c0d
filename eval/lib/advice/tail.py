"""How much of the tail lies within and between prompts, from a trace.

Suffixes of arrays: P prompts of the trace, B prompts of a step, G rollouts of a group.
"""

from argparse import Namespace
from typing import NamedTuple

import numpy as np
from lib.simulation.lengths import Trace
from scipy import stats

from openrlhf_sagc.decisions.group_lengths import medians, reaches_ratio

LEVEL = 0.95
RESAMPLES = 999
AT_ONCE = 2**21  # prompts of resamples that are in memory together
STEPS = 100  # that are drawn for means over steps


class StepTail(NamedTuple):
    """Means over steps of a number of groups: tokens of the `longest` rollout and of the `mean` one.

    `between` is the share of their difference that is there already between the means of the step's prompts. `stragglers`
    is the share of groups with a straggler event.
    """

    longest: float
    mean: float
    between: float
    stragglers: float


def variance_between(tokens_P: list[np.ndarray], seed: int) -> tuple[float, float, float]:
    """Share of the variance of log tokens that lies between prompts, with the ends of its 95 % bootstrap interval.

    The analysis of variance of a random-effects model with unequal groups (Searle, Casella and McCulloch, 1992, section
    3.6); prompts with one rollout count for the variance between alone. 0 if all lengths are the same.
    """
    counts_P, logs_N = np.array([len(tokens) for tokens in tokens_P]), np.log(np.maximum(np.concatenate(tokens_P), 1))
    starts_P, mean = np.cumsum(counts_P) - counts_P, logs_N.mean()
    means_P = np.add.reduceat(logs_N - mean, starts_P) / counts_P
    squares_P = np.add.reduceat(np.square(logs_N - mean - np.repeat(means_P, counts_P)), starts_P)
    weighed_P = counts_P * means_P
    terms_P5 = np.stack([counts_P, squares_P, weighed_P, weighed_P * means_P, np.square(counts_P)], axis=1)

    prompts_P = np.arange(len(counts_P))

    def share_of(drawn_BP, axis=-1):
        times_BP = [np.bincount(drawn_P, minlength=len(prompts_P)) for drawn_P in np.atleast_2d(drawn_BP)]
        return _share_between(times_BP @ terms_P5, len(prompts_P)).reshape(drawn_BP.shape[:-1])

    found = stats.bootstrap(
        [prompts_P],
        share_of,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(AT_ONCE // len(counts_P), 1),
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    return float(share_of(prompts_P)), *(float(end) for end in found.confidence_interval)


def _share_between(sums_5, prompts: int):
    """The share from sums over prompts: rollouts, squared deviations within, rollouts times the mean, its square, rollouts squared."""
    rollouts, squares, weighed, weighed_squares, counts_squared = np.moveaxis(sums_5, -1, 0)
    within = squares / np.maximum(rollouts - prompts, 1)
    deviations = weighed_squares - np.square(weighed) / rollouts
    scale = rollouts - counts_squared / rollouts
    between = np.maximum(deviations - (prompts - 1) * within, 0) / np.maximum(scale, 1e-12)
    total = between + within
    spread = total > 1e-9  # what is below it is rounding
    return np.where(spread, between / np.where(spread, total, 1), 0.0)


def step_tail(
    trace: Trace, prompts: int, size: int, straggler_ratio: float, generator: np.random.Generator
) -> StepTail:
    """Of steps of so many prompts and this group size."""
    rows = []
    for _ in range(STEPS):
        drawn_B = trace.draw_prompts(prompts, generator)
        tokens_BR, _ = trace.draw_rollouts(drawn_B, size, generator)
        events_BR = reaches_ratio(tokens_BR, medians(tokens_BR), straggler_ratio)
        rows.append(
            (tokens_BR.max(), trace.mean_tokens[drawn_B].max(), tokens_BR.mean(), events_BR.any(axis=1).mean())
        )
    longest, slowest, mean, stragglers = np.mean(rows, axis=0)
    between = (slowest - mean) / (longest - mean) if longest > mean else 0.0
    return StepTail(longest, mean, min(max(between, 0.0), 1.0), stragglers)


def step_tails(trace: Trace, arguments: Namespace) -> tuple[StepTail, tuple[float, float, float]]:
    """The tail of the run's steps as they are, and its `between` with the ends of the bootstrap's interval."""
    samples = (arguments.batch_size, arguments.n_samples_per_prompt, arguments.straggler_ratio)
    tails = []
    for draw in range(arguments.draws + 1):
        generator = np.random.default_rng([arguments.seed, draw])
        tails.append(step_tail(trace.resampled(generator) if draw else trace, *samples, generator))
    between = tails[0].between
    spread = standard_spread([tail.between for tail in tails[1:]])
    return tails[0], (between, max(between - spread, 0.0), min(between + spread, 1.0))


def standard_spread(draws: list[float]) -> float:
    """Half of the bootstrap's standard 95 % interval, with Student's t of so many draws; NaN if one of them is."""
    return float(stats.t.ppf((1 + LEVEL) / 2, len(draws) - 1) * np.std(draws, ddof=1))


def signal_share(trace: Trace, size: int) -> float | None:
    """Share of groups of this size that are neither all right nor all wrong, of prompts drawn alike; None if not known.

    Groups are drawn as those of `Trace`.
    """
    right_P, counts_P = trace.right_by_prompt, trace.samples_per_prompt
    if right_P is None:
        return None
    # Few kinds of prompts, however many prompts there are.
    kinds_K, prompts_K = np.unique(counts_P * (counts_P.max() + 1) + right_P, return_counts=True)
    count_K, right_K = np.divmod(kinds_K, counts_P.max() + 1)
    size_K = np.minimum(size, count_K)
    in_group_K = stats.hypergeom(count_K, right_K, size_K)
    return float(1 - np.average(in_group_K.pmf(0) + in_group_K.pmf(size_K), weights=prompts_K))
