"""The arms of the study, and the commands of their runs."""

import subprocess
import sys
from pathlib import Path

from lib.comparison.arms import MICRO_BATCH_SIZE, PROMPTS, SAMPLES, flags_of
from lib.comparison.tasks import task_of
from lib.machine import data_type
from lib.paths import ROOT
from lib.runs import train_command
from lib.turns import GIGABYTES

SIZE = SAMPLES // PROMPTS
UNPATCHED, DEFAULTS, COMPILED, TRL, FLOOR = ARMS = ["unpatched", "defaults", "compiled", "trl", "floor"]
POLICIES = {UNPATCHED: f"unpatched:{SIZE}", DEFAULTS: f"fixed:{SIZE}", COMPILED: f"fixed:{SIZE}"}  # of OpenRLHF's arms
# TRL pads to the longest of the step in any micro-batch, and 64 samples take less time than 16.
ONE_PROCESS = {TRL: ("with_trl.py", 64), FLOOR: ("bare.py", MICRO_BATCH_SIZE)}
GIGABYTES_OF_ONE_PROCESS = 3
TRL_FILE = Path(__file__).parent / "trl.txt"  # with its hash
TRL_NAME = TRL_FILE.read_text().split()[0].replace("==", "-")
TRL_FOLDER = ROOT / "build" / TRL_NAME


def gigabytes_of(arm: str) -> int:
    """Memory that the arm's run needs at most."""
    return GIGABYTES_OF_ONE_PROCESS if arm in ONE_PROCESS else GIGABYTES


def command_of(arm: str, task: Path, seed: int, steps: int, threads: int, folder: Path) -> list:
    """The command of an arm's run, whose results are in the folder; `threads` are those of an arm of one process."""
    if arm in ONE_PROCESS:
        return _one_process(arm, task, seed, steps, threads, folder)
    return _openrlhf(arm, task, seed, steps, folder)


def _openrlhf(arm: str, task: Path, seed: int, steps: int, folder: Path) -> list:
    kind = task_of(task)
    tree, flags = flags_of(POLICIES[arm], "grpo", seed, control={}, task=kind)
    settings = {
        "reward.remote_url": kind.grader,
        "train.num_episodes": 1,
        "data.max_samples": steps * PROMPTS,
        "actor.adam.lr": 0,
    }
    flags += [str(word) for name, value in settings.items() for word in (f"--{name}", value)]  # later ones win
    return train_command(tree, task, folder, flags, eager=arm != COMPILED)


def _one_process(arm: str, task: Path, seed: int, steps: int, threads: int, folder: Path) -> list:
    script, micro_batch_size = ONE_PROCESS[arm]
    kind = task_of(task)
    words = {
        "model": task / "model",
        "prompts": task / "data/train.jsonl",
        "grader": kind.grader,
        "output": folder / "steps.jsonl",
        "dtype": data_type(),
        "steps": steps,
        "seed": seed,
        "groups": PROMPTS,
        "size": SIZE,
        "micro_batch_size": micro_batch_size,
        "max_new_tokens": kind.max_new_tokens,
        "max_len": kind.max_len,
    }
    flags = [word for name, value in words.items() for word in (f"--{name}", value)]
    packages = [ROOT / "eval", *([TRL_FOLDER] if arm == TRL else [])]
    environment = ["env", "-u", "TORCHDYNAMO_DISABLE", f"OMP_NUM_THREADS={threads}"]  # so vLLM compiles
    environment += [f"PYTHONPATH={':'.join(map(str, packages))}"]
    on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base"]
    return [*on_cpu, *environment, "python", Path(__file__).parent / script, *flags]


def install_trl() -> None:
    """Put TRL into build/, where only its arm finds it; what it needs is in the virtual environment.

    Raises:
        ValueError: pip did not.
    """
    if (TRL_FOLDER / f"{TRL_NAME}.dist-info").is_dir():
        return
    print(f"{TRL_NAME} is installed into {TRL_FOLDER}, for its arm only", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if code := subprocess.run([*pip, "--require-hashes", "--target", TRL_FOLDER, "-r", TRL_FILE]).returncode:
        raise ValueError(f"pip could not install {TRL_NAME} (exit code {code}): leave trl out of --arms")
