"""Folders of the repository, and checks of paths that a user gives."""

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "eval/results"
ENGINES = ROOT / "eval/engines"
QUICKSTART = ROOT / "build/quickstart/seed-0"  # the folder that train_scripts/quickstart.sh makes


def output_folder(text: str) -> Path:
    """The argparse type of a folder for results, which need not be there yet.

    Raises:
        argparse.ArgumentTypeError: something else is in the way, or the system refuses the path.
    """
    path = Path(text)
    try:
        others = [part for part in (path, *path.parents) if os.path.lexists(part) and not part.is_dir()]
        path.exists()  # fails where a folder above is not readable
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}: give a folder") from error
    if others:
        raise argparse.ArgumentTypeError(f"{others[0]} is no folder: give one")
    return path


def check_output_file(flag: str, path: Path | None) -> None:
    """A file can be written there.

    Raises:
        ValueError: it cannot; the message begins with the flag.
    """
    if path and not path.parent.is_dir():
        raise ValueError(f"--{flag} {path}: there is no folder {path.parent}: make it first")
    if path and path.is_dir():
        raise ValueError(f"--{flag} {path}: it is a folder: give a file")


def check_task(task: Path) -> None:
    """The folder holds a warm-started model.

    Raises:
        ValueError: it does not; the message begins with --task.
    """
    if not (task / "model").is_dir():
        raise ValueError(f"--task {task} holds no model: run train_scripts/quickstart.sh")
