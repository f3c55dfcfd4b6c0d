"""Unpatched OpenRLHF against this project: same task, seeds and machine, arms in turn.

It trains a small task's model on the CPU stack, each run for a number of training seconds, with OpenRLHF's own evaluation
on held-out problems in between, whose seconds do not count. A policy is unpatched:N (OpenRLHF with n_samples_per_prompt N
and the CPU patches alone), fixed:N (this project with N as its only size) or sagc (all sizes). Behind the latter two,
+tail is tail batching, +tail:R the same with a response_ratio of R, and +lengths length-aware dispatch; +forward and +shuffled
switch a part of the faster step off, and +stream streams. @prompts at the end holds the prompts of a step instead of its
samples. Responses of the task route are as unequal in length as a reasoning model's. Started again, it keeps the runs that
are finished.
"""

import argparse
import json
import re
import signal
import sys
import time
from pathlib import Path

import pandas as pd
from common.paths import ROOT
from common.runs import once
from comparison.arms import ALGORITHMS, EVALUATION, MICRO_BATCH_SIZE, SIZES, flags_of
from comparison.logs import read_evaluations, read_steps
from comparison.report import write_report
from comparison.tasks import TASKS
from comparison.training import make_task, train
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

POLICIES = [*(f"unpatched:{size}" for size in SIZES), "sagc", "sagc@prompts"]


def run(arguments: argparse.Namespace, control: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every arm of every seed; the steps and the evaluations of all runs.

    Raises:
        ValueError: a policy is none, or a run failed; the message is one line.
    """
    policies, output, task_kind = arguments.policies, arguments.output.resolve(), TASKS[arguments.task]
    arms = [
        (seed, algorithm, policy)
        for turn, seed in enumerate(arguments.seeds)
        for algorithm in arguments.algorithms
        for policy in policies[turn % len(policies) :] + policies[: turn % len(policies)]
    ]
    plans = {  # a bad policy ends it here
        arm: flags_of(arm[2], arm[1], arm[0], control, task_kind, arguments.micro_batch_size) for arm in arms
    }
    columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.completed:.0f}/{task.total:.0f} s"))
    steps, evaluations = [], []
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for number, (seed, algorithm, policy) in enumerate(arms, 1):
            task = output / f"task-{seed}"
            make_task(task, seed, progress.console, task_kind)
            folder = output / f"seed-{seed}" / algorithm / re.sub(r"[^a-z0-9]", "-", policy)
            tree, flags = plans[seed, algorithm, policy]
            flags = [*flags, "--eval.steps", str(arguments.eval_steps)]  # later flags win
            name = f"run {number} of {len(arms)}: seed {seed}, {algorithm}, {policy}"

            def train_arm(task=task, folder=folder, tree=tree, flags=flags, name=name) -> None:
                bar = progress.add_task(name, total=arguments.seconds)
                began = time.monotonic()
                train(task, folder, tree, flags, arguments.seconds, progress, bar, arguments.task)
                progress.remove_task(bar)
                progress.console.print(f"{name}: {time.monotonic() - began:.0f} s")

            once(folder, {"tree": tree, "flags": flags, "seconds": arguments.seconds}, train_arm)
            arm = {"seed": seed, "algorithm": algorithm, "policy": policy}
            made = read_steps(folder, task / "data/evaluated.jsonl", control["straggler_ratio"])
            steps.append(made.assign(**arm))
            evaluated = read_evaluations(folder, task / "data/evaluated.jsonl", made)
            evaluations.append(pd.concat([pd.read_csv(task / "data/start.csv"), evaluated]).assign(**arm))
    return pd.concat(steps, ignore_index=True), pd.concat(evaluations, ignore_index=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="countdown", help="what is trained")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--micro_batch_size", type=int, default=MICRO_BATCH_SIZE, help="of every arm, in samples")
    parser.add_argument("--eval_steps", type=int, default=EVALUATION["eval.steps"], help="steps between evaluations")
    parser.add_argument("--seconds", type=float, default=120, help="of training, a run")
    parser.add_argument("--target", type=float, default=0.7, help="held-out reward whose time is reported")
    parser.add_argument("--max_straggler_rate", type=float, default=0.3)
    parser.add_argument("--straggler_ratio", type=float, default=2.5)
    parser.add_argument("--tradeoff", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=ROOT / "build/compare", help="folder for runs and results")
    parser.add_argument("--quick", action="store_true", help="six minutes: GRPO, seed 0, unpatched:8 against sagc")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.policies, arguments.algorithms, arguments.seeds = ["unpatched:8", "sagc"], ["grpo"], [0]
        arguments.seconds = 45.0
    for name in ("micro_batch_size", "eval_steps"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)} must be at least 1")
    if arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds} must be above 0")
    if not 0 < arguments.target < 1:
        raise ValueError(f"--target {arguments.target} is a mean reward, between 0 and 1")
    return arguments


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("eval/compare.py: stopped"))  # and the run with it
    try:
        arguments = parse_arguments()
        control = {name: getattr(arguments, name) for name in ("max_straggler_rate", "straggler_ratio", "tradeoff")}
        arguments.output.mkdir(parents=True, exist_ok=True)
        steps, evaluations = run(arguments, control)
    except ValueError as error:
        sys.exit(f"eval/compare.py: {error}")
    settings = {"target": arguments.target, "seconds": arguments.seconds, **control}
    (arguments.output / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    evaluations.to_csv(arguments.output / "evaluations.csv", index=False, float_format="%.5g")
    print(write_report(arguments.output))


if __name__ == "__main__":
    main()
