"""The lines that OpenRLHF's logger prints at the end of a step and of an evaluation."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.given import text_lines
from lib.run_logs.starts import COLUMNS, EVAL, TRAIN, Start, numbered

PHASES = {
    "timing/generation": "generation",
    "timing/make_experience": "experience",
    "timing/ppo_train": "training",
    "timing/broadcast": "sync",
}
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # colours, and what a bar moves the cursor by
# With the logger's own prefix: a printed sample may quote "Global step 99:".
STEP_END = re.compile(r"\w+\.py:\d+\] (?:\S )?Global step \d+: \{")
# Before it stand names of Ray's actors, a bar, and what clusters put before each line.
LINE = re.compile(
    r"(?:(?!INFO \d\d-\d\d ).)*?INFO (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \w+\.py:\d+\] (?:\S )?"
    r"(?:Global step (?P<train>\d{1,9}): |Evaluation completed in [^{]*global_step (?P<eval>\d{1,9}), eval_metrics: )"
    r"(?P<metrics>\{.*\})\s*"
)
PAIR = re.compile(r"'([^']+)': ((?:[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf)|nan))(?=[,}])", re.IGNORECASE)
OTHERS = (
    ("verl", re.compile(r"\bstep:\d+ - \S+:")),
    ("TRL", re.compile(r"^\{'loss': ", re.MULTILINE)),
)


class Line(NamedTuple):
    """A line of a step or of an evaluation, by the prefix of its metrics; its time has no year."""

    prefix: str
    step: int
    time: str
    metrics: dict[str, float]


def lines_of(text: str) -> list[Line]:
    """The whole lines, in their order; a line that is repeated counts once."""
    return _lines(re.split(r"[\r\n]+", text))


def _lines(lines: Iterable[str]) -> list[Line]:
    found, seen = [], set()
    for line in lines:
        if "lobal" not in line or (line := CONTROL.sub("", line).rstrip("\n")) in seen:
            continue  # most are of other programs
        if match := LINE.fullmatch(line):
            seen.add(line)
            prefix, step = (TRAIN, match["train"]) if match["train"] else (EVAL, match["eval"])
            metrics = {tag: float(value) for tag, value in PAIR.findall(match["metrics"])}
            found.append(Line(prefix, int(step), match["time"], metrics))
    return found


def phase_seconds(printed: str) -> list[float]:
    """Seconds of each step in a run's output: its PHASES, which patched and unpatched OpenRLHF measure alike."""
    steps = [line.metrics for line in lines_of(printed) if line.prefix == TRAIN]
    return [sum(metrics.get(tag, 0.0) for tag in PHASES) for metrics in steps]


def read_console(path: Path) -> list[Start]:
    """The starts in a log; a run that is resumed may go on in the same file.

    Raises:
        ValueError: it has no steps of OpenRLHF's.
    """
    lines = _lines(text_lines(path, skip=True))
    if not any(line.prefix == TRAIN for line in lines):
        raise ValueError(_without_steps(path))
    rows, start, last = [], 0, -1
    for line, at in zip(lines, _seconds([line.time for line in lines])):
        if line.prefix == TRAIN:
            start, last = start + (line.step <= last), line.step
        rows += [(start, line.step, line.prefix + tag, value, at) for tag, value in line.metrics.items()]
    return numbered(
        path.name, [group for _, group in pd.DataFrame(rows, columns=["start", *COLUMNS]).groupby("start")]
    )


def _without_steps(path: Path) -> str:
    bars = False
    for text in text_lines(path, skip=True):
        text = CONTROL.sub("", text)
        for framework, line in OTHERS:
            if line.search(text):
                return f"{path} is a log of {framework}, whose steps and seconds differ: give a run of OpenRLHF"
        bars = bars or "Train epoch [" in text
    if bars:
        return f"{path} has bars only, no figures of steps: give the TensorBoard folder of the run"
    return f"no training steps in {path}: did the run reach its first step?"


def _seconds(times: list[str]) -> np.ndarray:
    """Seconds of the times since the first; NaN where all are the same."""
    moments = pd.to_datetime(
        pd.Series([f"2000-{time}" for time in times]), format="%Y-%m-%d %H:%M:%S", errors="coerce"
    )
    seconds = np.array((moments - moments.iloc[0]).dt.total_seconds(), float)
    seconds += np.cumsum(np.diff(seconds, prepend=0) < -180 * 86400) * 366 * 86400  # over the end of a year
    return seconds if len(seconds) < 2 or np.ptp(seconds) else np.full(len(seconds), np.nan)
