"""Unpatched OpenRLHF against this project: same task and seeds, on a machine that the runs of a seed share in turns.

It trains a small task's model on the CPU stack, each run for a number of training seconds, with OpenRLHF's own evaluation
on held-out problems in between, whose seconds do not count. In each evaluation another run gets its turn, so that
those of a seed which fit into memory share the machine's fast and slow minutes. A policy is unpatched:N (OpenRLHF with n_samples_per_prompt N and the CPU
patches alone), fixed:N (this project with N as its only size) or sagc (all sizes). Behind the latter two,
+tail is tail batching, +tail:sort and +tail:stop by this method, +tail:R with a response_ratio of R, and +lengths placed
rollouts; +forward and +shuffled switch a part of the faster step off, +stream streams, and +round weighs every round of tail batching the same. @prompts at the end holds the prompts of a step instead of its
samples. Responses of the task route are as unequal in length as a reasoning model's. Started again, it keeps the runs that
are finished, and refuses a folder whose runs were made with something else.

    python eval/compare.py --quick
    python eval/compare.py report FOLDER               # the report of a comparison again, from its CSV files
    python eval/compare.py report NEW --join A B       # of the runs of A and B, which have other seeds
"""

import argparse
import json
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.arms import ALGORITHMS, EVALUATION, MICRO_BATCH_SIZE, SIZES, flags_of
from lib.comparison.joined import FILES, join
from lib.comparison.logs import read_evaluations, read_steps
from lib.comparison.report import write_report
from lib.comparison.tasks import TASKS
from lib.comparison.training import PolicyRun, make_task, train_in_turns
from lib.paths import ROOT, output_folder
from lib.runs import check_not_other, is_done, state_of, turns_of
from lib.turns import GIGABYTES, room_for_runs
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from openrlhf_sagc.run.output_folders import held

POLICIES = [*(f"unpatched:{size}" for size in SIZES), "sagc", "sagc@prompts"]


def run(arguments: argparse.Namespace, control: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every policy of every seed; the steps and the evaluations of all runs.

    A step's `turns` are the policies that its run took turns with.

    Raises:
        ValueError: a policy is none, a run failed, or one was made with something else; the message is one line.
    """
    # A bad policy ends it here, and so does a folder that is finished with something else.
    plans = plans_of(arguments, control)
    for (seed, _), plan in plans.items():
        for run in in_state(plan, arguments.output / f"task-{seed}"):
            check_not_other(run.folder, run.made_with)
    columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.completed:.0f}/{task.total:.0f} s"))
    steps, evaluations = [], []
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for (seed, algorithm), plan in plans.items():
            task = arguments.output.resolve() / f"task-{seed}"
            make_task(task, seed, progress.console, TASKS[arguments.task])
            plan = in_state(plan, task)
            missing = [run for run in plan if not is_done(run.folder, run.made_with)]
            for start in range(0, len(missing), arguments.at_once):
                runs = missing[start : start + arguments.at_once]
                bars = {
                    run.policy: progress.add_task(f"seed {seed} {algorithm} {run.policy}", total=run.seconds)
                    for run in runs
                }
                show = lambda policy, spent, bars=bars: progress.update(bars[policy], completed=spent)  # noqa: E731
                train_in_turns(task, in_state(runs, task), show, arguments.task)
            for run in plan:
                check_not_other(run.folder, run.made_with)  # the package may have changed meanwhile
                arm = {"seed": seed, "algorithm": algorithm, "policy": run.policy}
                evaluated = task / "data/evaluated.jsonl"
                made = read_steps(run.folder, evaluated, control["straggler_ratio"])
                steps.append(made.assign(**arm, turns=" ".join(turns_of(run.folder))))
                found = pd.concat(
                    [pd.read_csv(task / "data/start.csv"), read_evaluations(run.folder, evaluated, made)]
                )
                evaluations.append(found.assign(**arm))
    return pd.concat(steps, ignore_index=True), pd.concat(evaluations, ignore_index=True)


def in_state(plan: list[PolicyRun], task: Path) -> list[PolicyRun]:
    """The runs with what their trees and their task are made of now."""
    states = {run.tree: state_of(run.tree, task) for run in plan}
    return [run._replace(state=states[run.tree]) for run in plan]


def plans_of(arguments: argparse.Namespace, control: dict[str, float]) -> dict[tuple[int, str], list[PolicyRun]]:
    """(seed, algorithm) -> its runs, in the order of their turns; another policy is first with every seed.

    Raises:
        ValueError: a policy is none, or is named twice.
    """
    twice = [policy for policy, count in Counter(arguments.policies).items() if count > 1]
    if twice:
        raise ValueError(f"--policies names {twice[0]} twice")
    plans = {}
    for number, seed in enumerate(arguments.seeds):
        for algorithm in arguments.algorithms:
            plan = plans[seed, algorithm] = []
            for policy in np.roll(arguments.policies, -number).tolist():
                kind = TASKS[arguments.task]
                tree, flags = flags_of(policy, algorithm, seed, control, kind, arguments.micro_batch_size)
                flags += ["--eval.steps", str(arguments.eval_steps)]  # later flags win
                flags += ["--vllm.num_engines", str(arguments.num_engines)]
                name = re.sub(r"[^a-z0-9]", "-", policy)
                folder = arguments.output.resolve() / f"seed-{seed}" / algorithm / name
                plan.append(PolicyRun(policy, folder, tree, flags, arguments.seconds))
    return plans


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="countdown", help="what is trained")
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--micro_batch_size", type=int, default=MICRO_BATCH_SIZE, help="of every arm, in samples")
    parser.add_argument("--eval_steps", type=int, default=EVALUATION["eval.steps"], help="steps between evaluations")
    parser.add_argument("--num_engines", type=int, default=1, help="vLLM engines of a run")
    parser.add_argument("--seconds", type=float, default=120, help="of training, a run")
    parser.add_argument("--target", type=float, default=0.7, help="held-out reward whose time is reported")
    parser.add_argument("--max_straggler_rate", type=float, default=0.3)
    parser.add_argument("--straggler_ratio", type=float, default=2.5)
    parser.add_argument("--tradeoff", type=float, default=2.0)
    parser.add_argument(
        "--at_once", type=int, help=f"runs that take turns; by default as many as memory holds, {GIGABYTES} GB each"
    )
    parser.add_argument(
        "--output",
        type=output_folder,
        help="folder for runs and results; build/compare, and build/compare-quick with --quick",
    )
    parser.add_argument(
        "--quick", action="store_true", help="six minutes: GRPO, seed 0, unpatched:8 against sagc, up to 0.55"
    )
    arguments = parser.parse_args()
    if arguments.output is None:
        try:
            arguments.output = output_folder(str(ROOT / "build" / ("compare-quick" if arguments.quick else "compare")))
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument --output: {error}")
    if arguments.quick:
        arguments.policies, arguments.algorithms, arguments.seeds = ["unpatched:8", "sagc"], ["grpo"], [0]
        arguments.seconds, arguments.target = 45.0, 0.55
    if arguments.at_once is None:
        arguments.at_once = max(room_for_runs(arguments.num_engines), 1)
    for name in ("micro_batch_size", "eval_steps", "num_engines", "at_once"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)} must be at least 1")
    if arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds} must be above 0")
    check_target(arguments.target)
    return arguments


def report_again() -> None:
    """The command `compare.py report`."""
    parser = argparse.ArgumentParser(description=report_again.__doc__)
    parser.add_argument("report", choices=["report"], help=argparse.SUPPRESS)
    parser.add_argument("folder", type=output_folder, help="that compare.py has written, or a new one with --join")
    parser.add_argument("--target", type=float, help="another held-out reward than the comparison's")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="folders whose runs are put together")
    parser.add_argument("--policies", nargs="+", help="that --join takes; by default all")
    arguments = parser.parse_args()
    if arguments.policies and not arguments.join:
        raise ValueError("--policies needs --join")
    for folder in arguments.join or [arguments.folder]:
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise ValueError(f"there is no {folder / missing[0]}: run eval/compare.py first")
    if arguments.target is not None:
        check_target(arguments.target)
    if arguments.join:
        join(arguments.join, arguments.policies, arguments.folder)
    if arguments.target is not None:
        settings = arguments.folder / "settings.json"
        content = json.loads(settings.read_text()) | {"target": arguments.target}
        settings.write_text(json.dumps(content, indent=2) + "\n")
    print(write_report(arguments.folder))


def check_target(target: float) -> None:
    """Raises ValueError if it is no held-out reward."""
    if not 0 < target < 1:
        raise ValueError(f"--target {target} is a mean reward, between 0 and 1")


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        try:
            return report_again()
        except ValueError as error:
            sys.exit(f"eval/compare.py: {error}")
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/compare.py: stopped"))
    try:
        arguments = parse_arguments()
        control = {name: getattr(arguments, name) for name in ("max_straggler_rate", "straggler_ratio", "tradeoff")}
        arguments.output.mkdir(parents=True, exist_ok=True)
        with held("--output", str(arguments.output)):
            steps, evaluations = run(arguments, control)
    except ValueError as error:
        sys.exit(f"eval/compare.py: {error}")
    settings = {"task": arguments.task, "target": arguments.target, "seconds": arguments.seconds, **control}
    settings |= {name: getattr(arguments, name) for name in ("num_engines", "at_once")}
    (arguments.output / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    evaluations.to_csv(arguments.output / "evaluations.csv", index=False, float_format="%.5g")
    print(write_report(arguments.output))


if __name__ == "__main__":
    main()
