"""The real stack with engines and training that are paced like a GPU's: seconds a step, rewards and lengths of each arm.

    python eval/studies paced          # train what the plan has and steps.csv lacks; started again, it goes on
    python eval/studies paced table    # the table and the plot again, from the CSV files
    python eval/studies paced predict  # the simulator's seconds beside them

The plan, arms.py, names arms and seeds. All arms of a seed begin with the same warm-started model. A run waits most of
the time, so two at once hardly delay each other; it needs 7 GB of memory, 11 with --shape four, and about 13 minutes.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from lib.comparison.logs import read_evaluations, read_samples, read_steps
from lib.comparison.training import make_task
from lib.paths import ROOT, set_aside, study_flags
from lib.run_logs.read import read
from lib.runs import train_command
from lib.turns import Run, end, opened_log
from rich.console import Console
from studies.paced.arms import CONTROL, PLANS, SHAPES, run_of
from studies.paced.predict import predictions
from studies.paced.table import PLAIN, bars, plot, table

FOLDER = Path(__file__).parent
RUNS = ROOT / "build/paced"
KEY = ["shape", "arm", "seed"]
AGES = ("age_mean", "age_max", "engines_wait_share", "actors_wait_share")  # empty where the run logs none
POLL_SECONDS = 1.0


def read_run_of(folder: Path, task: Path, asynchronous: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run's steps and its evaluations, that of the start first.

    `step_seconds` are the trainer's own: the phases of a step in turn, or the clock where they overlap; evaluations are in
    neither. `seconds` add them up from the end of the first step on, which warms up. `late_share` is that of the run.
    """
    evaluated, log = task / "data/evaluated.jsonl", read(str(folder / "tensorboard/run"))
    steps = read_steps(folder, evaluated, CONTROL["straggler_ratio"])
    took = log.steps["timing/step_total"].to_numpy()
    if asynchronous:  # the weight sync of the step behind an evaluation waits for its end
        behind = steps["step"].isin(log.evaluations.index + 1)
        took = took - np.where(behind, steps["sync"] - steps["sync"].median(), 0.0)
    steps = steps.assign(
        step_seconds=took, seconds=took.cumsum() - took[0], late_share=late_share(folder / "pace.log")
    )
    for name in AGES:
        steps[name] = log.steps[f"rollout/{name}"].to_numpy() if f"rollout/{name}" in log.steps else np.nan
    return steps, pd.concat([pd.read_csv(task / "data/start.csv"), read_evaluations(folder, evaluated, steps)])


def groups_of(folder: Path, task: Path, steps: pd.DataFrame) -> pd.DataFrame:
    """The groups of a run that drops and stops none: their step, prompt (checksum), and tokens and scores of rollouts."""
    samples = read_samples(folder, task / "data/evaluated.jsonl")
    samples = samples[~samples["heldout"]]
    samples = samples.assign(step=np.repeat(steps["step"], steps["rollouts"]).to_numpy())
    words = lambda values: " ".join(f"{value:g}" for value in values)  # noqa: E731
    found = samples.groupby(["step", "prompt"], sort=False)[["tokens", "score"]].agg(words)
    return found.rename(columns={"score": "scores"}).reset_index()


def late_share(log: Path) -> float:
    """Share of a run's iterations that took longer than their pace, as the engines' last lines have it."""
    names = ["name", "process", "count", "worked", "waited", "late"]
    engines = pd.read_csv(log, sep=" ", names=names).query("name == 'engine'").groupby("process").last()
    return engines["late"].sum() / engines["count"].sum()


def folder_of(shape: str, name: str, seed: int) -> Path:
    return RUNS / shape / name.replace(", ", "-").replace(" ", "-") / str(seed)


def task_of(shape: str, seed: int) -> Path:
    """The folder of the model that all arms of a seed begin with."""
    name = SHAPES[shape].task.name
    return RUNS / f"{'task' if name == 'route' else name}-{seed}"


def started(shape: str, name: str, seed: int) -> Run:
    """An arm's run with a seed, which trains from now on."""
    folder, task = folder_of(shape, name, seed), task_of(shape, seed)
    tree, flags, environment = run_of(PLANS[shape][name], SHAPES[shape], seed)
    set_aside(folder)
    folder.mkdir(parents=True)
    environment |= {"REWARD_TASK": SHAPES[shape].task.name, "REWARD_LOG": str(folder / "rewards.log")}
    environment |= {"PACE_LOG": str(folder / "pace.log")}
    # Compiled, an iteration needs a third of a core less on two engines.
    command = [*train_command(tree, task, folder, flags, eager=False), "--eval.dataset", task / "data/evaluated.jsonl"]
    log = folder / "train.log"
    with opened_log(log) as sink:
        words = list(map(str, command))
        process = psutil.Popen(words, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    return Run(process, log)


def missing(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Arms and seeds of the plan that are not measured, seed by seed, so that those of a seed run beside each other."""
    file = arguments.output / "steps.csv"
    made = set(pd.read_csv(file)[KEY].itertuples(index=False, name=None)) if file.exists() else set()
    arms = {
        name: arm for name, arm in PLANS[arguments.shape].items() if name in (arguments.arms or PLANS[arguments.shape])
    }
    seeds = arguments.seeds or sorted({seed for arm in arms.values() for seed in arm.seeds})
    for seed in seeds:
        for name, arm in arms.items():
            if (arguments.seeds or seed in arm.seeds) and (arguments.shape, name, seed) not in made:
                yield name, seed


def run(arguments: argparse.Namespace) -> None:
    """Train what is missing, so many runs at once, which start together: the start of one takes all cores for two minutes.

    Raises:
        ValueError: a run failed; those beside it are ended.
    """
    todo, console, began = list(missing(arguments)), Console(stderr=True), time.monotonic()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(todo), arguments.at_once):
        together = todo[start : start + arguments.at_once]
        for _, seed in together:
            make_task(task_of(arguments.shape, seed), seed, console, SHAPES[arguments.shape].task)
        runs = [started(arguments.shape, name, seed) for name, seed in together]
        try:
            while None in (codes := [run.process.poll() for run in runs]) and not any(codes):
                time.sleep(POLL_SECONDS)
        finally:
            end(runs)
        for (name, seed), ended, code in zip(together, runs, codes):
            if code:
                raise ValueError(f"{name}, seed {seed}: exit code {code}, see {ended.log}")
        for name, seed in together:
            write(arguments, name, seed)
        left = (time.monotonic() - began) / (start + len(together)) * (len(todo) - start - len(together)) / 60
        console.print(f"{' and '.join(f'{name}, seed {seed}' for name, seed in together)}: done; {left:.0f} min left")


def write(arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Add a run's rows to the CSV files."""
    folder, task = folder_of(arguments.shape, name, seed), task_of(arguments.shape, seed)
    arm = PLANS[arguments.shape][name]
    names, frames = ["steps.csv", "evaluations.csv"], read_run_of(folder, task, arm.split is not None)
    if name == PLAIN:
        names, frames = [*names, "groups.csv"], (*frames, groups_of(folder, task, frames[0]))
    for frame, file in zip(frames, map(arguments.output.joinpath, names)):
        key = dict(zip(KEY, (arguments.shape, name, seed)))
        rows = pd.DataFrame({**key, **frame.to_dict("list")}).round(4)
        rows.to_csv(file, mode="a", header=not file.exists(), index=False)


def parse_arguments() -> argparse.Namespace:
    parser = study_flags(__doc__, FOLDER)
    parser.add_argument("what", nargs="?", choices=("run", "table", "predict"), default="run")
    parser.add_argument(
        "--shape", choices=SHAPES, default="two", help="GPUs of a run, and a task, by which the plan has its arms"
    )
    parser.add_argument("--arms", nargs="+", help="of the plan; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, help="by default those of the plan")
    parser.add_argument("--at_once", type=int, default=2, help="runs beside each other")
    arguments = parser.parse_args()
    known = PLANS[arguments.shape]
    for name in arguments.arms or ():
        if name not in known:
            raise ValueError(f"--arms {name!r} is none of the plan: give of {', '.join(map(repr, known))}")
    if arguments.at_once < 1:
        raise ValueError(f"--at_once {arguments.at_once} must be at least 1")
    return arguments


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/studies paced: stopped"))
    arguments = parse_arguments()
    if arguments.what == "run":
        run(arguments)
    steps = pd.read_csv(arguments.output / "steps.csv")
    if arguments.what == "predict":
        print(predictions(steps, pd.read_csv(arguments.output / "groups.csv"), arguments.shape))
        return
    evaluations = pd.read_csv(arguments.output / "evaluations.csv")
    print(table(steps, evaluations))
    plot(steps, evaluations, arguments.output / "paced.png")
    bars(steps, arguments.output / "seconds.png")
