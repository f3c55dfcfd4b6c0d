"""What a training run leaves behind: scalars in TensorBoard's format, and lines on its output."""

import re
from pathlib import Path

import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEP_END = re.compile(r"Global step \d+: ")  # the trainer prints it at the end of a step
PHASES = {
    "timing/generation": "generation",
    "timing/make_experience": "experience",
    "timing/ppo_train": "training",
    "timing/broadcast": "sync",
}
_PHASE = re.compile(rf"'(?:{'|'.join(PHASES)})': ([-+.\de]+)")


def phase_seconds(printed: str) -> list[float]:
    """Seconds of each step that a run's output tells of: its PHASES, which patched and unpatched OpenRLHF measure alike."""
    steps = [line for line in printed.splitlines() if STEP_END.search(line)]
    return [sum(map(float, _PHASE.findall(step))) for step in steps]


def read_run(folder: Path) -> pd.DataFrame:
    """Scalars of the one run below `folder`, a row a step, a column a metric without the leading "train/".

    `wall_time` is the time of day at which the step was logged.

    Raises:
        ValueError: there is no run with steps below `folder`.
    """
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("train/")]
    columns = {
        tag.removeprefix("train/"): pd.Series({event.step: event.value for event in events.Scalars(tag)})
        for tag in tags
    }
    if not columns:
        raise ValueError(f"no training steps in {folder}: did the run reach its first step?")
    columns["wall_time"] = pd.Series({event.step: event.wall_time for event in events.Scalars(tags[0])})
    return pd.DataFrame(columns).sort_index()
