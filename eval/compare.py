"""Unpatched OpenRLHF against this project: same task, seeds and machine, arms in turn; results by compare_report.py.

Trains the Countdown model on the CPU stack, each run for a number of training seconds, with OpenRLHF's own evaluation on
held-out problems in between (which does not count). A policy is unpatched:N (OpenRLHF with n_samples_per_prompt N and
the CPU patches alone), fixed:N (this project with N as its only size) or sagc (all sizes). After the latter two, +tail is
tail batching, +tail:R the same with a response_ratio of R, +lengths length-aware dispatch; @prompts at the end holds the
prompts of a step instead of its samples. Started again, it keeps the runs that are finished.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from compare_log import read_evaluations, read_steps
from compare_report import write_report
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parents[1]
SIZES = [4, 8, 16, 32]
POLICIES = [*(f"unpatched:{size}" for size in SIZES), "sagc", "sagc@prompts"]
SAMPLES, PROMPTS = 128, 16  # of a step, where they are held
MAX_NEW_TOKENS = 200
EVALUATION = {"eval.steps": 8, "eval.n_samples_per_prompt": 8, "eval.temperature": 1.0}
EVALUATED = 64  # held-out problems
ALGORITHMS = {
    "grpo": {},
    "dapo": {
        "algo.dynamic_filtering_enable": None,
        "actor.loss_agg_mode": "token-mean",
        "reward.overlong_buffer_len": MAX_NEW_TOKENS // 5,
        "reward.overlong_penalty_factor": 0.5,
    },
}
POLICY = re.compile(
    r"(?:unpatched:(?P<unpatched>\d+)|(?:fixed:(?P<fixed>\d+)|sagc)(?P<tail>\+tail(?::(?P<ratio>\d+(\.\d+)?))?)?"
    r"(?P<lengths>\+lengths)?)(?:@(?P<hold>samples|prompts))?"
)
STEP = re.compile(r"Global step \d+: .*'timing/step_total': ([\d.]+)")
console = Console(stderr=True)


def flags_of(policy: str, algorithm: str, seed: int, control: dict[str, float]) -> tuple[str, list[str]]:
    """The tree of build/ and the flags of a run.

    Args:
        policy: as the module's docstring has it.
        algorithm: one of ALGORITHMS; grpo makes one optimizer step a rollout, dapo two.
        seed: of the run.
        control: flags of --rollout.sagc besides the sizes.

    Raises:
        SystemExit: a policy that is none.
    """
    found = POLICY.fullmatch(policy)
    if not found:
        raise SystemExit(
            f"eval/compare.py: --policies {policy}: use unpatched:N, fixed:N or sagc; after the latter two +tail or "
            "+tail:RESPONSE_RATIO, then +lengths; and @prompts at the end"
        )
    patched, hold = found["unpatched"] is None, found["hold"] or "samples"
    size = int(found["unpatched"] or found["fixed"] or SAMPLES // PROMPTS)
    prompts = PROMPTS if hold == "prompts" else SAMPLES // max(size, 1)
    if not size or not prompts or prompts * size % SAMPLES and hold == "samples":
        raise SystemExit(
            f"eval/compare.py: --policies {policy}: {size} does not divide the {SAMPLES} samples of a step"
        )
    settings = {
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": size,
        "train.batch_size": prompts * size // (2 if algorithm == "dapo" else 1),
        "train.micro_batch_size": min(prompts * size // 2, 64),
        "train.num_episodes": 100,  # the seconds end a run
        "train.seed": seed,
        "actor.lr_scheduler": "constant",
        "reward.remote_url": ROOT / "eval/graded_reward.py",
        "ckpt.best_metric_key": "none",
        **EVALUATION,
        **ALGORITHMS[algorithm],
    }
    if patched:
        settings |= {"rollout.sagc.enable": None, "rollout.sagc.hold": hold}
        settings |= {f"rollout.sagc.{name}": value for name, value in control.items()}
    if found["tail"]:
        settings["rollout.tail_batching.enable"] = None
    if found["ratio"]:
        settings["rollout.tail_batching.response_ratio"] = found["ratio"]
    if found["lengths"]:
        settings["rollout.length_aware_dispatch"] = None
    words = [word for name, value in settings.items() for word in (f"--{name}", value) if word is not None]
    if patched:
        words += ["--rollout.sagc.group_sizes", *([size] if found["fixed"] else SIZES)]
    return "cpu-patched" if patched else "cpu-base", list(map(str, words))


def make_task(folder: Path, seed: int) -> Path:
    """The warm-started model and its problems, made once a seed; the held-out ones are cut to EVALUATED."""
    if not (folder / "made").exists():
        script = ROOT / "train_scripts/countdown/warm_start.py"
        with console.status(f"seed {seed}: supervised warm start (2 minutes)"), (folder / "log").open("w") as log:
            command = [sys.executable, script, "--output", folder, "--seed", str(seed)]
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode:
                raise SystemExit(f"eval/compare.py: the warm start failed, see {folder / 'log'}")
        problems = (folder / "data/heldout.jsonl").read_text().splitlines(keepends=True)
        (folder / "data/evaluated.jsonl").write_text("".join(problems[:EVALUATED]))
        (folder / "made").touch()
    if not (folder / "data/start.csv").exists():
        evaluate_start(folder, seed)
    return folder


def evaluate_start(task: Path, seed: int) -> None:
    """Write data/start.csv, a row like those of `read_evaluations`: what the model reaches that all runs start from."""
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base", "python", ROOT / "eval/evaluate.py"]
    command += [
        "--models",
        task / "model",
        "--dataset",
        task / "data/evaluated.jsonl",
        "--responses",
        task / "start.jsonl",
    ]
    command += ["--grader", ROOT / "train_scripts/countdown/reward.py", "--seed", seed, "--enforce_eager"]
    command += ["--samples", EVALUATION["eval.n_samples_per_prompt"], "--max_new_tokens", MAX_NEW_TOKENS]
    with console.status(f"seed {seed}: evaluation of the start"), (task / "start.log").open("w") as log:
        if subprocess.run(map(str, command), stdout=log, stderr=subprocess.STDOUT).returncode:
            raise SystemExit(f"eval/compare.py: the evaluation of the start failed, see {task / 'start.log'}")
    problems = [json.loads(line) for line in (task / "start.jsonl").read_text().splitlines()]
    right = " ".join(str(sum(problem["correct"])) for problem in problems)
    start = {"step": 0, "seconds": 0.0, "samples": len(problems[0]["correct"]), "right": right}
    pd.DataFrame([start]).to_csv(task / "data/start.csv", index=False)


def train(task: Path, output: Path, tree: str, flags: list[str], seconds: float, progress: Progress, bar: int) -> None:
    """Train until the steps have taken `seconds` and the evaluation after that is over, or the data end.

    Raises:
        SystemExit: the run failed.
    """
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = ["bash", ROOT / "train_scripts/countdown/train.sh", tree, task, output, *flags]
    command += ["--eval.dataset", task / "data/evaluated.jsonl"]
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
        raise SystemExit(
            f"eval/compare.py: a run ended with exit code {code} after {spent or 0:.0f} of {seconds:.0f} s, "
            f"see {output / 'train.log'}"
        )


def run(arguments: argparse.Namespace, control: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every arm of every seed; the steps and the evaluations of all runs."""
    policies, output = arguments.policies, arguments.output.resolve()
    arms = [
        (seed, algorithm, policy)
        for turn, seed in enumerate(arguments.seeds)
        for algorithm in arguments.algorithms
        for policy in policies[turn % len(policies) :] + policies[: turn % len(policies)]
    ]
    plans = {arm: flags_of(arm[2], arm[1], arm[0], control) for arm in arms}  # a bad policy ends it here
    columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.completed:.0f}/{task.total:.0f} s"))
    steps, evaluations = [], []
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for number, (seed, algorithm, policy) in enumerate(arms, 1):
            task = output / f"task-{seed}"
            task.mkdir(parents=True, exist_ok=True)
            make_task(task, seed)
            folder = output / f"seed-{seed}" / algorithm / re.sub(r"[^a-z0-9]", "-", policy)
            tree, flags = plans[seed, algorithm, policy]
            done, plan = folder / "done.json", {"tree": tree, "flags": flags, "seconds": arguments.seconds}
            if not done.exists() or json.loads(done.read_text()) != plan:
                name = f"run {number} of {len(arms)}: seed {seed}, {algorithm}, {policy}"
                bar = progress.add_task(name, total=arguments.seconds)
                began = time.monotonic()
                train(task, folder, tree, flags, arguments.seconds, progress, bar)
                done.write_text(json.dumps(plan))
                progress.remove_task(bar)
                progress.console.print(f"{name}: {time.monotonic() - began:.0f} s")
            arm = {"seed": seed, "algorithm": algorithm, "policy": policy}
            made = read_steps(folder, task / "data/evaluated.jsonl", control["straggler_ratio"])
            steps.append(made.assign(**arm))
            evaluated = read_evaluations(folder, task / "data/evaluated.jsonl", made)
            evaluations.append(pd.concat([pd.read_csv(task / "data/start.csv"), evaluated]).assign(**arm))
    return pd.concat(steps, ignore_index=True), pd.concat(evaluations, ignore_index=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
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
    if arguments.seconds <= 0:
        raise SystemExit(f"eval/compare.py: --seconds {arguments.seconds} must be above 0")
    if not 0 < arguments.target < 1:
        raise SystemExit(f"eval/compare.py: --target {arguments.target} is a mean reward, between 0 and 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("eval/compare.py: stopped"))  # and the run with it
    control = {name: getattr(arguments, name) for name in ("max_straggler_rate", "straggler_ratio", "tradeoff")}
    arguments.output.mkdir(parents=True, exist_ok=True)
    steps, evaluations = run(arguments, control)
    settings = {"target": arguments.target, "seconds": arguments.seconds, **control}
    (arguments.output / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    steps.to_csv(arguments.output / "steps.csv", index=False, float_format="%.5g")
    evaluations.to_csv(arguments.output / "evaluations.csv", index=False, float_format="%.5g")
    print(write_report(arguments.output))


if __name__ == "__main__":
    main()
