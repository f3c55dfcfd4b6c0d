"""Does anything grow with time? Trains the quickstart's model and watches the memory of every process of the run.

It trains on the CPU stack with all policies switched on (group control, tail batching, placed rollouts, dynamic sampling, a
trace, checkpoints), and then unpatched OpenRLHF for a while. For each process it prints MB a step, by a straight line through
the last three quarters of its samples. Pages that it shares with others do not count, such as those of Ray's object store.
It ends with exit code 1 if a process of ours grows by more than the bar, and writes samples.csv. It belongs to the release's
checklist (CONTRIBUTING.md), and needs 5 GB of memory and the folder that train_scripts/quickstart.sh makes.
"""

import argparse
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from lib.paths import QUICKSTART, ROOT, check_task, output_folder
from lib.run_logs.console import STEP_END
from lib.runs import train_command
from lib.tables import show
from lib.turns import Run, end, opened_log

BAR = 0.02  # MB a step
SAMPLE_SECONDS = 5.0
RAYS_OWN = ("gcs_server", "raylet", "dashboard", "log_monitor", "runtime_env_agent", "ray::IDLE")  # not judged
VLLMS_OWN = ("VLLM::EngineCore",)  # neither: until all of its KV cache was used once, it takes new pages of it
LIMIT = 0.3  # highest straggler rate, as in the quickstart
FLAGS = {
    "actor.adam.lr": 8e-5,
    "train.num_episodes": 1000,  # the time ends a run
    "ckpt.save_steps": 20,
    "ckpt.max_num": 1,
    "ckpt.best_metric_key": "none",
}
OURS = {
    "rollout.sagc.enable": None,
    "rollout.sagc.group_sizes": "4 8 16",
    "rollout.sagc.max_straggler_rate": LIMIT,
    "rollout.tail_batching.enable": None,
    "rollout.length_aware_dispatch": None,
    "algo.dynamic_filtering_enable": None,
}


def soak(name: str, tree: str, flags: dict, arguments: argparse.Namespace, minutes: float) -> pd.DataFrame:
    """Train for so many minutes or `arguments.steps`; a row a sample and process: steps so far, process, its MB.

    Raises:
        ValueError: the run ended before that.
    """
    folder = arguments.output.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = {**FLAGS, **flags, "ckpt.path": folder / "checkpoints"}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", *str(value or "").split())]
    rows, log, started = [], folder / "train.log", time.monotonic()
    with opened_log(log) as sink:
        command = list(map(str, train_command(tree, arguments.task.resolve(), folder, words)))
        run = Run(psutil.Popen(command, stdout=sink, stderr=subprocess.STDOUT), log)
    try:
        steps = 0
        while time.monotonic() < started + 60 * minutes and steps < (arguments.steps or np.inf):
            if run.process.poll() is not None:
                raise ValueError(f"the run {name} ended after {steps} steps, see {log}")
            time.sleep(SAMPLE_SECONDS)
            steps = len(STEP_END.findall(log.read_text(errors="replace")))
            rows += [(name, steps, process, megabytes) for process, megabytes in memory_of(run.family())]
    finally:
        end([run])
    return pd.DataFrame(rows, columns=["run", "step", "process", "MB"])


def memory_of(processes: list[psutil.Process]) -> Iterator[tuple[str, float]]:
    """Name and pid of each process, and the MB that it has alone."""
    for process in processes:
        with suppress(psutil.Error):
            memory = process.memory_info()
            yield f"{role_of(process.cmdline())} {process.pid}", (memory.rss - memory.shared) / 1e6


def role_of(command: list[str]) -> str:
    """What a process is: Ray and vLLM write it into the command; ray::Actor.method is the actor."""
    if not command or not command[0]:
        return "ended"
    words = command[0].split()
    if "::" in words[0]:
        return words[0].partition(".")[0]
    names = [Path(word).name for word in [*words, *command[1:]]]
    interpreted = re.match(r"python|bash|sh$", names[0]) and next((n for n in names[1:] if not n.startswith("-")), "")
    return interpreted or names[0]


def growth(samples: pd.DataFrame) -> pd.DataFrame:
    """A row a process that lives through the last three quarters of the steps: MB at their start and end, MB a step.

    Raises:
        ValueError: there are too few steps.
    """
    last = samples["step"].max()
    late = samples[samples["step"] >= last / 4]
    if late["step"].nunique() < 4:
        raise ValueError(f"{last} steps are too few to see what grows: give it more --minutes")
    rows = []
    for process, own in late.groupby("process"):
        if own["step"].min() <= last / 2 and own["step"].max() >= 0.9 * last and own["step"].nunique() > 1:
            slope = np.polyfit(own["step"], own["MB"], 1)[0]
            rows.append((process, own["MB"].iloc[0], own["MB"].iloc[-1], slope))
    found = pd.DataFrame(rows, columns=["process", "MB at a quarter", "MB at the end", "MB a step"])
    return found.sort_values("MB a step", ascending=False, ignore_index=True)


def too_fast(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of processes that grow by more than BAR, those of Ray and vLLM left out."""
    return found[(found["MB a step"] > BAR) & ~found["process"].str.startswith(RAYS_OWN + VLLMS_OWN)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--task", type=Path, default=QUICKSTART, help="folder that train_scripts/quickstart.sh has made"
    )
    parser.add_argument("--minutes", type=float, default=20, help="of training with this project")
    parser.add_argument(
        "--unpatched_minutes", type=float, default=8, help="of training with unpatched OpenRLHF, 0 for none"
    )
    parser.add_argument("--steps", type=int, help="ends a run before its minutes are over")
    parser.add_argument("--output", type=output_folder, default=ROOT / "build/soak")
    arguments = parser.parse_args()
    check_task(arguments.task)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    trace = {"rollout.trace": arguments.output.resolve() / "ours/trace.csv"}
    ours = soak("ours", "cpu-patched", {**OURS, **trace}, arguments, arguments.minutes)
    runs = {"ours": ours}
    if arguments.unpatched_minutes:
        runs["unpatched"] = soak("unpatched", "cpu-base", {}, arguments, arguments.unpatched_minutes)
    pd.concat(runs.values()).to_csv(arguments.output / "samples.csv", index=False, float_format="%.1f")
    for name, samples in runs.items():
        show(f"{name}: {samples['step'].max()} steps", growth(samples))
    grown = too_fast(growth(ours))
    if len(grown):
        raise ValueError(f"grows by more than {BAR} MB a step: {', '.join(grown['process'])}")
