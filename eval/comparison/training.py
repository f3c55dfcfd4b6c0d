"""The training runs of a comparison, and the task that all arms of a seed start from."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from common.logs import STEP
from common.paths import ROOT
from common.runs import run_logged, train_command
from comparison.arms import EVALUATION
from comparison.tasks import COUNTDOWN, Task
from rich.console import Console
from rich.progress import Progress

EVALUATED = 64  # held-out problems


def make_task(folder: Path, seed: int, console: Console, task: Task = COUNTDOWN) -> None:
    """Make a warm-started model and its problems, once a seed; EVALUATED of the held-out problems are kept.

    Raises:
        ValueError: that failed.
    """
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


def train(
    task: Path, output: Path, tree: str, flags: list[str], seconds: float, progress: Progress, bar: int, name: str
) -> None:
    """Train until the steps have taken `seconds` and the evaluation after that is over, or the data end.

    Args:
        task: folder that `make_task` made.
        name: of the task.

    Raises:
        ValueError: the run failed.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [*train_command(tree, task, output, flags), "--eval.dataset", task / "data/evaluated.jsonl"]
    environment = {
        **os.environ,
        "REWARD_TASK": name,
        "REWARD_LOG": str(output / "rewards.log"),
        "PYTHONUNBUFFERED": "1",
    }
    pipe = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    process = subprocess.Popen(command, env=environment, **pipe)
    spent, stopped = None, False
    try:
        with (output / "train.log").open("w") as log:
            for line in process.stdout:
                log.write(line)
                if found := STEP.search(line):
                    spent = 0.0 if spent is None else spent + float(found[1])  # the first step warms vLLM up
                    progress.update(bar, completed=min(spent, seconds))
                if (spent or 0.0) >= seconds and "Evaluation completed" in line:
                    stopped = True
                    process.send_signal(signal.SIGTERM)
                    break
    finally:
        process.terminate()  # the script ends its Ray cluster
        process.stdout.close()
        code = process.wait()
    if not stopped:
        raise ValueError(
            f"a run ended with exit code {code} after {spent or 0:.0f} of {seconds:.0f} s, see {output / 'train.log'}"
        )
