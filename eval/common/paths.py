"""Folders of the repository, and checks of paths that a user gives."""

import argparse
import contextlib
import itertools
import os
import tempfile
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


def set_aside(path: Path) -> Path | None:
    """Move a file or folder of an earlier run to `NAME.earlier-N` beside it, with the first N that is free.

    Returns:
        Where it is now; None if there was none.
    """
    if not path.is_symlink() and not path.is_file() and not path.is_dir():
        return None  # what is no file, like /dev/stdout, holds nothing
    is_folder = path.is_dir() and not path.is_symlink()
    stem, suffix = (path.name, "") if is_folder else (path.stem, path.suffix)
    for number in itertools.count(1):
        aside = path.with_name(f"{stem}.earlier-{number}{suffix}")
        with contextlib.suppress(FileExistsError):
            if is_folder:
                aside.mkdir()
            else:
                aside.open("x").close()
            path.replace(aside)  # in the place of what was just made
            return aside
    raise AssertionError("there is always a next number")


def write_whole(path: Path, text: str) -> None:
    """Write a file all at once, so that a command that is killed leaves what was there before."""
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    descriptor, fresh = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
