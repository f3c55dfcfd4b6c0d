"""The training runs of a comparison, and the task that all arms of a seed start from."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.comparison.arms import EVALUATION
from lib.comparison.tasks import COUNTDOWN, Task, task_of
from lib.paths import ROOT, set_aside
from lib.run_logs.console import phase_seconds
from lib.runs import run_logged, set_done, train_command
from lib.turns import refuse_if_written, take_turns
from rich.console import Console

EVALUATED = 64  # held-out problems
# The trainer prints both.
EVALUATION_START, EVALUATION_END = re.compile("Evaluation start time"), re.compile("Evaluation completed")


class PolicyRun(NamedTuple):
    """A training run: its policy, folder, tree of build/ and flags, and the seconds of training after the first step, which
    warms vLLM up; and what `state_of` says of its tree and task."""

    policy: str
    folder: Path
    tree: str
    flags: list[str]
    seconds: float
    state: dict[str, str] = {}

    @property
    def made_with(self) -> dict:
        """What the run depends on."""
        return {"tree": self.tree, "flags": self.flags, "seconds": self.seconds, **self.state}


def make_task(folder: Path, seed: int, console: Console, task: Task = COUNTDOWN) -> None:
    """Make a warm-started model and its problems, once a seed; EVALUATED of the held-out problems are kept.

    Raises:
        ValueError: that failed, or the folder holds another task.
    """
    if (folder / "made").exists() and (made := task_of(folder)) != task:
        raise ValueError(f"--task {task.name}: {folder} holds the task {made.name}: take another --output")
    if not (folder / "made").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, ROOT / "train_scripts/warm_start.py", "--task", task.name, "--output", folder]
        command += ["--seed", seed, "--steps", task.warm_start_steps]
        with console.status(f"seed {seed}: supervised warm start (2 minutes)"):
            if run_logged(command, folder / "log"):
                raise ValueError(f"the warm start failed, see {folder / 'log'}")
        problems = (folder / "data/heldout.jsonl").read_text().splitlines(keepends=True)
        (folder / "data/evaluated.jsonl").write_text("".join(problems[:EVALUATED]))
        (folder / "made").touch()
    if not (folder / "data/start.csv").exists():
        with console.status(f"seed {seed}: evaluation of the start"):
            evaluate_start(folder, seed, task)


def evaluate_start(folder: Path, seed: int, task: Task) -> None:
    """Write data/start.csv, a row like those of `read_evaluations`: what the model reaches that all runs start from.

    Raises:
        ValueError: the evaluation failed.
    """
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base", "python", ROOT / "eval/evaluate.py"]
    command += ["--models", folder / "model", "--dataset", folder / "data/evaluated.jsonl"]
    command += ["--responses", folder / "start.jsonl", "--grader", task.grader]
    command += ["--samples", EVALUATION["eval.n_samples_per_prompt"], "--max_new_tokens", task.max_new_tokens]
    command += ["--max_model_len", task.max_len, "--seed", seed, "--enforce_eager"]
    if run_logged(command, folder / "start.log"):
        raise ValueError(f"the evaluation of the start failed, see {folder / 'start.log'}")
    problems = [json.loads(line) for line in (folder / "start.jsonl").read_text().splitlines()]
    right = " ".join(str(sum(problem["correct"])) for problem in problems)
    tokens = float(np.mean([problem["tokens"] for problem in problems]))
    start = {"step": 0, "seconds": 0.0, "samples": len(problems[0]["correct"]), "right": right, "tokens": tokens}
    pd.DataFrame([start]).to_csv(folder / "data/start.csv", index=False)


def train_in_turns(task: Path, runs: list[PolicyRun], on_seconds: Callable[[str, float], None], name: str) -> None:
    """Train policies in turns, each until its steps have taken its seconds and the evaluation after that is over.

    Turns change in the evaluations, whose seconds do not count, neither here nor for group control. Every run that ends is
    noted as done, with the policies that it took turns with.

    Args:
        task: folder that `make_task` made.
        runs: to train.
        on_seconds: called with a policy and its seconds so far.
        name: of the task.

    Raises:
        ValueError: a run failed or ended too early.
    """
    commands = {}
    for run in runs:
        refuse_if_written(run.folder / "train.log")
        set_aside(run.folder)
        run.folder.mkdir(parents=True)
        command = ["env", f"REWARD_TASK={name}", f"REWARD_LOG={run.folder / 'rewards.log'}"]
        command += train_command(run.tree, task, run.folder, run.flags)
        command += ["--eval.dataset", task / "data/evaluated.jsonl"]
        commands[run.policy] = command, run.folder / "train.log"
    left = {run.policy: run for run in runs}
    spent: dict[str, float] = {}

    def on_turn(policy: str, printed: str) -> re.Pattern | None:
        took = phase_seconds(printed)
        spent[policy] = spent[policy] + sum(took) if policy in spent else sum(took[1:])
        on_seconds(policy, min(spent[policy], left[policy].seconds))
        return EVALUATION_END if spent[policy] >= left[policy].seconds else None

    def on_end(policy: str) -> None:
        run = left.pop(policy)
        set_done(run.folder, run.made_with, [run.policy for run in runs])

    take_turns(commands, EVALUATION_START, 1, on_turn, on_end)
    for policy, run in left.items():
        raise ValueError(f"a run ended after {spent[policy]:.0f} of {run.seconds:.0f} s, see {commands[policy][1]}")
