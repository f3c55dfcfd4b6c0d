"""Traces of runs, a row a rollout: stragglers, and the weight of prompts by length, alike for both arms."""

from pathlib import Path

import numpy as np
import pandas as pd
from lib.given import MEMORY, reading
from lib.run_logs.exports import csv_rows
from lib.run_report.content import Section, Table, number
from lib.run_report.statistics import LEVEL
from scipy.stats import binomtest

REQUIRED = ["prompt_id", "sample_id", "tokens"]
RATIO = 2.5  # longest over median rollout of a group, from which it has a straggler; as --rollout.sagc.straggler_ratio
BINS, OF_A_BIN = 10, 10  # at most, and the groups of an arm that a bin has at least on average


def read_trace(path: Path) -> pd.DataFrame:
    """A row a rollout whose length is known: `group`, tokens, `correct` (NaN where it is not told), `stopped`.

    Separators, encodings and fractions of tokens are as spreadsheets leave them. A last line that is cut and rows that
    are repeated count for nothing.

    Raises:
        ValueError: it is no trace; the message is one line.
    """
    with reading(f"--trace {path}", 4 * MEMORY):  # a run's trace may have a million rows
        return _read_trace(path)


def _read_trace(path: Path) -> pd.DataFrame:
    rows, _ = csv_rows(path, errors="replace")
    titles = rows[0] if rows else []
    if missing := [name for name in REQUIRED if name not in titles]:
        raise ValueError(f"--trace {path} has no column {missing[0]}: give the file of --rollout.trace")
    frame = pd.DataFrame([row for row in rows[1:] if len(row) == len(titles)], columns=titles)
    frame = frame.drop_duplicates(["prompt_id", "sample_id", *(["step"] if "step" in frame else [])], keep="last")
    for name in ("tokens", "correct", "stopped"):
        frame[name] = pd.to_numeric(frame[name], errors="coerce") if name in frame else np.nan
    frame = frame[frame["tokens"] >= 0]
    if frame.empty:
        raise ValueError(f"--trace {path} has no rollouts")
    # This package names a rollout GROUP-PLACE; else a group is a step's rollouts of a prompt.
    numbered = frame["sample_id"].str.fullmatch(r"\d+-\d+").all()
    group = frame["sample_id"].str.partition("-")[0] if numbered else ""
    step = frame["step"] if "step" in frame and not numbered else ""
    return frame.assign(group=frame["prompt_id"] + " " + step + " " + group)


def straggler_rate(frame: pd.DataFrame, ratio: float = RATIO) -> dict[str, float]:
    """Share of groups with a straggler, its interval, and the groups that count: those without a stopped rollout."""
    groups = frame.groupby("group")
    whole = groups["stopped"].sum() == 0
    tokens = groups["tokens"].agg(["max", "median", "size"])[whole.to_numpy()]
    tokens = tokens[tokens["size"] > 1]
    events = int((tokens["max"] >= ratio * tokens["median"]).sum())
    if tokens.empty:
        return {"value": np.nan, "low": None, "high": None, "groups": 0, "stopped": int((~whole).sum())}
    ends = binomtest(events, len(tokens)).proportion_ci(LEVEL, method="wilson")
    counts = {"groups": len(tokens), "stopped": int((~whole).sum())}
    return {"value": events / len(tokens), "low": ends.low, "high": ends.high, **counts}


def weight_by_length(frames: dict[str, pd.DataFrame]) -> list[list[str]]:
    """A row a bin of the groups by mean tokens, with ends that all arms share.

    It has where the bin ends, and of each arm the part of its groups, and of those that have a signal, whose rewards
    differ, so that they are trained. Few groups have fewer bins.
    """
    groups = {}
    for name, frame in frames.items():
        of_group = frame.groupby("group")
        right = of_group["correct"].agg(["min", "max"])
        signal = right["min"] != right["max"]
        groups[name] = pd.DataFrame(
            {"tokens": of_group["tokens"].mean(), "signal": signal.where(right["min"].notna())}
        )
    bins = int(np.clip(min(map(len, groups.values())) // OF_A_BIN, 3, BINS))
    tokens = np.concatenate([frame["tokens"] for frame in groups.values()])
    ends = np.quantile(tokens, np.arange(1, bins) / bins)
    rows = [[f"{at + 1} of {bins}", number(end, 0)] for at, end in enumerate([*ends, tokens.max()])]
    for frame in groups.values():
        place = np.searchsorted(ends, frame["tokens"])
        trained = place[frame["signal"] == True]  # noqa: E712  # NaN where rewards are not told
        for at, row in enumerate(rows):
            of_trained = (trained == at).mean() if len(trained) else np.nan
            row.append(f"{number(100 * (place == at).mean(), 0)} %, {number(100 * of_trained, 0)} %")
    return rows


def section(traces: dict[str, list[Path]], names: list[str], ratio: float = RATIO) -> Section:
    """The tables of traces."""
    frames = {
        name: pd.concat(
            [frame.assign(group=f"{at} " + frame["group"]) for at, frame in enumerate(map(read_trace, paths))]
        )
        for name, paths in traces.items()
    }
    unknown = [name for name in names if name not in frames]
    blocks: list = []
    if unknown:
        blocks.append(
            f"The straggler rate is not known for {', '.join(unknown)}: only a trace has the lengths of single "
            "rollouts for both arms in the same way (--trace NAME=FILE; --rollout.trace writes one)."
        )
    if frames:
        rows = []
        for name, frame in frames.items():
            found = straggler_rate(frame, ratio)
            ends = "" if found["low"] is None else f" [{number(found['low'], 3)}, {number(found['high'], 3)}]"
            rows.append([name, number(found["value"], 3) + ends, str(found["groups"]), str(found["stopped"])])
        blocks.append(f"A straggler is a rollout of at least {ratio:g} times its group's median tokens:")
        blocks.append(Table(["arm", "straggler rate", "groups", "left out, as they were stopped"], rows, "lrrr"))
        blocks.append(
            "Groups by their mean tokens, the shortest first: the part of an arm's groups, and of those with a signal. "
            "Where an arm's second number is another than the other arm's, prompts of that length weigh otherwise in "
            "its updates:"
        )
        titles = ["groups", "tokens up to", *frames]
        blocks.append(Table(titles, weight_by_length(frames), "lr" + "r" * len(frames)))
    return Section("Stragglers and weight by length", blocks)
