"""The training runs of a comparison, and the task that all arms of a seed start from."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
from common.logs import STEP
from common.paths import ROOT
from common.runs import run_logged, train_command
from comparison.arms import EVALUATION, MAX_NEW_TOKENS
from rich.console import Console
from rich.progress import Progress

EVALUATED = 64  # held-out problems


def make_task(folder: Path, seed: int, console: Console) -> None:
    """Make a warm-started model and its problems, once a seed; EVALUATED of the held-out problems are kept.

    Raises:
        ValueError: that failed.
    """
    if not (folder / "made").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, ROOT / "train_scripts/countdown/warm_start.py", "--output", folder, "--seed", seed]
        with console.status(f"seed {seed}: supervised warm start (2 minutes)"):
            if run_logged(command, folder / "log"):
                raise ValueError(f"the warm start failed, see {folder / 'log'}")
        problems = (folder / "data/heldout.jsonl").read_text().splitlines(keepends=True)
        (folder / "data/evaluated.jsonl").write_text("".join(problems[:EVALUATED]))
        (folder / "made").touch()
    if not (folder / "data/start.csv").exists():
        with console.status(f"seed {seed}: evaluation of the start"):
            evaluate_start(folder, seed)


def evaluate_start(task: Path, seed: int) -> None:
    """Write data/start.csv, a row like those of `read_evaluations`: what the model reaches that all runs start from.

    Raises:
        ValueError: the evaluation failed.
    """
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base", "python", ROOT / "eval/evaluate.py"]
    command += ["--models", task / "model", "--dataset", task / "data/evaluated.jsonl"]
    command += ["--responses", task / "start.jsonl", "--grader", ROOT / "train_scripts/countdown/reward.py"]
    command += ["--samples", EVALUATION["eval.n_samples_per_prompt"], "--max_new_tokens", MAX_NEW_TOKENS]
    command += ["--seed", seed, "--enforce_eager"]
    if run_logged(command, task / "start.log"):
        raise ValueError(f"the evaluation of the start failed, see {task / 'start.log'}")
    problems = [json.loads(line) for line in (task / "start.jsonl").read_text().splitlines()]
    right = " ".join(str(sum(problem["correct"])) for problem in problems)
    start = {"step": 0, "seconds": 0.0, "samples": len(problems[0]["correct"]), "right": right}
    pd.DataFrame([start]).to_csv(task / "data/start.csv", index=False)


def train(task: Path, output: Path, tree: str, flags: list[str], seconds: float, progress: Progress, bar: int) -> None:
    """Train until the steps have taken `seconds` and the evaluation after that is over, or the data end.

    Raises:
        ValueError: the run failed.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [*train_command(tree, task, output, flags), "--eval.dataset", task / "data/evaluated.jsonl"]
    environment = {**os.environ, "REWARD_LOG": str(output / "rewards.log"), "PYTHONUNBUFFERED": "1"}
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
