"""Seconds of the steps of a run that took turns with others."""

from pathlib import Path

import pandas as pd
from lib.comparison.logs import PHASES
from lib.comparison.step_arms import WARM_UP
from lib.run_logs.read import read_run
from lib.turns import paused_seconds, without_pauses

LOGGED_PARTS = {"step_seconds/idle_tail": "idle_tail", "step_seconds/optimizer": "optimizer"}  # by this project alone


def read_steps(run: Path, steps: int, pauses: list[list[float]], warm_up: int = WARM_UP) -> pd.DataFrame:
    """A row for each of the run's first `steps` steps after the warm-up.

    Args:
        run: its folder.
        steps: to read.
        pauses: [begin, end] of each, as `take_turns` returns them.
        warm_up: steps of it.

    Returns:
        step; `seconds` from the end of the step before to its end, on the clock without pauses; the PHASES and
        LOGGED_PARTS of them, NaN where they are not logged; `rest`, seconds in none of the PHASES.

    Raises:
        ValueError: there are fewer steps.
    """
    log = read_run(run / "tensorboard/run")
    frame = log.reindex(columns=[*PHASES, *LOGGED_PARTS]).rename(columns=PHASES | LOGGED_PARTS)
    paused = paused_seconds(log, pauses)
    frame = frame.assign(
        seconds=log["wall_time"].diff() - paused,
        generation=without_pauses(frame["generation"], paused),
        # A pause may fall before the tail begins, and is longer than that then.
        idle_tail=without_pauses(frame["idle_tail"], paused),
    )
    frame = frame.iloc[warm_up : warm_up + steps]
    if len(frame) < steps:
        raise ValueError(
            f"{run} has {len(frame)} of {steps} steps after the {warm_up} of the warm-up: ask for fewer --steps"
        )
    return (
        frame.assign(rest=frame["seconds"] - frame[[*PHASES.values()]].sum(axis=1)).rename_axis("step").reset_index()
    )
