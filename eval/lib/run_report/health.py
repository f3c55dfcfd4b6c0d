"""Lengths, truncation and the signs of healthy learning, side by side."""

import numpy as np
from lib.run_report.content import Section, number, table
from lib.run_report.measured import HEALTH, WEIGHTS, Arm
from lib.run_report.seconds import known

ENDS = 10  # steps at a run's start and end that are averaged


def section(arms: list[Arm]) -> Section:
    """The tables; a metric that no arm logs is left out."""
    blocks: list = [
        f"Means of the first and of the last {ENDS} steps; beside a metric that is not finite everywhere, how many "
        "steps have it.",
        table([_lengths(arm) for arm in arms]),
    ]
    names = HEALTH | WEIGHTS
    tags = [tag for tag in names if any(known(arm, tag) for arm in arms)]
    if tags:
        rows = [{"metric": names[tag], **{arm.name: ends_of(arm, tag) for arm in arms}} for tag in tags]
        blocks.append(table(rows))
    missing = [HEALTH[tag] for tag in HEALTH if tag not in tags]
    if missing:
        blocks.append(
            f"Not logged by any arm: {', '.join(missing)}. OpenRLHF logs entropy with --actor.entropy_coef only."
        )
    return Section("Lengths and health", blocks)


def _lengths(arm: Arm) -> dict[str, str]:
    return {
        "arm": arm.name,
        "trained response, tokens": ends_of(arm, "length", 0),
        "truncated": ends_of(arm, "truncated", 3),
        "samples a step": ends_of(arm, "samples", 0),
        "kept of the groups, %": ends_of(arm, "pass_rate", 0),
        "group size": ends_of(arm, "group_size", 1),
        "straggler rate, as logged": ends_of(arm, "straggler_rate", 3, none="not known"),
    }


def ends_of(arm: Arm, column: str, digits: int = 4, none: str = "–") -> str:
    """ "first → last", means over the runs of an arm; `none` where it is not logged."""
    if not known(arm, column):
        return none
    columns = [run.steps[column] for run in arm.runs if column in run.steps and run.steps[column].notna().any()]
    known_of = [column.dropna() for column in columns]
    first = np.mean([column.head(ENDS).mean() for column in known_of])
    last = np.mean([column.tail(ENDS).mean() for column in known_of])
    finite, count = sum(int(column.notna().sum()) for column in columns), sum(map(len, columns))
    text = f"{number(first, digits)} → {number(last, digits)}"
    return text if finite == count else f"{text} ({finite} of {count} finite)"
