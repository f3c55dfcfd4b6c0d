"""Time to a reward and reward after a time, and ratios of seconds, with 95 % intervals.

Rewards, first crossings and their ratios have a bootstrap over seeds and held-out problems. Mean times and ratios of
mean seconds have Student's t over runs.

Suffixes of arrays: B draws of the bootstrap, E evaluations of a run, P problems, R repetitions, S seeds, T times.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression
from scipy.stats import t

RESAMPLES = 2000
LEVEL = 0.95
POWER = 0.8
TIMES = 201  # of a curve
TOLERANCE = 1e-9  # of a reward: means of equal numbers differ by rounding


def right_of(evaluations: pd.DataFrame) -> np.ndarray:
    """[E, P] share of right answers of each problem at each evaluation of one run."""
    return np.array([line.split() for line in evaluations["right"]], float) / evaluations["samples"].iloc[0]


def time_to(target: float, seconds_V: np.ndarray, rewards_BV: np.ndarray) -> np.ndarray:
    """[B] seconds at which each curve first reaches `target`, linear between evaluations; inf where it does not.

    A curve that begins above it has the first evaluation's seconds, which are 0 in a comparison.
    """
    above_BV = rewards_BV >= target
    at_B = above_BV.argmax(axis=1)
    rows = np.arange(len(rewards_BV))
    before_B = np.maximum(at_B - 1, 0)
    low_B, high_B = rewards_BV[rows, before_B], rewards_BV[rows, at_B]
    share_B = np.where(at_B > 0, (target - low_B) / np.where(high_B > low_B, high_B - low_B, 1), 1)
    seconds_B = seconds_V[before_B] + share_B * (seconds_V[at_B] - seconds_V[before_B])
    return np.where(above_BV.any(axis=1), seconds_B, np.inf)


def mean_time_to(target: float, seconds_T: np.ndarray, rewards_T: np.ndarray) -> float:
    """Seconds to a reward, averaged over all rewards from a curve's first one to `target`.

    It uses the whole curve below the target, so that noise moves it less than the first crossing. A rising curve is
    fitted first (isotonic regression). The mean is then the area between curve and target, over the rise.

    Returns:
        inf where the fitted curve does not reach the target, 0 where a curve begins at it or above.
    """
    first, target = rewards_T[0], target - TOLERANCE
    if first >= target:
        return 0.0
    rising_T = np.maximum(isotonic_regression(rewards_T).x, first)
    if rising_T[-1] < target:
        return np.inf
    return float(np.trapezoid(np.clip(target - rising_T, 0, None), seconds_T) / (target - first))


def curves_of(evaluations: pd.DataFrame, policy: str, settings: dict) -> pd.DataFrame:
    """Held-out reward of a policy over time: a row a seed, a column each of TIMES seconds up to the settings'."""
    mine = evaluations[evaluations["policy"] == policy]
    times_T = np.linspace(0, settings["seconds"], TIMES)
    curves = {
        seed: np.interp(times_T, run["seconds"], right_of(run).mean(axis=1)) for seed, run in mine.groupby("seed")
    }
    return pd.DataFrame.from_dict(curves, orient="index", columns=times_T)


def mean_time_of(curves: pd.DataFrame, target: float) -> dict[str, float | None]:
    """`mean_time_to` of the mean curve over seeds, with the interval of `over_runs`."""
    seconds_T = curves.columns.to_numpy()
    return over_runs(lambda curves_ST: mean_time_to(target, seconds_T, curves_ST.mean(axis=0)), curves.to_numpy())


def sooner_than(best: pd.DataFrame, mine: pd.DataFrame, target: float) -> dict[str, float | None]:
    """How many times sooner `mine` has the rewards up to the target than `best`: the ratio of their mean times.

    Args:
        best, mine: as of `curves_of`; seeds that one of them lacks are left out.

    Returns:
        As of `over_runs`. The value is NaN where one of them does not reach the target, or begins above it.
    """
    seeds, seconds_T = best.index.intersection(mine.index), best.columns.to_numpy()
    mean_time = lambda curves_ST: mean_time_to(target, seconds_T, curves_ST.mean(axis=0))  # noqa: E731
    pairs = best.loc[seeds].to_numpy(), mine.loc[seeds].to_numpy()

    def ratio(best_ST: np.ndarray, mine_ST: np.ndarray) -> float:
        times = np.array([mean_time(best_ST), mean_time(mine_ST)])
        return times[0] / times[1] if np.all((0 < times) & (times < np.inf)) else np.nan

    return over_runs(ratio, *pairs)


def over_runs(statistic: Callable[..., float], *runs: np.ndarray) -> dict[str, float | None]:
    """A positive statistic of runs, with a 95 % interval over them.

    The interval is that of Student's t around the statistic's logarithm, with the standard error of the jackknife,
    which leaves one run out at a time. Few runs give it the width that they deserve. A bootstrap of three runs reaches
    from the least to the greatest of them, and no further.

    Args:
        statistic: a function of the arrays, and of some rows of them.
        runs: arrays with a row a run; runs of the same row are paired.

    Returns:
        `value`, `low`, `high` and the number of `runs`. No ends with one run, or where the statistic is 0, infinite or
        NaN, also where it is so without one of the runs. A value of NaN without any run.
    """
    number = len(runs[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(*runs)) if number else np.nan
        kept = [[np.delete(rows, run, axis=0) for rows in runs] for run in range(number)] if number > 1 else []
        left_out = np.log([statistic(*rows) for rows in kept])
    if not kept or not np.isfinite([value, *left_out]).all():
        return {"value": value, "low": None, "high": None, "runs": number}
    error = np.sqrt((number - 1) * left_out.var())
    half = float(np.exp(error * t.ppf((1 + LEVEL) / 2, number - 1)))
    return {"value": value, "low": value / half, "high": value * half, "runs": number}


def with_ends(found: dict[str, float | None] | None, digits: int = 2) -> str:
    """What `over_runs` found as a table has it: "1.49 [1.26, 1.75]"; a dash for what is none."""
    if found is None or not np.isfinite(found["value"]):
        return "–"
    ends = "" if found["low"] is None else f" [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"
    return f"{found['value']:.{digits}f}{ends}"


def value_at(seconds: float, seconds_V: np.ndarray, values_BV: np.ndarray) -> np.ndarray:
    """[B] values after `seconds`, linear between evaluations, the last one after it."""
    after = min(int(np.searchsorted(seconds_V, seconds)), len(seconds_V) - 1)
    before = max(after - 1, 0)
    span = seconds_V[after] - seconds_V[before]
    share = min((seconds - seconds_V[before]) / span, 1.0) if span and seconds > seconds_V[before] else 0.0
    return values_BV[:, before] + share * (values_BV[:, after] - values_BV[:, before])


def resample(evaluations: pd.DataFrame, settings: dict, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Bootstrap of one arm over seeds, and over problems within a seed; the first draw is the data themselves.

    Args:
        evaluations: of one arm, of all seeds.
        settings: with the `target` of the held-out reward and the training `seconds` of a run.
        generator: seeded alike for every arm, so that the draws of two arms are pairs.

    Returns:
        [RESAMPLES + 1] mean over seeds of: `time` to the target in s; `reward`, `solved` share (most samples right) and
        `passed` share (one is) after the seconds.
    """
    seeds = np.sort(evaluations["seed"].unique())
    found = {"time": [], "reward": [], "solved": [], "passed": []}
    for seed in seeds:
        run = evaluations[evaluations["seed"] == seed]
        right_VP = right_of(run)
        problems = right_VP.shape[1]
        weights_BP = generator.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
        weights_BP = np.vstack([np.full(problems, 1 / problems), weights_BP])
        rewards_BV, seconds_V = weights_BP @ right_VP.T, run["seconds"].to_numpy()
        found["time"].append(time_to(settings["target"], seconds_V, rewards_BV))
        found["reward"].append(value_at(settings["seconds"], seconds_V, rewards_BV))
        for name, share in (("solved", 0.5), ("passed", 0)):
            found[name].append(value_at(settings["seconds"], seconds_V, weights_BP @ (right_VP.T > share)))
    drawn_BS = generator.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), RESAMPLES) / len(seeds)
    drawn_BS = np.vstack([np.full(len(seeds), 1 / len(seeds)), drawn_BS])
    mean = lambda per_seed: (drawn_BS * np.where(drawn_BS > 0, np.array(per_seed).T, 0)).sum(axis=1)  # noqa: E731
    return {name: mean(per_seed) for name, per_seed in found.items()}


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
    """[B] best / times: inf in a draw in which best does not reach the target, -inf where times does not, NaN where
    neither does.

    What is not finite is a dash in a table, and is still above or below all ratios in an interval.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(best_B) & np.isposinf(times_B), -np.inf, best_B / times_B)


def told_apart(ratio: dict[str, float | None], seeds: int) -> float:
    """The least ratio that so many seeds tell from 1 in POWER of all comparisons, if runs differ as in this one.

    Args:
        ratio: as of `over_runs`.
        seeds: of a comparison that is planned.

    Returns:
        NaN where the ratio has no interval, or one of two runs, which hardly say how much runs differ.
    """
    runs = ratio["runs"]
    if ratio["low"] is None or runs < 3:
        return np.nan
    error = np.log(ratio["high"] / ratio["value"]) / t.ppf((1 + LEVEL) / 2, runs - 1) * np.sqrt(runs / seeds)
    return float(np.exp((t.ppf((1 + LEVEL) / 2, seeds - 1) + t.ppf(POWER, seeds - 1)) * error))


def of_runs(evaluations: pd.DataFrame, policy: str, target: float) -> np.ndarray:
    """Seconds to a target of every run of a policy."""
    runs = [run for _, run in evaluations[evaluations["policy"] == policy].groupby("seed")]
    return np.array([time_to(target, run["seconds"].to_numpy(), right_of(run).mean(axis=1)[None])[0] for run in runs])


def times_as_fast(seconds: pd.DataFrame, slower: str, faster: str) -> dict[str, float | None] | None:
    """How many times as fast one arm is as another, as of `over_runs`.

    Args:
        seconds: a row a repetition or seed, a column an arm.

    Returns:
        None if both are the same or no row has both.
    """
    if slower == faster or not {slower, faster} <= {*seconds} or seconds[[slower, faster]].dropna().empty:
        return None
    pairs_S2 = seconds[[slower, faster]].dropna().to_numpy()
    return over_runs(lambda slower_S, faster_S: slower_S.mean() / faster_S.mean(), *pairs_S2.T)
