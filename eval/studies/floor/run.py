"""How far a step is from its floor: unpatched OpenRLHF, this project, TRL, and a bare vLLM and PyTorch.

The arms of a repetition take turns, a step each, so that they share the machine's fast and slow minutes. All sample
from the same policy, since the learning rate is 0. It needs a folder that train_scripts/warm_start.py has made, as
quickstart.sh does, 21 GB of memory for all arms, and cores without other work. TRL is installed for its arm, in build/.
`--shape computing` has a random model of 0.3 B parameters, packed samples and two optimizer steps; its arms run one after
another, and need 14 GB. It writes steps.csv and REPORT.md, in computing/ those of this shape, after every repetition.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from lib.comparison.step_arms import check_prompts
from lib.machine import data_type, processor_name, usable_cores
from lib.paths import QUICKSTART, ROOT, check_task, study_flags
from lib.run_logs.console import STEP_END
from lib.run_report.statistics import times_as_fast, with_ends
from lib.tables import markdown
from lib.turns import take_turns
from studies.floor.arms import (
    ARMS,
    COMPILED,
    DEFAULTS,
    FLOOR,
    PACKED,
    SHAPES,
    SIZE,
    TRL,
    command_of,
    gigabytes_of,
    install_trl,
    make_random,
)
from studies.floor.steps import PARTS, read_one_process, read_ours

from openrlhf_sagc.config.compilation import keep_compiled_code_by_processor

RUNS = ROOT / "build/floor"
BASES = {FLOOR: "times the floor"} | {
    arm: f"{words} times as fast"
    for arm, words in ((DEFAULTS, "the defaults are"), (COMPILED, "compiled are"), (PACKED, "packed is"))
}


def measure(seed: int, arguments: argparse.Namespace) -> pd.DataFrame:
    """A repetition; a row a step.

    Raises:
        ValueError: a run failed.
    """
    shape, commands = SHAPES[arguments.shape], {}
    folders = {arm: RUNS / arguments.shape / f"repetition-{seed}" / arm.replace(" ", "-") for arm in arguments.arms}
    for arm in np.roll(arguments.arms, -seed).tolist():  # another one is first
        folders[arm].mkdir(parents=True, exist_ok=True)
        (folders[arm] / "steps.jsonl").unlink(missing_ok=True)
        steps = shape.warm_up + arguments.steps
        command = command_of(arm, arguments.task, seed, steps, arguments.threads, folders[arm], shape)
        commands[arm] = (command, folders[arm] / "train.log")
    pauses = {}
    for together in [{arm: one} for arm, one in commands.items()] if shape.gigabytes else [commands]:
        pauses |= take_turns(together, STEP_END, shape.warm_up, lambda name, printed: None)
    frames = []
    for arm, folder in folders.items():
        read = read_one_process if arm in (TRL, FLOOR) else read_ours
        frames.append(read(folder, arguments.steps, pauses[arm], shape.warm_up).assign(arm=arm))
    return pd.concat(frames, ignore_index=True).assign(
        repetition=seed, threads=arguments.threads, load=os.getloadavg()[2]
    )


def report(steps: pd.DataFrame) -> str:
    """The table: seconds of a run are medians over its steps, those of an arm means over its runs."""
    columns = ["seconds", *PARTS]
    runs = steps.groupby(["arm", "repetition"], sort=False)[columns].median().reset_index()
    work = steps.assign(response=steps["tokens"] / steps["samples"])
    work = work.groupby("arm", sort=False)[["tokens", "response", "reward"]].mean()
    seconds = runs.pivot(index="repetition", columns="arm", values="seconds")
    rows, bases = [], [arm for arm in BASES if arm in seconds]
    for arm, mine in runs.groupby("arm", sort=False):
        cells = [f"{mine[name].mean():.3f}" for name in columns]
        cells += [f"{work.loc[arm, 'tokens']:.0f}", f"{work.loc[arm, 'reward']:.3f}"]
        ratios = [with_ends(times_as_fast(seconds, arm, other)) for other in bases]
        rows.append([arm, len(mine), *cells, *ratios])
    titles = ["arm", "runs", "s a step", *PARTS, "tokens of a step's responses", "mean reward"]
    titles += [BASES[arm] for arm in bases]
    least, most = work["response"].min(), work["response"].max()
    samples = " and ".join(f"{number:.0f}" for number in steps["samples"].unique())
    facts = [
        f"{processor_name()}, {usable_cores()} cores, {data_type()}.",
        f"GRPO with {samples} samples a step in groups of {SIZE}.",
        f"Threads of the arms of one process: {steps['threads'].iloc[0]}, of OpenRLHF's processes {'as many' if PACKED in seconds else 'one'} each.",
        f"Mean responses of the arms have {least:.1f} to {most:.1f} tokens, {100 * (most / least - 1):.1f} % apart.",
        f"The load average over 15 minutes was {steps['load'].min():.1f} to {steps['load'].max():.1f}, of which one to two are from this.",
    ]
    return " ".join(facts) + "\n\n" + markdown(titles, rows, alignment="l" + "r" * (len(titles) - 1))


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/studies floor: stopped"))
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument(
        "--shape", choices=SHAPES, default="tiny", help="the task's model, or a larger one's packed step"
    )
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, PACKED], help="by default those of the shape")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of an arm, with the seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run that count, after the warm-up")
    parser.add_argument(
        "--threads", type=int, choices=(1, 2), default=2, help="of each arm of one process; 1 on cores with other work"
    )
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    arguments.arms = arguments.arms or shape.arms
    check_task(arguments.task)
    check_prompts(arguments.task, ["grpo"], [SIZE], arguments.steps)
    arguments.task = arguments.task.resolve()
    if shape.random:
        arguments.task, arguments.output = (
            make_random(arguments.task, RUNS / "random"),
            arguments.output / arguments.shape,
        )
    needed = shape.gigabytes or sum(map(gigabytes_of, arguments.arms))
    if needed > (free := psutil.virtual_memory().available / 1e9):
        advice = "name fewer" if not shape.gigabytes else "end what else runs"
        raise ValueError(
            f"{len(arguments.arms)} --arms need {needed} GB of memory at once, and {free:.0f} are free: {advice}"
        )
    if TRL in arguments.arms:
        install_trl()
    keep_compiled_code_by_processor()  # of the arms of one process; OpenRLHF's see to it themselves
    arguments.output.mkdir(parents=True, exist_ok=True)
    frames = []
    for seed in range(arguments.repetitions):
        frames.append(measure(seed, arguments))
        steps = pd.concat(frames, ignore_index=True)
        steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
        (arguments.output / "REPORT.md").write_text(report(steps))
    print(report(steps))
