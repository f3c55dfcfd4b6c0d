"""Where the seconds go: of a step, of its parts, of short and long rounds, and what is done in an hour."""

import numpy as np
import pandas as pd
from lib.run_report.blocks import of_steps, ratio
from lib.run_report.content import Section, Table, number, table, with_interval
from lib.run_report.measured import PARTS, Arm
from lib.run_report.statistics import times_as_fast, with_ends
from lib.run_report.verdict import verdict

SAME_SAMPLES = 0.01  # share by which samples of a step may differ between arms whose steps are compared
AN_HOUR = {"samples": "samples", "tokens": "response tokens", "groups": "groups kept"}


def times_faster(base: Arm, mine: Arm, per_sample: bool = False) -> dict[str, float | None]:
    """How many times as fast a step of `mine` is, by mean seconds: over seeds that both have, with one alone over
    steps.

    Args:
        per_sample: by the seconds of a sample.
    """
    means = {arm.name: {run.seed: mean_seconds(run.later, per_sample) for run in arm.runs} for arm in (base, mine)}
    frame = pd.DataFrame(means)
    if len(frame.dropna()) > 1 and base.name != mine.name:
        return times_as_fast(frame, base.name, mine.name) or {"value": np.nan, "low": None, "high": None}
    columns = [[seconds_of(run.later, per_sample) for run in arm.runs] for arm in (base, mine)]
    return ratio(*columns)


def mean_seconds(later: pd.DataFrame, per_sample: bool) -> float:
    return float(later["seconds"].mean() / (later["samples"].mean() if per_sample else 1))


def seconds_of(later: pd.DataFrame, per_sample: bool) -> np.ndarray:
    return (later["seconds"] / (later["samples"].mean() if per_sample else 1)).to_numpy(float)


def differ_in_samples(base: Arm, mine: Arm) -> bool:
    """Whether steps train so different numbers of samples that their seconds are not comparable."""
    means = [pd.concat([run.later["samples"] for run in arm.runs]).mean() for arm in (base, mine)]
    return bool(abs(means[1] / means[0] - 1) > SAME_SAMPLES)


def known(arm: Arm, column: str) -> bool:
    """Whether any run of the arm has the column."""
    return any(column in run.steps and run.steps[column].notna().any() for run in arm.runs)


def verdicts(base: Arm, others: list[Arm]) -> list[str]:
    """A sentence for each arm against the base."""
    return [_verdict(base, mine) for mine in others]


def _verdict(base: Arm, mine: Arm) -> str:
    if len({run.asynchronous for arm in (base, mine) for run in arm.runs}) > 1:
        return (
            f"{mine.name} against {base.name}: one is asynchronous and one is not, so their steps are no like things."
        )
    per_sample = differ_in_samples(base, mine)
    steps = min(sum(len(run.later) for run in arm.runs) for arm in (base, mine))
    found = times_faster(base, mine, per_sample)
    return verdict(mine.name, base.name, found, steps, "a sample" if per_sample else "a step")


def section(arms: list[Arm], base: Arm) -> Section:
    """The tables of seconds."""
    others = [arm for arm in arms if arm is not base]
    blocks: list = [
        "Seconds of a step are the sum of its four parts, which patched and unpatched OpenRLHF measure alike. The "
        "first step of every start warms up and is left out. Medians and means of a run have a bootstrap over blocks "
        "of steps, which does not know how much runs differ; ratios of several seeds have Student's t over seeds. "
        "Verdicts go by means, since a median does not see long rounds.",
        table([_row(arm, base, arm is base and len(arms) > 1) for arm in arms]),
    ]
    if any(_rounds(arm) for arm in arms):
        rows = [row for arm in arms for row in _rounds(arm)]
        blocks += ["Rounds of tail batching:", table(rows, left=2)]
    blocks += ["Means of the parts in seconds, and what is done in an hour:", table([_hour(arm) for arm in arms])]
    if len(others) > 1:
        rows = [
            [mine.name, other.name, with_ends(times_faster(other, mine))]
            for at, mine in enumerate(others)
            for other in [base, *others[at + 1 :]]
        ]
        blocks += ["Each against each:", Table(["arm", "against", "a step times as fast"], rows, "llr")]
    return Section("Seconds", blocks)


def _row(arm: Arm, base: Arm, is_base: bool) -> dict[str, str]:
    values = [run.later["seconds"].to_numpy(float) for run in arm.runs]
    finite, all_steps = sum(int(np.isfinite(one).sum()) for one in values), sum(map(len, values))
    row = {
        "arm": f"{arm.name} (base)" if is_base else arm.name,
        "runs": str(len(arm.runs)),
        "steps, finite of all": f"{finite} of {all_steps}",
        "median s a step": with_interval(of_steps(values, np.median)),
        "mean s a step": with_interval(of_steps(values, np.mean)),
        "a step times as fast": "–" if arm is base else with_ends(times_faster(base, arm)),
    }
    for part in PARTS:
        columns = [run.later[part].to_numpy(float) for run in arm.runs]
        row[f"median {part}"] = with_interval(of_steps(columns, np.median))
    return row


def _rounds(arm: Arm) -> list[dict[str, str]]:
    """Long rounds of tail batching, and all other steps; nothing of an arm that has none."""
    if not any((run.later["long_round"] == 1).any() for run in arm.runs if "long_round" in run.later):
        return []
    rows = []
    for name, is_long in (("long", 1), ("all others", 0)):
        values = [
            run.later.loc[run.later["long_round"].eq(1) == bool(is_long), "seconds"].to_numpy(float)
            for run in arm.runs
        ]
        median = with_interval(of_steps(values, np.median))
        rows.append({"arm": arm.name, "rounds": name, "steps": str(sum(map(len, values))), "median s a step": median})
    return rows


def _hour(arm: Arm) -> dict[str, str]:
    """What the steps behind the warm-up do in an hour of their seconds, and the clock's share outside of them."""
    means = {part: np.mean([run.later[part].mean() for run in arm.runs]) for part in PARTS}
    row = {"arm": arm.name, **{f"mean {part}": number(mean) for part, mean in means.items()}}
    for column, name in AN_HOUR.items():
        rates = []
        for run in arm.runs:
            both = run.later[["seconds", column]].dropna() if column in run.steps else pd.DataFrame()
            rates += [3600 * both[column].sum() / both["seconds"].sum()] if len(both) else []
        row[f"{name} an hour"] = number(np.mean(rates), 0) if rates else "not known"
    clock = [
        1 - run.steps["spent"].iloc[-1] / 3600 / run.steps["hours"].iloc[-1]
        for run in arm.runs
        if run.steps["hours"].iloc[-1] > 0 and run.every == 1
    ]
    row["of the clock outside of steps"] = f"{max(np.mean(clock), 0):.0%}" if clock else "not known"
    return row
