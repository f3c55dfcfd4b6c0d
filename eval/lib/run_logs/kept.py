"""What a run kept beside its log: a line a start in run.jsonl. It is data that anyone may have written."""

import json
import re
from pathlib import Path

from openrlhf_sagc.run.kept import FILE, SECRETS

LONGEST = 1 << 22  # bytes that are read, from the end
ABOVE = 3  # folders: --logger.tensorboard_dir/RUN stands below --ckpt.output_dir
NAME = re.compile(r"[a-z][a-z0-9_.]{0,80}|[A-Z][A-Z_]{0,40}")  # of flags and versions; of launch.sh's variables
PARTED = (dict, list)
PARTS = ("flags", "versions", "launch")


def kept_of(folder: Path) -> dict:
    """`command`, `flags`, `versions` and launch.sh's variables of the last start; empty if none can be read."""
    below = sorted(folder.glob(f"*/{FILE}"))  # --ckpt.output_dir in the folder of the run
    files = [place / FILE for place in (folder, *folder.resolve().parents[: ABOVE - 1])] + below[: len(below) == 1]
    return next((_last(file) for file in files if file.is_file()), {})


def _last(file: Path) -> dict:
    with file.open("rb") as stream:
        stream.seek(max(stream.seek(0, 2) - LONGEST, 0))
        lines = stream.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        try:
            start = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut
        if isinstance(start, dict):
            parts = {name: start.get(name) for name in PARTS}
            named = {name: _named(part) if isinstance(part, dict) else {} for name, part in parts.items()}
            return named | {"command": str(start.get("command", ""))}
    return {}


def _named(values: dict) -> dict:
    """Values, one or a list, whose names are names of flags, versions or variables, without those of secrets."""
    return {
        name: value
        for name, value in values.items()
        if NAME.fullmatch(name) and name not in SECRETS and not any(isinstance(item, PARTED) for item in _items(value))
    }


def _items(value: object) -> list:
    return value if isinstance(value, list) else [value]
