"""Seconds of a step: unpatched OpenRLHF against this project at the same fixed group sizes, and what each part saves.

It trains a small task's model on the CPU stack with a learning rate of 0, so that all runs sample from the same policy. The
arms are unpatched OpenRLHF, this project with every part of a faster step on, without one part at a time, and with all of
them off. All arms of a repetition have the same seed and take turns, a step each, so that they share the machine's fast
and slow minutes. GRPO makes one optimizer step a rollout, DAPO two. It needs a folder that train_scripts/warm_start.py has made,
as quickstart.sh does, 5 GB of memory an arm, and one to four minutes an arm and repetition. Started again, it keeps the
repetitions that are finished. It writes steps.csv, step_time.json and REPORT.md; with --report only the last two, from the first.
"""

import argparse
import itertools
import json
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.arms import ALGORITHMS, MICRO_BATCH_SIZE, SAMPLES, SHAPES, flags_of, shape_in_words
from lib.comparison.step_arms import ALL_ON, ARM, ARMS, UNPATCHED, WARM_UP, check_prompts, prompts_of, values_of
from lib.comparison.tasks import task_of
from lib.comparison.timed_steps import read_steps
from lib.machine import data_type, processor_name, usable_cores
from lib.paths import QUICKSTART, ROOT, check_task, study_flags
from lib.run_logs.console import STEP_END
from lib.run_report.statistics import times_as_fast, with_ends
from lib.runs import once, state_of, train_command
from lib.tables import markdown
from lib.turns import GIGABYTES, room_for_runs, take_turns
from rich.progress import Progress

RUNS = ROOT / "build/step_time"
COLUMNS = {
    "seconds": "s a step",
    "generation": "generation",
    "idle_tail": "of it idle tail",
    "experience": "experience",
    "training": "training",
    "optimizer": "of it optimizer",
    "sync": "sync",
    "rest": "rest",
}


def run_flags(arm: str, algorithm: str, size: int, seed: int, arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """The tree of build/ and the flags of a run."""
    policy = f"{UNPATCHED if arm == UNPATCHED else 'fixed'}:{size}"
    kind = task_of(arguments.task)
    tree, words = flags_of(policy, algorithm, seed, control={}, task=kind, shape=arguments.shape)
    settings = {
        "reward.remote_url": kind.grader,
        "train.micro_batch_size": MICRO_BATCH_SIZE,
        "rollout.micro_batch_size": MICRO_BATCH_SIZE,
        "train.num_episodes": 1,
        "data.max_samples": prompts_of(algorithm, size, arguments.steps),
        "actor.adam.lr": 0,
    }
    if arm != UNPATCHED:
        settings |= {f"train.{name}": value for name, value in values_of(arm).items()}
    added = [str(word) for name, value in settings.items() for word in (f"--{name}", value) if word is not None]
    return tree, words + added  # later ones win


def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    """Every run; a row a step.

    Raises:
        ValueError: a run failed; the message is one line.
    """
    frames = []
    plan = list(itertools.product(range(arguments.repetitions), arguments.algorithms, arguments.sizes))
    turns = len(arguments.arms) * (arguments.steps + 2)  # the warm-up and the end are a turn each
    with Progress() as progress:
        bar = progress.add_task("turns of training runs", total=len(plan) * turns)
        for done, (repetition, algorithm, size) in enumerate(plan, start=1):
            together = RUNS / f"repetition-{repetition}" / f"{algorithm}-{size}"
            folders = {arm: together / re.sub("[^a-z]", "-", arm) for arm in arguments.arms}
            runs = {
                arm: list(run_flags(arm, algorithm, size, repetition, arguments))
                for arm in np.roll(arguments.arms, -repetition).tolist()  # another one is first
            }
            states = {tree: state_of(tree, arguments.task) for tree, _ in runs.values()}
            train = partial(train_in_turns, arguments.task, folders, runs, lambda *_: progress.advance(bar))
            pauses = once(together, [str(arguments.task.resolve()), runs, states], train)
            progress.update(bar, completed=done * turns)
            key = {"algorithm": algorithm, "size": size, "repetition": repetition}
            for arm, folder in folders.items():
                frames.append(read_steps(folder, arguments.steps, pauses[arm]).assign(arm=arm, **key))
    return pd.concat(frames, ignore_index=True)


def train_in_turns(
    task: Path, folders: dict[str, Path], runs: dict[str, list], on_turn: Callable
) -> dict[str, list[list[float]]]:
    """Train the arms of a repetition.

    Args:
        task: its folder.
        folders: of each arm.
        runs: tree and flags of each arm, in the order of their turns.
        on_turn: as of `take_turns`.

    Returns:
        [begin, end] of every pause of each arm, in seconds of `time.time`.

    Raises:
        ValueError: a run failed, or there is too little memory.
    """
    if len(runs) > (room := room_for_runs()):
        raise ValueError(
            f"{len(runs)} --arms need {GIGABYTES} GB of memory each at once, which {room} have: name fewer"
        )
    commands = {}
    for arm, (tree, flags) in runs.items():
        folder = folders[arm]
        folder.mkdir(parents=True, exist_ok=True)
        commands[arm] = (train_command(tree, task.resolve(), folder, flags), folder / "train.log")
    return take_turns(commands, STEP_END, WARM_UP, on_turn)


def summaries(steps: pd.DataFrame) -> list[dict]:
    """A row an algorithm, size and arm.

    The seconds of a run are medians over its steps, those of an arm means over its runs. `speedup` is against unpatched,
    `all_on_is` how many times as fast all parts together are as this arm. None: not logged, or nothing to compare with.
    """
    runs = steps.groupby([*ARM, "repetition"], sort=False)[[*COLUMNS]].median().reset_index()
    rows = []
    for (algorithm, size, arm), mine in runs.groupby(ARM, sort=False):
        others = runs[(runs["algorithm"] == algorithm) & (runs["size"] == size)]
        seconds = others.pivot(index="repetition", columns="arm", values="seconds")
        row = {"algorithm": algorithm, "size": int(size), "arm": arm, "runs": len(mine)}
        row["steps"] = int((steps[ARM] == [algorithm, size, arm]).all(axis=1).sum())
        row |= {name: float(mine[name].mean()) if mine[name].notna().all() else None for name in COLUMNS}
        rows.append(
            row | {"speedup": times_as_fast(seconds, UNPATCHED, arm), "all_on_is": times_as_fast(seconds, arm, ALL_ON)}
        )
    return rows


def report(rows: list[dict], settings: dict) -> str:
    """The tables as Markdown, one an algorithm and size."""
    shape = shape_in_words(
        settings.get("shape", "padded"), settings["micro_batch_size"]
    )  # older results do not say it
    text = (
        f"{settings['processor']}, {settings['cores']} cores, {settings['data_type']}; steps of {SAMPLES} samples in "
        f"{shape}. Seconds of a run are medians over its steps after {WARM_UP} of "
        "warm-up; shown are means over runs, and ratios with the 95 % interval of Student's t over repetitions. `rest` is "
        "what OpenRLHF's log names no timing for.\n"
    )
    titles = ["arm", "runs", *COLUMNS.values(), "times as fast as unpatched", "all on is times as fast"]
    for algorithm, size in dict.fromkeys((row["algorithm"], row["size"]) for row in rows):
        mine = [row for row in rows if (row["algorithm"], row["size"]) == (algorithm, size)]
        cells = [
            [row["arm"], row["runs"], *("–" if row[name] is None else f"{row[name]:.2f}" for name in COLUMNS)]
            + [with_ends(row["speedup"]), with_ends(row["all_on_is"])]
            for row in mine
        ]
        optimizer_steps = "one optimizer step" if algorithm == "grpo" else "two optimizer steps"
        text += f"\n## {algorithm.upper()}, groups of {size}, {optimizer_steps} a rollout\n\n"
        text += markdown(titles, cells, alignment="l" + "r" * (len(titles) - 1))
    return text


def parse_arguments() -> argparse.Namespace:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=(2, 4, 8, 16, 32, 64), default=[8, 16])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default="padded",
        help="gpu: packed samples and sleep, as in the launch scripts",
    )
    parser.add_argument("--repetitions", type=int, default=3, help="runs of an arm, with the seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, default=30, help="steps of a run that count, after the warm-up")
    parser.add_argument("--report", action="store_true", help="train nothing, make the report of --output again")
    arguments = parser.parse_args()
    for name in ("repetitions", "steps"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)} must be at least 1")
    return arguments


def results_of(arguments: argparse.Namespace) -> tuple[pd.DataFrame, dict]:
    """The steps of new runs or, for --report, of earlier ones; and the settings that a report names.

    Raises:
        ValueError: there is no warm-started task, or one with too few prompts, or a run failed.
    """
    folder = arguments.output
    if arguments.report:
        try:
            return pd.read_csv(folder / "steps.csv"), json.loads((folder / "step_time.json").read_text())["settings"]
        except FileNotFoundError as error:
            raise ValueError(f"--report needs {error.filename}, which a run without --report writes") from error
    check_task(arguments.task)
    check_prompts(arguments.task, arguments.algorithms, arguments.sizes, arguments.steps)
    settings = {"processor": processor_name(), "cores": usable_cores(), "repetitions": arguments.repetitions}
    settings |= {"steps": arguments.steps, "micro_batch_size": MICRO_BATCH_SIZE, "data_type": data_type()}
    settings |= {"shape": arguments.shape}
    return measure(arguments), settings


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/studies step_time: stopped"))
    arguments = parse_arguments()
    steps, settings = results_of(arguments)
    rows = summaries(steps)
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    found = {"settings": settings, "arms": rows}
    (arguments.output / "step_time.json").write_text(json.dumps(found, indent=2) + "\n")
    text = report(rows, settings)
    (arguments.output / "REPORT.md").write_text(text)
    print(text)
