"""How far a step is from its floor: this project, and a bare vLLM and PyTorch in one process that do the same work.

The arms of a repetition take turns, a step each, so that they share the machine's fast and slow minutes. All sample from the
same policy, since the learning rate is 0. It needs a folder that train_scripts/warm_start.py has made, as quickstart.sh does, 5 GB
of memory an arm, and some five minutes a repetition. It writes steps.csv and REPORT.md.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.arms import PROMPTS, SAMPLES, flags_of
from lib.comparison.group_size_runs import WARM_UP
from lib.comparison.step_arms import check_prompts, prompts_of
from lib.comparison.tasks import task_of
from lib.comparison.timed_steps import read_steps
from lib.machine import data_type, processor_name, usable_cores
from lib.paths import QUICKSTART, ROOT, check_task, study_flags
from lib.run_logs.console import STEP_END
from lib.run_report.statistics import times_as_fast, with_ends
from lib.runs import train_command
from lib.tables import markdown
from lib.turns import GIGABYTES, paused_seconds, room_for_runs, take_turns, without_pauses

RUNS = ROOT / "build/floor"
SIZE = SAMPLES // PROMPTS
FLOOR = "floor"
# Samples of a micro-batch, and threads of the policy's actor.
OURS = {"defaults": (16, 2), "one thread": (16, 1), "micro-batches of 64": (64, 2)}
PARTS = ["generation", "experience", "training", "sync", "rest"]


def command_of(arm: str, seed: int, folder: Path, arguments: argparse.Namespace) -> list:
    """The command of an arm, whose results are in the folder."""
    task, kind = arguments.task.resolve(), task_of(arguments.task)
    if arm == FLOOR:
        compiled = ["env", "-u", "TORCHDYNAMO_DISABLE", f"OMP_NUM_THREADS={min(usable_cores(), 2)}"]
        words = {
            "model": task / "model",
            "prompts": task / "data/train.jsonl",
            "output": folder / "steps.jsonl",
            "dtype": data_type(),
            "steps": WARM_UP + arguments.steps,
            "seed": seed,
            "groups": PROMPTS,
            "size": SIZE,
            "max_new_tokens": kind.max_new_tokens,
            "max_len": kind.max_len,
        }
        flags = [word for name, value in words.items() for word in (f"--{name}", value)]
        on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base"]
        return [*on_cpu, *compiled, "python", Path(__file__).parent / "bare.py", *flags]
    micro_batch, threads = OURS[arm]
    tree, flags = flags_of(f"fixed:{SIZE}", "grpo", seed, control={}, task=kind, micro_batch_size=micro_batch)
    settings = {
        "reward.remote_url": kind.grader,
        "train.num_episodes": 1,
        "data.max_samples": prompts_of("grpo", SIZE, arguments.steps),
        "actor.adam.lr": 0,
    }
    flags += [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    return train_command(tree, task, folder, flags, threads)


def read_floor(folder: Path, steps: int, pauses: list[list[float]]) -> pd.DataFrame:
    """The floor's steps after the warm-up, as `read_steps` has ours."""
    log = pd.read_json(folder / "steps.jsonl", lines=True)
    paused = paused_seconds(log, pauses)
    log = log.assign(seconds=log["wall_time"].diff() - paused, experience=0.0)
    log["generation"] = without_pauses(log["generation"], paused)
    log["rest"] = log["seconds"] - log[PARTS[:-1]].sum(axis=1)
    return log.iloc[WARM_UP : WARM_UP + steps]


def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    """Every repetition; a row a step.

    Raises:
        ValueError: a run failed.
    """
    frames = []
    for seed in range(arguments.repetitions):
        folders = {arm: RUNS / f"repetition-{seed}" / arm.replace(" ", "-") for arm in arguments.arms}
        commands = {}
        for arm in np.roll(arguments.arms, -seed).tolist():  # another one is first
            folders[arm].mkdir(parents=True, exist_ok=True)
            (folders[arm] / "steps.jsonl").unlink(missing_ok=True)
            commands[arm] = (command_of(arm, seed, folders[arm], arguments), folders[arm] / "train.log")
        pauses = take_turns(commands, STEP_END, WARM_UP, lambda name, printed: None)
        for arm, folder in folders.items():
            read = read_floor if arm == FLOOR else read_steps
            steps = read(folder, arguments.steps, pauses[arm])
            frames.append(steps[["step", "seconds", *PARTS]].assign(arm=arm, repetition=seed, load=os.getloadavg()[2]))
    return pd.concat(frames, ignore_index=True)


def report(steps: pd.DataFrame) -> str:
    """The table: seconds of a run are medians over its steps, those of an arm means over its runs."""
    runs = steps.groupby(["arm", "repetition"], sort=False)[["seconds", *PARTS]].median().reset_index()
    seconds = runs.pivot(index="repetition", columns="arm", values="seconds")
    rows = []
    for arm, mine in runs.groupby("arm", sort=False):
        means = [f"{mine[name].mean():.3f}" for name in ("seconds", *PARTS)]
        rows.append([arm, len(mine), *means, with_ends(times_as_fast(seconds, arm, FLOOR))])
    titles = ["arm", "runs", "s a step", *PARTS, "times the floor"]
    return (
        f"{processor_name()}, {usable_cores()} cores, {data_type()}; GRPO, {PROMPTS} groups of {SIZE}. The load average over 15 "
        f"minutes was {steps['load'].min():.1f} to {steps['load'].max():.1f}, one of them from this.\n\n"
        + markdown(titles, rows, alignment="l" + "r" * (len(titles) - 1))
    )


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/studies floor: stopped"))
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument("--arms", nargs="+", choices=[*OURS, FLOOR], default=[*OURS, FLOOR])
    parser.add_argument("--repetitions", type=int, default=3, help="runs of an arm, with the seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run that count, after the warm-up")
    arguments = parser.parse_args()
    check_task(arguments.task)
    check_prompts(arguments.task, ["grpo"], [SIZE], arguments.steps)
    if len(arguments.arms) > (room := room_for_runs()):
        raise ValueError(
            f"{len(arguments.arms)} --arms need {GIGABYTES} GB of memory each, which {room} have: name fewer"
        )
    steps = measure(arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    (arguments.output / "REPORT.md").write_text(report(steps))
    print(report(steps))
