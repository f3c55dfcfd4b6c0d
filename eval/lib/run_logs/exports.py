"""What W&B's pages and its API give of runs: histories as CSV or JSON, and the CSV of a chart."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from lib.run_logs.starts import COLUMNS, EVAL, TRAIN, Start

HISTORY = "the run's history, as pandas writes it: wandb.Api().run(...).scan_history() as CSV or JSON"
AXES = {TRAIN: "train/global_step", EVAL: "eval/global_step"}
TABLE_OF_RUNS = {"Name", "State", "Created", "Runtime"}
DOWNLOAD = ["Wall time", "Step", "Value"]  # of TensorBoard's page
BIN_ENDS = ("__MIN", "__MAX")
MOST_STEPS = 1e9
TAG = re.compile(r"(.*) - ((?:train|eval)/\S+)")


def text_of(path: Path) -> str:
    """The text of an export: UTF-8, or what its byte order mark says.

    Raises:
        ValueError: it is no text.
    """
    content = path.read_bytes()
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text: give a TensorBoard folder, an export of W&B or a log") from None


def read_json(path: Path) -> list[Start]:
    """The starts in a history as a JSON list, or with a JSON object a line.

    Raises:
        ValueError: it is something else.
    """
    text, cut, rows = text_of(path), False, []
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                if number + 1 < len(lines) or not rows:
                    raise ValueError(f"{path}: line {number + 1} is no JSON: export {HISTORY}") from None
                cut = True
    else:
        rows = whole if isinstance(whole, list) else [whole]
    if not all(isinstance(row, dict) for row in rows) or not rows:
        raise ValueError(f"{path} is no history: export {HISTORY}")
    if len(rows) == 1 and "_wandb" in rows[0]:
        raise ValueError(f"{path} has one value a run: export {HISTORY}")
    return _starts(path, pd.DataFrame(rows), cut)


def read_csv(path: Path) -> dict[str, list[Start]]:
    """The starts of each run in a CSV file; a history is of one run, without a name.

    Raises:
        ValueError: the file is another export; the message names the one that would do.
    """
    frame = _frame(path)
    if TABLE_OF_RUNS <= {*frame}:
        raise ValueError(f"{path} is a table of runs, with one value a run: export {HISTORY}")
    if [*frame][:3] == DOWNLOAD:
        raise ValueError(
            f"{path} is a chart of TensorBoard, which does not say its tag: give the folder with the event files"
        )
    if {"prompt_id", "tokens"} <= {*frame}:
        raise ValueError(
            f"{path} is a trace: give the run's log as NAME=FOLDER, and this with --trace NAME={path.name}"
        )
    if AXES[TRAIN] in frame and any(
        TAG.fullmatch(str(column)) is None and str(column).startswith(TRAIN) and column != AXES[TRAIN]
        for column in frame
    ):
        return {"": _starts(path, frame, cut=False)}
    return _charts(path, frame)


def _frame(path: Path) -> pd.DataFrame:
    text = text_of(path)
    head = text.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    rows = list(csv.reader(io.StringIO(text), delimiter=separator))
    if len(rows) < 2 or not rows[0]:
        raise ValueError(f"{path} has no rows: export {HISTORY}")
    titles, body = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]  # a last row that is cut is none
    frame = pd.DataFrame(body, columns=titles)
    frame = frame.loc[:, ~frame.columns.duplicated()]
    if separator != "," and not text.count("."):
        frame = frame.map(lambda cell: cell.replace(",", "."))
    return frame


def _numbers(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce")


def _step_numbers(column: pd.Series) -> pd.Series:
    """NaN where there is none."""
    numbers = _numbers(column)
    return numbers.where(numbers.between(0, MOST_STEPS))


def _starts(path: Path, frame: pd.DataFrame, cut: bool) -> list[Start]:
    """The starts of a history. Rows of tables are in it, and rows of evaluations between those of training."""
    if AXES[TRAIN] not in frame:
        raise ValueError(f"{path} has no column {AXES[TRAIN]}: export {HISTORY}")
    clock = _numbers(frame["_timestamp"]) if "_timestamp" in frame else pd.Series(np.nan, frame.index)
    step = _step_numbers(frame[AXES[TRAIN]])
    # Rows are in their order: where the number of steps does not grow, a resumed run goes on.
    of_training = step.dropna()
    number = (of_training.diff() <= 0).cumsum().reindex(frame.index).ffill().fillna(0)
    pieces = []
    for prefix, axis in AXES.items():
        at = _step_numbers(frame[axis]) if axis in frame else pd.Series(np.nan, frame.index)
        for tag in [name for name in frame if str(name).startswith(prefix) and name != axis]:
            given = (
                frame[tag].notna()
                & (frame[tag].astype(str) != "")
                & at.notna()
                & ~frame[tag].map(lambda cell: isinstance(cell, (dict, list)))
            )
            values = frame.loc[given, tag]
            numbers = _numbers(values)
            if (
                len(numbers)
                and (
                    numbers.notna()
                    | values.astype(str).str.lower().isin(["nan", "infinity", "-infinity", "inf", "-inf"])
                ).all()
            ):
                pieces.append(
                    pd.DataFrame(
                        {
                            "step": at[given].astype(int),
                            "tag": tag,
                            "value": numbers,
                            "wall_time": clock[given],
                            "number": number[given],
                        }
                    )
                )
    if not pieces:
        raise ValueError(f"no training steps in {path}: did the run reach its first step?")
    table = pd.concat(pieces).sort_index(kind="stable")
    groups = [rows for _, rows in table.groupby("number")]
    return [
        Start(
            f"{path.name} start {at + 1}" if len(groups) > 1 else path.name,
            rows[COLUMNS],
            cut and at + 1 == len(groups),
        )
        for at, rows in enumerate(groups)
    ]


def _charts(path: Path, frame: pd.DataFrame) -> dict[str, list[Start]]:
    """The runs of a chart: its first column is the axis, the others have a run's name and at the end the tag."""
    titles = [str(title) for title in frame]
    found = {title: match for title in titles[1:] if (match := TAG.fullmatch(title)) and not title.endswith(BIN_ENDS)}
    if not found:
        raise ValueError(f"{path} is no export that is known: export {HISTORY}")
    if titles[0] != AXES[TRAIN]:
        raise ValueError(
            f"{path} has {titles[0][:40]!r} for its x axis, which is no number of steps: choose {AXES[TRAIN]}, "
            f"or export {HISTORY}"
        )
    runs: dict[str, list[pd.DataFrame]] = {}
    for title, match in found.items():
        values, ends = _numbers(frame[title]), [
            _numbers(frame[title + end]) for end in BIN_ENDS if title + end in frame
        ]
        if len(ends) == 2 and ((ends[0] < values) & (values < ends[1])).any():
            raise ValueError(f"{path}: its values are means of several steps: export {HISTORY}")
        at = _step_numbers(frame[titles[0]])
        given = (frame[title].astype(str) != "") & at.notna()
        rows = {
            "step": at[given].astype(int),
            "tag": match[2],
            "value": values[given],
            "wall_time": np.nan,
        }
        runs.setdefault(match[1], []).append(pd.DataFrame(rows))
    return {name: [Start(path.name, pd.concat(pieces)[COLUMNS])] for name, pieces in runs.items()}
