"""What a run keeps in --ckpt.output_dir: a line a start in run.jsonl, for its user only, and its output in run.log."""

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_sagc import __version__
from openrlhf_sagc.redaction import HIDDEN, without_secrets
from openrlhf_sagc.run.output import keep_output
from openrlhf_sagc.run.trees import VERSION, Tree, digest

FILE, LOG = "run.jsonl", "run.log"
LIBRARIES = ("torch", "vllm", "deepspeed", "ray", "transformers")
DRIVER = Path("/proc/driver/nvidia/version")
SECRETS = {"logger.wandb.key"}
LAUNCHED = "OPENRLHF_SAGC_LAUNCHED"  # variables of launch.sh, as NAME=VALUE,NAME=VALUE


def keep_run(
    module: str,
    words: Sequence[str],
    args: SimpleNamespace | argparse.Namespace,
    tree: Tree,
    held: dict[str, Any] | None = None,
) -> None:
    """Note this start, and from here on keep what this process prints. Where that cannot be written it is a warning.

    Args:
        module: of the command.
        words: its flags as they were given.
        args: the flags as they were parsed: nested by the dots in their names, or flat with dots.
        tree: that the command runs.
        held: values of flags that hold, whatever was given, since the run goes on with a checkpoint's.
    """
    flags = {name: _shown(name, value) for name, value in _flat(vars(args))}
    folder = Path(dict(_flat(vars(args)))["ckpt.output_dir"])
    start = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", "-m", module, *words]),  # it can be run again
        "flags": flags,
        "versions": _versions(tree),
    }
    if held:
        start["held"] = held
    if variables := os.environ.get(LAUNCHED):
        pairs = [word.partition("=") for word in variables.split(",")]
        start["launch"] = {name: _shown(name, value) for name, _, value in pairs}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / FILE, "a", encoding="utf-8", opener=_private) as file:
            file.write(json.dumps(start) + "\n")
        keep_output(folder / LOG)
    except OSError as error:
        print(f"openrlhf_sagc: {folder} gets no {FILE} and {LOG} of this run: {error.strerror}", file=sys.stderr)


def _private(path: str, flags: int) -> int:
    """Open a file that its user alone can read, also if an earlier version has made it."""
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, SimpleNamespace):
            yield from _flat(vars(value), f"{before}{name}.")
        else:
            yield before + name, value


def _shown(name: str, value: Any) -> Any:
    """A flag's value as JSON has it, without secrets."""
    if name in SECRETS:
        return value and HIDDEN
    if isinstance(value, (list, tuple)):
        return [_shown(name, item) for item in value]
    if isinstance(value, str):
        return without_secrets(str(value))
    return value if value is None or isinstance(value, (bool, int, float)) else without_secrets(repr(value))


def _versions(tree: Tree) -> dict[str, str | None]:
    """Of OpenRLHF and its patches, this package, what trains and generates, and the GPU's driver."""
    versions: dict[str, str | None] = {
        "openrlhf": f"{VERSION} {tree.name} {digest(tree.folder)}",
        "openrlhf_sagc": __version__,
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            versions[library] = None
    try:
        versions["driver"] = DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        versions["driver"] = None
    return versions
