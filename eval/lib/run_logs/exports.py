"""What W&B's pages and its API give of runs: histories as CSV or JSON, and the CSV of a chart."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from lib.given import LONGEST, text_lines, text_of
from lib.run_logs.starts import EVAL, TRAIN, Start, numbered

HISTORY = "the run's history, as pandas writes it: wandb.Api().run(...).scan_history() as CSV or JSON"
AXES = {TRAIN: "train/global_step", EVAL: "eval/global_step"}
TABLE_OF_RUNS = {"Name", "State", "Created", "Runtime"}
DOWNLOAD = ["Wall time", "Step", "Value"]  # of TensorBoard's page
OF_TENSORBOARD = "is a chart of TensorBoard, which does not say its tag: give the folder with the event files"
LONG = ["step", "tag", "value"]  # a row a scalar, as readers of event files give them
RUN_COLUMNS = ("run_id", "run_name", "dir_name", "run")  # of tables that have several runs
BIN_ENDS = ("__MIN", "__MAX")
NO_NUMBERS = ["nan", "infinity", "-infinity", "inf", "-inf"]
MOST_STEPS = 1e9
SPACE = re.compile(r"\s*")
TAG = re.compile(r"(.*) - ((?:train|eval)/\S+)")


def csv_rows(path: Path, errors: str = "strict") -> tuple[list[list[str]], str]:
    """The cells of each row, and the separator: that of the first line. Lines and cells are as any program ends them.

    Raises:
        ValueError: a cell is longer than LONGEST, or the text is no CSV.
    """
    separator = max(",;\t", key=next(text_lines(path, errors), "").count)
    # A logged sample may be longer than Python's limit, which is the whole process's.
    usual = csv.field_size_limit(LONGEST)
    rows = csv.reader(text_lines(path, errors), delimiter=separator)
    try:
        return list(rows), separator
    except csv.Error as error:
        raise ValueError(f"{path} line {rows.line_num}: {error}") from None
    finally:
        csv.field_size_limit(usual)


def read_json(path: Path) -> dict[str, list[Start]]:
    """The starts of each run in a history: a JSON list, an object a row, or pandas' other forms.

    Raises:
        ValueError: it is something else.
    """
    found, cut = _json_values(path, text_of(path))
    if found and isinstance(found[0], list) and found[0] and isinstance(found[0][0], list):
        raise ValueError(f"{path} {OF_TENSORBOARD}")
    frame = _frame_of_json(found)
    if frame is None or frame.empty:
        raise ValueError(f"{path} is no history: export {HISTORY}")
    if len(frame) == 1 and "_wandb" in frame:
        raise ValueError(f"{path} has one value a run: export {HISTORY}")
    return {name: _starts(path, rows, cut) for name, rows in _by_run(frame)}


def _json_values(path: Path, text: str) -> tuple[list, bool]:
    """The values of a JSON text, one behind the other; whether the last one is cut.

    Raises:
        ValueError: what is no JSON is not at the end.
    """
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := SPACE.match(text, at).end()) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            if not found or "\n{" in text[at:]:
                number = text.count("\n", 0, at) + 1
                raise ValueError(f"{path}: line {number} is no JSON: export {HISTORY}") from None
            return found, True
        found.append(value)
    return found, False


def _frame_of_json(found: list) -> pd.DataFrame | None:
    """A history of JSON values: rows, or the columns as pandas' to_json and to_dict give them; None if it is none."""
    rows = found[0] if len(found) == 1 else found
    if isinstance(rows, dict) and isinstance(rows.get("data"), list) and {"columns", "schema"} & {*rows}:
        rows, columns = rows["data"], [*map(str, _cells(rows.get("columns")))]
    elif isinstance(rows, dict) and isinstance(rows.get(AXES[TRAIN]), (dict, list)):
        rows, columns = [dict(zip(rows, row)) for row in zip(*map(_cells, rows.values()))], None
    else:
        rows, columns = [rows] if isinstance(rows, dict) else rows, None
    if not isinstance(rows, list) or not all(isinstance(row, list if columns else dict) for row in rows):
        return None
    return pd.DataFrame([dict(zip(columns, row)) for row in rows] if columns else rows)


def _cells(column: object) -> list:
    return list(column.values()) if isinstance(column, dict) else column if isinstance(column, list) else []


def read_csv(path: Path) -> dict[str, list[Start]]:
    """The starts of each run in a CSV file; a history is of one run, without a name.

    Raises:
        ValueError: the file is another export; the message names the one that would do.
    """
    frame = _frame(path)
    if TABLE_OF_RUNS <= {*frame}:
        raise ValueError(f"{path} is a table of runs, with one value a run: export {HISTORY}")
    if [*frame][:3] == DOWNLOAD:
        raise ValueError(f"{path} {OF_TENSORBOARD}")
    if {"prompt_id", "tokens"} <= {*frame}:
        raise ValueError(
            f"{path} is a trace: give the run's log as NAME=FOLDER, and this with --trace NAME={path.name}"
        )
    if {*LONG} <= {*frame}:
        return {name: [_long(path, rows)] for name, rows in _by_run(frame)}
    if AXES[TRAIN] in frame and any(
        TAG.fullmatch(str(column)) is None and str(column).startswith(TRAIN) and column != AXES[TRAIN]
        for column in frame
    ):
        return {name: _starts(path, rows) for name, rows in _by_run(frame)}
    return _charts(path, frame)


def _by_run(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each run, by its name; the name is empty where there is only one."""
    column = next((name for name in RUN_COLUMNS if name in frame and frame[name].astype(str).nunique() > 1), None)
    return [("", frame)] if column is None else [*frame.groupby(frame[column].astype(str), sort=False)]


def _long(path: Path, frame: pd.DataFrame) -> Start:
    clock = _numbers(frame["wall_time"]) if "wall_time" in frame else pd.Series(np.nan, frame.index)
    table = frame[LONG].assign(step=_step_numbers(frame["step"]), value=_numbers(frame["value"]), wall_time=clock)
    return Start(path.name, table.dropna(subset="step").astype({"step": int}))


def _frame(path: Path) -> pd.DataFrame:
    rows, separator = csv_rows(path)
    if len(rows) < 2 or not rows[0]:
        raise ValueError(f"{path} has no rows: export {HISTORY}")
    titles, body = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]  # a last row that is cut is none
    frame = pd.DataFrame(body, columns=titles)
    frame = frame.loc[:, ~frame.columns.duplicated()]
    if separator != "," and not any("." in cell for row in rows for cell in row):
        frame = frame.map(lambda cell: cell.replace(",", "."))
    return frame


def _numbers(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce")


def _step_numbers(column: pd.Series) -> pd.Series:
    """NaN where there is none."""
    numbers = _numbers(column)
    return numbers.where(numbers.between(0, MOST_STEPS))


def _rows(cells: pd.Series, step: pd.Series, tag: str, clock: pd.Series | float = np.nan) -> pd.DataFrame:
    """The rows of one metric: where it has a cell, and where the step has a number."""
    given = cells.notna() & (cells.astype(str) != "") & ~cells.map(lambda cell: isinstance(cell, (dict, list)))
    rows = pd.DataFrame({"step": step, "tag": tag, "value": _numbers(cells.where(given)), "wall_time": clock})
    return rows[given & step.notna()].astype({"step": int})


def _starts(path: Path, frame: pd.DataFrame, cut: bool = False) -> list[Start]:
    """The starts of a history. Rows of tables are in it, and rows of evaluations between those of training."""
    if AXES[TRAIN] not in frame:
        raise ValueError(f"{path} has no column {AXES[TRAIN]}: export {HISTORY}")
    clock = _numbers(frame["_timestamp"]) if "_timestamp" in frame else np.nan
    # Rows are in their order: where the number of steps does not grow, a resumed run goes on.
    of_training = _step_numbers(frame[AXES[TRAIN]]).dropna()
    number = (of_training.diff() <= 0).cumsum().reindex(frame.index).ffill().fillna(0)
    pieces = []
    for prefix, axis in AXES.items():
        for tag in [name for name in frame if axis in frame and str(name).startswith(prefix) and name != axis]:
            rows = _rows(frame[tag], _step_numbers(frame[axis]), tag, clock)
            words = frame.loc[rows.index, tag].astype(str).str.lower()
            if len(rows) and (rows["value"].notna() | words.isin(NO_NUMBERS)).all():
                pieces.append(rows)
    if not pieces:
        raise ValueError(f"no training steps in {path}: did the run reach its first step?")
    table = pd.concat(pieces).sort_index(kind="stable")
    return numbered(path.name, [rows for _, rows in table.groupby(number[table.index].to_numpy())], cut)


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
        runs.setdefault(match[1], []).append(_rows(frame[title], _step_numbers(frame[titles[0]]), match[2]))
    return {name: [Start(path.name, pd.concat(pieces))] for name, pieces in runs.items()}
