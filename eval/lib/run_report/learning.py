"""Rewards against steps, training seconds, the clock and rollouts: at equal ones, and what each reward took."""

from typing import NamedTuple

import numpy as np
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


def at_equal(arms: list[Arm], axis: str, evaluated: bool) -> tuple[float, list[dict]] | None:
    """The largest value of the axis that all runs reach, and each arm's reward there; None if it is not known."""
    curves = [[curve(run, axis, evaluated) for run in arm.runs] for arm in arms]
    ends = [one.at[-1] if len(one.at) else np.nan for arm in curves for one in arm]
    if not np.isfinite(ends).all() or min(ends) <= 0:
        return None
    end = min(ends)
    return end, [_reward_at(arm, end) for arm in curves]


def _reward_at(curves: list[Curve], end: float) -> dict[str, float | None]:
    """Mean reward at a point of the axis: over seeds by Student's t, of one run by the binomial of its samples."""
    rewards = np.array([np.interp(end, one.at, one.reward) for one in curves])
    value = float(rewards.mean())
    if len(rewards) > 1:
        half = t.ppf((1 + LEVEL) / 2, len(rewards) - 1) * rewards.std(ddof=1) / np.sqrt(len(rewards))
        return {"value": value, "low": value - half, "high": value + half}
    samples = curves[0].samples[np.searchsorted(curves[0].at, end) if end in curves[0].at else -1]
    return {"value": value, **binomial(value, samples)}


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


def section(arms: list[Arm]) -> Section:
    """The tables of rewards."""
    evaluated = are_evaluated(arms)
    blocks: list = [OF_EVALUATIONS if evaluated else OF_TRAINING]
    if len(named := sources(arms)) > 1 and all(named) and not set.intersection(*named):
        blocks.append(
            "Warning: the arms were evaluated on other data, so they are other tasks and their rewards are not "
            "comparable."
        )
    rows = []
    for axis, name in AXES.items():
        if found := at_equal(arms, axis, evaluated):
            end, rewards = found
            rows.append([name, number(end, 3 if axis == "hours" else 0), *(with_interval(one, 3) for one in rewards)])
    names = [arm.name for arm in arms]
    if rows:
        blocks += ["Rewards at equal steps, seconds and rollouts, at the end that all runs reach:"]
        blocks.append(Table(["at equal", "at", *names], rows, "l" + "r" * (1 + len(names))))
        if len(arms) > 1:
            blocks.append(_who_wins(arms, evaluated))
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


def _who_wins(arms: list[Arm], evaluated: bool) -> str:
    """Which arm is ahead at equal seconds and at equal rollouts, which need not be the same."""
    lines = []
    for axis in ("spent", "rollouts"):
        if not (found := at_equal(arms, axis, evaluated)):
            continue
        _, rewards = found
        order = np.argsort([-one["value"] for one in rewards], kind="stable")
        first, second = (rewards[at] for at in order[:2])
        apart = first["low"] is not None and second["high"] is not None and first["low"] > second["high"]
        at = {"spent": "equal training seconds", "rollouts": "equal rollouts made"}[axis]
        doubt = (
            ""
            if apart
            else (
                "; the intervals overlap, so that is not significant"
                if first["low"] is not None
                else "; there is no interval"
            )
        )
        lines.append(f"At {at} {arms[order[0]].name} is ahead{doubt}.")
    return " ".join(lines)
