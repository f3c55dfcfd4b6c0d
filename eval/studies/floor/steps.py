"""The steps of the arms' runs, from their logs."""

import json
from pathlib import Path

import pandas as pd
from lib.comparison.timed_steps import read_steps
from lib.run_logs.read import read_run
from lib.turns import paused_seconds, without_pauses

PARTS = ["generation", "experience", "training", "sync", "rest"]
WORK = {"rollout/num_samples": "samples", "rollout/response_length_mean": "response", "rollout/reward_mean": "reward"}
COLUMNS = ["step", "seconds", *PARTS, "samples", "tokens", "reward"]


def read_ours(run: Path, steps: int, pauses: list[list[float]], warm_up: int) -> pd.DataFrame:
    """The rows of `lib.comparison.timed_steps.read_steps`, of OpenRLHF patched or not, with the work of each step.

    That is its `samples`, the `tokens` of all their responses, and their mean `reward`.
    """
    timed = read_steps(run, steps, pauses, warm_up)
    work = read_run(run / "tensorboard/run")[[*WORK]].rename(columns=WORK).loc[timed["step"]].reset_index(drop=True)
    return timed.join(work).assign(tokens=work["samples"] * work["response"])[COLUMNS]


def read_one_process(run: Path, steps: int, pauses: list[list[float]], warm_up: int) -> pd.DataFrame:
    """The same of an arm that wrote a StepLog."""
    log = pd.DataFrame([json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()])
    paused = paused_seconds(log, pauses)
    log = log.assign(
        seconds=log["wall_time"].diff() - paused, generation=without_pauses(log["generation"], paused)
    ).iloc[warm_up : warm_up + steps]
    if len(log) < steps:
        raise ValueError(f"{run} has {len(log)} of {steps} steps after the {warm_up} of the warm-up")
    return log.assign(rest=log["seconds"] - log[PARTS[:-1]].sum(axis=1))[COLUMNS].reset_index(drop=True)
