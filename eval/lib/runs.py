"""Training runs on the CPU stack, each done once."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lib.machine import data_type
from lib.paths import ROOT
from lib.turns import opened_log, refuse_if_written


def once(folder: Path, made_with: Any, make: Callable[[], Any]) -> Any:
    """What `make` returned when it last ran for this folder, if `made_with` was the same; else it runs now, and says so.

    Both are JSON values. They are kept in the folder's done.json.

    Raises:
        ValueError: a run of an earlier start writes the folder's train.log; then everything is left as it is.
    """
    if not is_done(folder, made_with):
        refuse_if_written(folder / "train.log")
        if (folder / "done.json").exists():
            print(f"{folder} was made with another package, task or flags: it runs again", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "done.json").unlink(missing_ok=True)
        set_done(folder, made_with, make())
    return json.loads((folder / "done.json").read_text())["result"]


def is_done(folder: Path, made_with: Any) -> bool:
    """Whether the folder's run is finished, and was made with this."""
    done = folder / "done.json"
    return done.exists() and json.loads(done.read_text())["made_with"] == made_with


def set_done(folder: Path, made_with: Any, result: Any = None) -> None:
    """The folder's run is finished."""
    (folder / "done.json").write_text(json.dumps({"made_with": made_with, "result": result}))


def turns_of(folder: Path) -> list[str]:
    """The policies that the folder's finished run took turns with, itself included."""
    return json.loads((folder / "done.json").read_text())["result"]


def check_not_other(folder: Path, made_with: dict) -> None:
    """No finished run is deleted for one that is made with something else.

    Raises:
        ValueError: the folder's finished run was made with something else.
    """
    done = folder / "done.json"
    if not done.exists():
        return
    before = json.loads(done.read_text())["made_with"]
    other = ", ".join(name for name in made_with if before.get(name) != made_with[name])
    if other:
        raise ValueError(
            f"{folder} is finished, made with another or an unknown {other}: take another --output, or delete it to train it "
            "again"
        )


def state_of(tree: str, task: Path) -> dict[str, str]:
    """What a training run depends on beside its flags: digests of the package, the set-up, the task's model and data; data type.

    The set-up is the patches, the requirements, the scripts that train and the reward.
    """
    package = sorted((ROOT / "openrlhf_sagc").rglob("*.py")) if tree == "cpu-patched" else []
    scripts = sorted(path for path in (ROOT / "train_scripts").rglob("*") if path.suffix in (".py", ".sh"))
    set_up = [ROOT / "build/stamp", ROOT / "requirements-cpu.txt", ROOT / "eval/lib/synthetic_reward.py", *scripts]
    return {
        "package": _digest(package),
        "set-up": _digest(set_up),
        "model": _digest(sorted((task / "model").glob("*.safetensors"))),
        "data": _digest([task / "data/train.jsonl", task / "data/evaluated.jsonl"]),
        "data type": data_type(),
    }


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.exists())).hexdigest()[:16]


def train_command(tree: str, task: Path, output: Path, flags: list[str], *, eager: bool = True) -> list:
    """The command that trains on a warm-started task with the OpenRLHF of build/TREE.

    Args:
        eager: whether engines start at once. Compiled ones are faster only after dozens of steps.
    """
    script = ROOT / "train_scripts/countdown/train.sh"
    return ["bash", script, tree, task, output, *flags, *(["--vllm.enforce_eager"] if eager else [])]


def run_logged(command: list, log: Path, **environment: str) -> int:
    """Run a command with all its output in `log`; its exit code.

    Raises:
        ValueError: a run of an earlier start writes the log.
    """
    with opened_log(log) as sink:
        return subprocess.run(
            list(map(str, command)), stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        ).returncode
