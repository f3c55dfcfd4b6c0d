"""Time to a reward and reward after a time, with bootstrap intervals over seeds and held-out problems.

Suffixes of arrays: B draws of the bootstrap, E evaluations of a run, P problems, T times.
"""

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression
from scipy.stats import bootstrap, norm

RESAMPLES = 2000
LEVEL = 0.95
POWER = 0.8
TIMES = 201  # of a mean curve


def right_of(evaluations: pd.DataFrame) -> np.ndarray:
    """[E, P] share of right answers of each problem at each evaluation of one run."""
    return np.array([line.split() for line in evaluations["right"]], float) / evaluations["samples"].iloc[0]


def time_to(target: float, seconds_E: np.ndarray, rewards_BE: np.ndarray) -> np.ndarray:
    """[B] seconds at which each curve first reaches `target`, linear between evaluations; inf where it does not.

    A curve that begins above it has the first evaluation's seconds, which are 0 in a comparison.
    """
    above_BE = rewards_BE >= target
    at_B = above_BE.argmax(axis=1)
    rows = np.arange(len(rewards_BE))
    before_B = np.maximum(at_B - 1, 0)
    low_B, high_B = rewards_BE[rows, before_B], rewards_BE[rows, at_B]
    share_B = np.where(at_B > 0, (target - low_B) / np.where(high_B > low_B, high_B - low_B, 1), 1)
    seconds_B = seconds_E[before_B] + share_B * (seconds_E[at_B] - seconds_E[before_B])
    return np.where(above_BE.any(axis=1), seconds_B, np.inf)


def mean_time_to(target: float, seconds_T: np.ndarray, rewards_BT: np.ndarray) -> np.ndarray:
    """[B] seconds to a reward, averaged over all rewards from a curve's first one to `target`.

    It uses the whole curve below the target, so that noise moves it less than the first crossing. A rising curve is fitted
    first (isotonic regression). The mean is then the area between curve and target, over the rise.

    Returns:
        inf where the fitted curve does not reach the target, 0 where a curve begins above it.
    """
    rising_BT = np.array([isotonic_regression(rewards_T).x for rewards_T in rewards_BT])
    area_B = np.trapezoid(np.clip(target - rising_BT, 0, None), seconds_T, axis=1)
    rise_B = target - rewards_BT[:, 0]
    mean_B = np.where(rise_B > 0, area_B / np.where(rise_B > 0, rise_B, 1), 0.0)
    return np.where(rising_BT[:, -1] >= target, mean_B, np.inf)


def value_at(seconds: float, seconds_E: np.ndarray, values_BE: np.ndarray) -> np.ndarray:
    """[B] values after `seconds`, linear between evaluations, the last one after it."""
    after = min(int(np.searchsorted(seconds_E, seconds)), len(seconds_E) - 1)
    before = max(after - 1, 0)
    span = seconds_E[after] - seconds_E[before]
    share = min((seconds - seconds_E[before]) / span, 1.0) if span and seconds > seconds_E[before] else 0.0
    return values_BE[:, before] + share * (values_BE[:, after] - values_BE[:, before])


def resample(evaluations: pd.DataFrame, settings: dict, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Bootstrap of one arm over seeds, and over problems within a seed; the first draw is the data themselves.

    Args:
        evaluations: of one arm, of all seeds.
        settings: with the `target` of the held-out reward and the training `seconds` of a run.
        generator: seeded alike for every arm, so that the draws of two arms are pairs.

    Returns:
        [RESAMPLES + 1] mean over seeds of: `time` to the target in s; `reward`, `solved` share (most samples right) and
        `passed` share (one is) after the seconds. `mean_time` of the mean curve, as of `mean_time_to`.
    """
    seeds = evaluations["seed"].unique()
    times_T = np.linspace(0, settings["seconds"], TIMES)
    found = {"time": [], "reward": [], "solved": [], "passed": []}
    curves = []
    for seed in seeds:
        run = evaluations[evaluations["seed"] == seed]
        right_EP = right_of(run)
        problems = right_EP.shape[1]
        weights_BP = generator.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
        weights_BP = np.vstack([np.full(problems, 1 / problems), weights_BP])
        rewards_BE, seconds_E = weights_BP @ right_EP.T, run["seconds"].to_numpy()
        curves.append(rewards_BE @ [np.interp(times_T, seconds_E, one_E) for one_E in np.eye(len(seconds_E))])
        found["time"].append(time_to(settings["target"], seconds_E, rewards_BE))
        found["reward"].append(value_at(settings["seconds"], seconds_E, rewards_BE))
        for name, share in (("solved", 0.5), ("passed", 0)):
            found[name].append(value_at(settings["seconds"], seconds_E, weights_BP @ (right_EP.T > share)))
    drawn_BS = generator.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), RESAMPLES) / len(seeds)
    drawn_BS = np.vstack([np.full(len(seeds), 1 / len(seeds)), drawn_BS])
    mean = lambda per_seed: (drawn_BS * np.where(drawn_BS > 0, np.array(per_seed).T, 0)).sum(axis=1)  # noqa: E731
    mean_BT = sum(share_B[:, None] * curve_BT for share_B, curve_BT in zip(drawn_BS.T, curves))
    draws = {name: mean(per_seed) for name, per_seed in found.items()}
    return draws | {"mean_time": mean_time_to(settings["target"], times_T, mean_BT)}


def ends_of(draws: np.ndarray) -> tuple[float, float]:
    """Ends of the bootstrap's interval, of the draws that are a number; NaN where most are none."""
    drawn = draws[1:][~np.isnan(draws[1:])]
    if 2 * len(drawn) < len(draws):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return low, high


def interval(draws: np.ndarray, digits: int) -> str:
    """The data's value and the bootstrap's interval around it; a value that is not reached is a dash."""
    low, high = ends_of(draws)
    show = lambda x: f"{x:.{digits}f}" if np.isfinite(x) else "–"  # noqa: E731
    return f"{show(draws[0])} [{show(low)}, {show(high)}]"


def speedup_of(best_B: np.ndarray, times_B: np.ndarray) -> np.ndarray:
    """[B] best / times; NaN in a draw in which neither reaches the target."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return best_B / times_B


def told_apart(ratios_B: np.ndarray, runs: int, seeds: int) -> float:
    """The least ratio that so many seeds tell from 1 in POWER of all comparisons, given the draws of one with `runs` seeds.

    The logarithm of the ratio is taken as normal. A bootstrap over few runs is too narrow, by (runs - 1) / runs in variance.

    Returns:
        NaN with a single run, or where a draw has no ratio.
    """
    if runs < 2 or not np.all(np.isfinite(ratios_B[1:]) & (ratios_B[1:] > 0)):
        return np.nan
    variance = np.log(ratios_B[1:]).var() * runs / (runs - 1) * runs / seeds
    return float(np.exp((norm.ppf((1 + LEVEL) / 2) + norm.ppf(POWER)) * np.sqrt(variance)))


def of_runs(evaluations: pd.DataFrame, policy: str, target: float) -> np.ndarray:
    """Seconds to a target of every run of a policy."""
    runs = [run for _, run in evaluations[evaluations["policy"] == policy].groupby("seed")]
    return np.array([time_to(target, run["seconds"].to_numpy(), right_of(run).mean(axis=1)[None])[0] for run in runs])


def times_as_fast(seconds: pd.DataFrame, slower: str, faster: str) -> dict[str, float | None] | None:
    """How many times as fast one arm is as another: value and 95 % interval, percentiles of a bootstrap over runs.

    Args:
        seconds: a row a repetition or seed, a column an arm.

    Returns:
        `value`, `low` and `high`; no ends with a single row, and None if both are the same or no row has both.
    """
    if slower == faster or not {slower, faster} <= {*seconds} or seconds[[slower, faster]].dropna().empty:
        return None
    pairs_R2 = seconds[[slower, faster]].dropna().to_numpy()

    def ratio(slower_R, faster_R, axis=-1):
        return slower_R.mean(axis=axis) / faster_R.mean(axis=axis)

    found = {"value": float(ratio(*pairs_R2.T)), "low": None, "high": None}
    if len(pairs_R2) > 1:
        drawn = bootstrap(pairs_R2.T, ratio, paired=True, vectorized=True, method="percentile", random_state=0)
        low, high = drawn.confidence_interval
        found |= {"low": float(low), "high": float(high)}
    return found
