"""A launch script that a check starts, and what its output says."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lib.gpu_checks.outcomes import NotHere
from lib.gpu_checks.processes import ROOT, marked, started

PATCHED_TREE = ROOT / "build/cpu-patched"
STEPS = 4
LEAVING = 10.0  # seconds in which the last processes of a run that has ended may end
# The policy moves in each step, so that weights which did not reach the engines would be seen; the reference is the first policy.
MOVING = ("--actor.adam.lr", "3e-3", "--algo.kl.init_coef", "1e-8", "--ref.num_gpus_per_node", "1")
STEADY = ("--actor.lr_scheduler", "constant")
CORRECTED = ("--algo.advantage.is_correction_level", "token")
OWN_LINES = re.compile(r"(?:openrlhf_sagc|train_scripts/\w+\.(?:sh|py)): |[\w.]*(?:Error|Exception)\b")


class Ended(NamedTuple):
    """A run that has ended: its exit code (None: this check has ended it), its output, processes of it that are left."""

    code: int | None
    output: str
    left: list[int]
    ended: float  # on the clock

    @property
    def why(self) -> str:
        """The last line that says why a run has ended; empty if none does."""
        lines = [line for line in self.output.splitlines() if OWN_LINES.match(_bare(line))]
        return _bare(lines[-1]) if lines else ""

    @property
    def steps(self) -> dict[int, dict[str, float]]:
        """The metrics of each step."""
        from lib.run_logs.console import TRAIN, lines_of

        return {line.step: line.metrics for line in lines_of(self.output) if line.prefix == TRAIN}


def _bare(line: str) -> str:
    """Without colours, and without the Ray actor that printed it."""
    return re.sub(r"^\(\w+ [^)]*\) *", "", re.sub(r"\x1b\[[\d;]*m", "", line))


def need_stack(node) -> None:
    """
    Raises:
        NotHere: vLLM is missing, or the tree of the CPU stack.
    """
    if importlib.util.find_spec("vllm") is None or (node.dry_run and not PATCHED_TREE.exists()):
        raise NotHere("vLLM is not installed: bash install.sh, or bash train_scripts/setup.sh for a dry run")


def train(
    node,
    name: str,
    *words: str,
    watch: Callable[[str, str], bool] = lambda output, mark: False,
    keep: bool = False,
    **variables: object,
) -> Ended:
    """Run a launch script until it ends, or `watch` says that it may.

    Args:
        node: where.
        name: of the run's folder and log below the node's.
        words: the script in train_scripts and its arguments; `variables` are in its environment.
        watch: is given the output so far and the mark of the processes; what is left of the run ends once it is true.
        keep: go on in the folder of an earlier run.
    """
    output = node.folder / name
    if not keep:
        shutil.rmtree(output, ignore_errors=True)
    device = "cpu" if node.dry_run else "gpu"
    given = {"DEVICE": device, "STEPS": STEPS, "OUTPUT": output, "TASK": task_folder(node), **variables}
    given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = node.folder / f"{name}.log"
    command = ["bash", ROOT / "train_scripts" / words[0], *words[1:]]
    with started(command, log, {key: str(value) for key, value in given.items()}) as run:
        while (code := run.poll()) is None and not watch(log.read_text(errors="replace"), run.mark):
            time.sleep(0.2)
        ended = time.monotonic()
        left = [] if code is None else _left(run.mark)
    return Ended(code, log.read_text(errors="replace"), left, ended)


def _left(mark: str) -> list[int]:
    """Processes that are left of a run which has ended; the last ones may take some seconds."""
    deadline = time.monotonic() + LEAVING
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def task_folder(node) -> Path:
    """The folder of smoke.sh's task: the environment's, or one beside the checks' files."""
    return Path(os.environ.get("TASK") or node.folder / "task")


def model(node, name: str, **changes: object) -> Path:
    """The folder of an untrained model like the task's, but for changes of its config; made if need be."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    task = task_folder(node)
    if not (task / "model/config.json").exists():
        command = [sys.executable, ROOT / "train_scripts/warm_start.py", "--output", task, "--steps", "1"]
        subprocess.run(list(map(str, command)), check=True)
    folder = node.folder / name / "model"
    config = AutoConfig.from_pretrained(task / "model", **changes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(task / "model").save_pretrained(folder)
    return folder


def texts(node) -> list[str]:
    """The task's prompts."""
    lines = (task_folder(node) / "data/train.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]
