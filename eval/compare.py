"""Unpatched OpenRLHF against this project: same task and seeds, on a machine that the runs of a seed share in turns.

It trains a small task's model on the CPU stack, each run for a number of training seconds, with OpenRLHF's own
evaluation on held-out problems in between, whose seconds do not count. In each evaluation another run gets its turn,
so that those of a seed which fit into memory share the machine's fast and slow minutes. A policy is unpatched:N
(OpenRLHF with n_samples_per_prompt N and the CPU patches alone), fixed:N (this project with N as its only size) or
sagc (all sizes). Behind the latter two, +tail is tail batching, +tail:sort and +tail:stop by this method, +tail:R with
a response_ratio of R, and +lengths placed rollouts; +forward and +shuffled switch a part of the faster step off,
+stream streams, and +round weighs every round of tail batching the same. Behind any policy, +filter drops groups of
equal rewards (dynamic filtering). @prompts at the end holds the prompts of a step instead of its samples. Responses of
the task route are as unequal in length as a reasoning model's. --shape gpu packs samples, as the launch scripts do.
With few problems (--max_samples) each comes several times, so that tail batching can sort them by their history.
Started again, it keeps the runs that are finished, and refuses a folder whose runs were made with something else.

    python eval/compare.py --quick
    python eval/compare.py report FOLDER --output FOLDER             # the report of a comparison again
    python eval/compare.py report off=DIR ours=DIR --output FOLDER   # of any runs, by their logs
"""

import argparse
import json
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.arms import ALGORITHMS, EVALUATION, MICRO_BATCH_SIZE, SHAPES, SIZES, flags_of, shape_in_words
from lib.comparison.logs import read_evaluations, read_steps
from lib.comparison.scripts import ARMS, LEAST_TURN, RESUMES, train_arms
from lib.comparison.tasks import TASKS
from lib.comparison.training import PolicyRun, make_task, train_in_turns
from lib.paths import ROOT, output_folder
from lib.run_logs.starts import LEFT_OUT
from lib.run_report.named import arms_of, traces_of
from lib.run_report.recorded import read_recorded
from lib.run_report.write import write_report
from lib.runs import check_not_other, is_done, state_of, turns_of
from lib.tables import reader_may_leave
from lib.turns import GIGABYTES, room_for_runs
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from openrlhf_sagc.redaction import visible
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
    total = trained = 0
    for (seed, _), plan in plans.items():
        for run in in_state(plan, arguments.output / f"task-{seed}"):
            check_not_other(run.folder, run.made_with)
            total += not is_done(run.folder, run.made_with)
    began = time.monotonic()
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
                trained += len(runs)
                left = (time.monotonic() - began) / trained * (total - trained) / 60
                progress.console.print(
                    f"seed {seed}: {', '.join(bars)} trained, {trained} of {total} runs; {left:.0f} min left"
                )
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
                size, shape = arguments.micro_batch_size, arguments.shape
                tree, flags = flags_of(policy, algorithm, seed, control, kind, size, shape)
                flags += ["--eval.steps", str(arguments.eval_steps)]  # later flags win
                if arguments.max_samples is not None:
                    flags += ["--data.max_samples", str(arguments.max_samples)]
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
    parser.add_argument(
        "--shape", choices=SHAPES, default="padded", help="gpu: packed samples and sleep, as in the launch scripts"
    )
    parser.add_argument("--micro_batch_size", type=int, default=MICRO_BATCH_SIZE, help="of every arm, in samples")
    parser.add_argument("--eval_steps", type=int, default=EVALUATION["eval.steps"], help="steps between evaluations")
    parser.add_argument("--num_engines", type=int, default=1, help="vLLM engines of a run")
    parser.add_argument(
        "--max_samples", type=int, help="problems to train on, so that each comes several times; by default all"
    )
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
    for name in ("micro_batch_size", "eval_steps", "num_engines", "at_once", "max_samples"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ValueError(f"--{name} {value} must be at least 1")
    if arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds} must be above 0")
    check_target(arguments.target)
    return arguments


def report() -> None:
    """A report of any runs: patched OpenRLHF or not, with this package or not, by their logs or exports.

    A word is NAME=SOURCE: TensorBoard's folder or file, OUTPUT of a launch script, a history or chart of W&B (CSV,
    JSON), the output of a console. Several of one name are its seeds. The first name is what the others are compared
    with. FOLDER is a comparison of this command; NAME=FOLDER takes its policy NAME, so that NAME=A NAME=B puts the
    seeds of both together.
    """
    parser = argparse.ArgumentParser(description=report.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", choices=["report"], help=argparse.SUPPRESS)
    parser.add_argument("runs", nargs="+", metavar="NAME=SOURCE", help="or the folder of a comparison")
    parser.add_argument(
        "--output", type=output_folder, required=True, help="folder for report.html, REPORT.md and plots"
    )
    parser.add_argument("--trace", nargs="+", default=[], metavar="NAME=FILE", help="traces of an arm's rollouts")
    parser.add_argument("--target", type=float, help="another held-out reward than a comparison's")
    parser.add_argument(
        "--seconds",
        type=float,
        help="of training after which rewards are compared, by default those that all runs have",
    )
    arguments = parser.parse_args()
    if arguments.seconds is not None and arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds} must be above 0")
    if arguments.target is not None:
        check_target(arguments.target)
    left_out: list[str] = []
    arms, settings = arms_of(arguments.runs, left_out)
    if arms and arguments.target is not None and not settings:
        raise ValueError(
            f"--target {arguments.target} is for comparisons of this command: a report of logs has every reward"
        )
    settings |= {} if arguments.target is None else {"target": arguments.target}
    notes = [note for arm in arms for run in arm.runs for note in run.notes]
    faults = [note.removeprefix(LEFT_OUT) for note in notes if note.startswith(LEFT_OUT)]
    traces = traces_of(arguments.trace, arms, left_out) if arms else {}
    if not arms:
        sys.exit(visible("\n".join(f"eval/compare.py: {line}" for line in left_out)))
    for line in left_out + faults:
        print(visible(f"eval/compare.py: {line}"), file=sys.stderr)
    remarks = [f"Left out: {line}." for line in left_out] + remarks_of(settings)
    print_report(write_report(arms, arguments.output, settings, traces, remarks, arguments.seconds))
    if left_out or faults:
        sys.exit(1)


def print_report(text: str) -> None:
    """Names of arms, tags and flags in it are data."""
    with reader_may_leave():
        print(visible(text))


def scripts() -> None:
    """A launch script as several arms on the same GPUs, one after the other or in turns, and their report.

    Flags that this command does not know are for the script, of every arm.
    """
    parser = argparse.ArgumentParser(description=scripts.__doc__, allow_abbrev=False)
    parser.add_argument("scripts", choices=["scripts"], help=argparse.SUPPRESS)
    parser.add_argument("script", help="of train_scripts/, such as dapo_qwen2.5_7b.sh")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["unpatched", "recommended"], help="values of SAGC")
    parser.add_argument("--steps", type=int, default=40, help="of each arm")
    parser.add_argument(
        "--turns", type=int, help="steps of a turn, by checkpoints; by default one arm after the other"
    )
    parser.add_argument("--output", type=output_folder, help="folder for the arms and the report; build/compare-NAME")
    parser.add_argument("--smoke", action="store_true", help="in small, on a CPU")
    arguments, flags = parser.parse_known_args()
    turn = arguments.turns or arguments.steps
    output = arguments.output or ROOT / "build" / f"compare-{Path(arguments.script).stem}"
    if not (ROOT / "train_scripts" / arguments.script).is_file():
        raise ValueError(f"there is no train_scripts/{arguments.script}")
    if len({*arguments.arms}) < max(len(arguments.arms), 2):
        raise ValueError(f"--arms {' '.join(arguments.arms)}: give two or more, each once")
    if arguments.steps < 1 or turn < 1:
        raise ValueError(f"--steps {arguments.steps} and --turns {turn} must be at least 1")
    if turn < min(LEAST_TURN, arguments.steps) and not arguments.smoke:
        raise ValueError(f"--turns {turn}: the first steps of a turn warm up, so {LEAST_TURN} or more")
    if output.is_dir() and any(output.iterdir()):
        raise ValueError(f"--output {output} is not empty: give another one, or delete it")
    say = lambda line: print(visible(f"eval/compare.py: {line}"), file=sys.stderr)  # noqa: E731
    output.mkdir(parents=True, exist_ok=True)
    with held("--output", str(output)):
        train_arms(arguments.script, arguments.arms, arguments.steps, turn, output, flags, arguments.smoke, say)
        arms, _ = arms_of([f"{arm}={output / arm}" for arm in arguments.arms])
        remarks = [RESUMES] if turn < arguments.steps and {"off", "unpatched"} & set(arguments.arms) else []
        print_report(write_report(arms, output, remarks=remarks))


def remarks_of(settings: dict) -> list[str]:
    """What the report of a comparison with these settings says first; nothing of padded steps."""
    if settings.get("shape") != "gpu":
        return []
    return [f"The shape of a GPU run: {shape_in_words('gpu', settings['micro_batch_size'])}."]


def check_target(target: float) -> None:
    """Raises ValueError if it is no held-out reward."""
    if not 0 < target < 1:
        raise ValueError(f"--target {target} is a mean reward, between 0 and 1")


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):  # the runs end with it
        signal.signal(number, lambda *_: sys.exit("eval/compare.py: stopped"))
    try:
        if other := {"report": report, "scripts": scripts}.get("".join(sys.argv[1:2])):
            return other()
        arguments = parse_arguments()
        control = {name: getattr(arguments, name) for name in ("max_straggler_rate", "straggler_ratio", "tradeoff")}
        arguments.output.mkdir(parents=True, exist_ok=True)
        with held("--output", str(arguments.output)):
            steps, evaluations = run(arguments, control)
    except ValueError as error:
        sys.exit(visible(f"eval/compare.py: {error}"))
    settings = {"task": arguments.task, "target": arguments.target, "seconds": arguments.seconds, **control}
    names = ("num_engines", "at_once", "shape", "micro_batch_size", "max_samples")
    settings |= {name: getattr(arguments, name) for name in names}
    (arguments.output / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    evaluations.to_csv(arguments.output / "evaluations.csv", index=False, float_format="%.5g")
    arms, settings = read_recorded(arguments.output)
    print_report(write_report(arms, arguments.output, settings, remarks=remarks_of(settings)))


if __name__ == "__main__":
    main()
