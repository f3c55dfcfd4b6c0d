"""Rewards against steps, training seconds, the clock and rollouts: at equal ones, and what each reward took."""

from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.run_report.content import Section, Table, number, with_interval
from lib.run_report.measured import Arm, Measured
from lib.run_report.statistics import LEVEL, time_to
from scipy.stats import binomtest, t

SMOOTH = 10  # steps over which a training reward is averaged
TARGETS = 6  # at most
OF_EVALUATIONS = "Rewards are those of the evaluations, with Student's t over seeds, or with one run the binomial."
OF_TRAINING = (
    "Not every run has two evaluations, so these are training rewards, means of 10 steps without an interval. They "
    "are of the groups that were kept: an arm that drops groups shows others than one that does not."
)
UNPAIRED = "Differences are not paired: logs do not say which runs share a seed."
AXES = {"step": "steps", "spent": "training seconds", "hours": "hours on the clock", "rollouts": "rollouts made"}


class Curve(NamedTuple):
    """A run's reward over one of AXES, rising in it; `samples` of each point, NaN where they are not known."""

    at: np.ndarray
    reward: np.ndarray
    samples: np.ndarray


def curve(run: Measured, axis: str, evaluated: bool) -> Curve:
    """Held-out rewards, or the mean training reward of SMOOTH steps."""
    rollouts = (run.steps["made"].fillna(0) * run.every).cumsum()
    if evaluated:
        frame = run.evaluations
        at = rollouts.reindex(frame["step"]).fillna(0) if axis == "rollouts" else frame[axis]
        found = Curve(*(np.array(column, float) for column in (at, frame["reward"], frame["samples"])))
    else:
        reward = run.steps["reward"].rolling(SMOOTH, 1).mean()
        at = {"step": run.steps.index.to_series(), "rollouts": rollouts}.get(axis)
        at = run.steps[axis] if at is None else at
        found = Curve(np.array(at, float), np.array(reward, float), np.full(len(reward), np.nan))
    finite = np.isfinite(found.at) & np.isfinite(found.reward)
    return Curve(*(column[finite] for column in found))


def are_evaluated(arms: list[Arm]) -> bool:
    """Whether every run has two evaluations or more."""
    return all(len(run.evaluations) > 1 for arm in arms for run in arm.runs)


def sources(arms: list[Arm]) -> list[set[str]]:
    """The data on which each arm was evaluated."""
    return [{name for run in arm.runs for name in run.evaluations if str(name).startswith("of ")} for arm in arms]


class Equal(NamedTuple):
    """Rewards at `end` of an axis: each arm's with its interval, and those of its seeds."""

    end: float
    rewards: list[dict[str, float | None]]
    of_seeds: list[pd.Series]


def at_equal(arms: list[Arm], axis: str, evaluated: bool, end: float | None = None) -> Equal | None:
    """Rewards at the largest value of the axis that all runs reach, or at `end` before it; None if it is not known."""
    curves = [[curve(run, axis, evaluated) for run in arm.runs] for arm in arms]
    ends = [one.at[-1] if len(one.at) else np.nan for arm in curves for one in arm]
    if not np.isfinite(ends).all() or min(ends) <= 0:
        return None
    end = min(ends) if end is None else min(*ends, end)
    of_seeds = [
        pd.Series({run.seed: float(np.interp(end, one.at, one.reward)) for run, one in zip(arm.runs, own)})
        for arm, own in zip(arms, curves)
    ]
    return Equal(end, [_reward_at(own, end, rewards) for own, rewards in zip(curves, of_seeds)], of_seeds)


def _reward_at(curves: list[Curve], end: float, rewards: pd.Series) -> dict[str, float | None]:
    """Mean reward at a point of the axis: over seeds by Student's t, of one run by the binomial of its samples."""
    if len(rewards) > 1:
        return _over_seeds(rewards)
    samples = curves[0].samples[np.searchsorted(curves[0].at, end) if end in curves[0].at else -1]
    return {"value": rewards.iloc[0], **binomial(rewards.iloc[0], samples)}


def _over_seeds(values: pd.Series) -> dict[str, float | None]:
    """Mean with the interval of Student's t; one seed has none."""
    value = float(values.mean())
    if len(values) < 2:
        return {"value": value, "low": None, "high": None}
    half = t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.sem()
    return {"value": value, "low": value - half, "high": value + half}


def difference(mine: pd.Series, other: pd.Series) -> dict[str, float | None]:
    """How much more reward one arm has than another, over the seeds that both have."""
    return _over_seeds((mine - other).dropna())


def are_paired(arms: list[Arm]) -> bool:
    """Whether runs of the same seed are pairs, as in a comparison of eval/compare.py."""
    return all(run.kept.get("comparison") for arm in arms for run in arm.runs)


def binomial(share: float, samples: float) -> dict[str, float | None]:
    """Wilson's interval of a share of samples; none where it is no share, or the samples are not known."""
    if not (np.isfinite(samples) and samples >= 1 and 0 <= share <= 1):
        return {"low": None, "high": None}
    ends = binomtest(round(share * samples), int(samples)).proportion_ci(LEVEL, method="wilson")
    return {"low": float(ends.low), "high": float(ends.high)}


def targets(arms: list[Arm], evaluated: bool) -> list[float]:
    """Round rewards that lie above where all runs begin and that at least one arm reaches."""
    curves = [curve(run, "step", evaluated) for arm in arms for run in arm.runs]
    curves = [one for one in curves if len(one.at)]
    if not curves:
        return []
    first, best = max(one.reward[0] for one in curves), max(one.reward.max() for one in curves)
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (best - first) / step <= TARGETS), None)
    if step is None or best <= first:
        return []
    return [round(n * step, 4) for n in range(int(np.floor(first / step)) + 1, int(np.floor(best / step)) + 1)]


def _times(arm: Arm, axis: str, target: float, evaluated: bool) -> str:
    """When the runs of an arm first reach a reward: their mean, and from the first to the last of several."""
    found = []
    for run in arm.runs:
        one = curve(run, axis, evaluated)
        found.append(float(time_to(target, one.at, one.reward[None])[0]) if len(one.at) else np.inf)
    reached = [time for time in found if np.isfinite(time)]
    digits = 3 if axis == "hours" else 0
    if len(reached) < len(found):
        return f"{len(reached)} of {len(found)}" if reached else "–"
    span = f" ({number(min(found), digits)} to {number(max(found), digits)})" if len(found) > 1 else ""
    return number(np.mean(found), digits) + span


def section(arms: list[Arm], seconds: float | None = None) -> Section:
    """The tables of rewards.

    Args:
        arms: to compare.
        seconds: of training after which they are compared, in the place of the end that all runs reach.
    """
    evaluated = are_evaluated(arms)
    blocks: list = [OF_EVALUATIONS if evaluated else OF_TRAINING]
    if len(named := sources(arms)) > 1 and all(named) and not set.intersection(*named):
        blocks.append(
            "Warning: the arms were evaluated on other data, so they are other tasks and their rewards are not "
            "comparable."
        )
    equal = {axis: at_equal(arms, axis, evaluated, seconds if axis == "spent" else None) for axis in AXES}
    found = {axis: one for axis, one in equal.items() if one}
    rows = [
        [AXES[axis], number(one.end, 3 if axis == "hours" else 0), *(with_interval(mean, 3) for mean in one.rewards)]
        for axis, one in found.items()
    ]
    names = [arm.name for arm in arms]
    if rows:
        given = "" if seconds is None else ", or the seconds given"
        blocks += [f"Rewards at equal steps, seconds and rollouts, at the end that all runs reach{given}:"]
        blocks.append(Table(["at equal", "at", *names], rows, "l" + "r" * (1 + len(names))))
        if len(arms) > 1:
            blocks.append(_who_wins(arms, found))
        if len(arms) > 1 and are_paired(arms):
            blocks += ["Differences, paired by seed, whose intervals are not widened for their number:"]
            blocks.append(_differences(arms, found))
    rows = []
    for target in targets(arms, evaluated):
        for axis, name in AXES.items():
            cells = [_times(arm, axis, target, evaluated) for arm in arms]
            rows += [[str(target), name, *cells]] if any(cell != "–" for cell in cells) else []
    if rows:
        blocks.append(
            "What the first crossing of each reward took, linear between points (a dash: not reached or not known):"
        )
        blocks.append(Table(["reward", "in", *names], rows, "rl" + "r" * len(names)))
    return Section("Learning", blocks if len(blocks) > 1 else [*blocks, "No reward is known."])


def _differences(arms: list[Arm], found: dict[str, Equal]) -> Table:
    """A row for each two arms."""
    rows = []
    for (m, other), (n, mine) in combinations(enumerate(arms), 2):
        cells = [with_interval(difference(one.of_seeds[n], one.of_seeds[m]), 3) for one in found.values()]
        rows.append([mine.name, other.name, *cells])
    return Table(["arm", "minus", *(f"at equal {AXES[axis]}" for axis in found)], rows, "ll" + "r" * len(found))


def _who_wins(arms: list[Arm], found: dict[str, Equal]) -> str:
    """Which arm is ahead at equal seconds and at equal rollouts, which need not be the same."""
    lines = []
    for axis, name in (("spent", "equal training seconds"), ("rollouts", "equal rollouts made")):
        if axis not in found:
            continue
        rewards, shared = found[axis].rewards, pd.concat(found[axis].of_seeds, axis=1).dropna()
        paired = are_paired(arms) and len(shared) > 1
        means = shared.mean() if paired else [one["value"] for one in rewards]
        first, second, *_ = np.argsort([-mean for mean in means], kind="stable")
        ends = rewards[first]["low"], rewards[second]["high"]
        if paired:
            is_more = difference(shared[first], shared[second])["low"] > 0
            doubt = "" if is_more else ": the paired difference is not significant"
        elif None in ends:
            doubt = "; there is no interval"
        else:
            doubt = "" if ends[0] > ends[1] else "; the intervals overlap, so that is not significant"
        lines.append(f"At {name} {arms[first].name} is ahead{doubt}.")
    return " ".join([*lines, *([] if are_paired(arms) else [UNPAIRED])])
