"""Folders of the repository, and checks of paths that a user gives."""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "eval/studies"  # with their results
ENGINES = ROOT / "eval/engines"
QUICKSTART = ROOT / "build/quickstart/seed-0"  # the folder that train_scripts/quickstart.sh makes
MOST_LINKS = 40  # as on Linux


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
        raise argparse.ArgumentTypeError(f"{others[0]} is not a folder: give one")
    return path


def study_flags(description: str | None, folder: Path) -> argparse.ArgumentParser:
    """The parser of a study, with --output, by default its folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=output_folder, default=folder, help="folder for the results")
    return parser


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


def check_overwritten(inputs: dict[str, Path | None], outputs: dict[str, Path | None]) -> None:
    """No output takes the place of an input or of another output, by whatever name.

    Raises:
        ValueError: one does; the message begins with its flag.
    """
    taken = {os.path.realpath(path): flag for flag, path in inputs.items() if path}
    for flag, path in outputs.items():
        if path is None or is_no_plain_file(path):
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise ValueError(f"--{flag} {path}: it is the file of --{taken[place]} too: give another one")
        taken[place] = flag


def is_no_plain_file(path: Path) -> bool:
    """Whether the path is a device, a pipe or a folder, or leads to something below /dev or /proc, such as /dev/stdout.

    Below those a plain file may be the command's own output.
    """
    place = os.fspath(path)
    for _ in range(MOST_LINKS):
        place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        if place.startswith(("/dev/", "/proc/")) and not place.startswith("/dev/shm/"):
            return True
        if not os.path.islink(place):
            break
        place = os.path.join(os.path.dirname(place), os.readlink(place))
    return os.path.exists(place) and not os.path.isfile(place)


def set_aside(path: Path) -> Path | None:
    """Move a plain file or a folder of an earlier run to `NAME.earlier-N` beside it, with the first N that is free.

    A link to a file stays where it is, and the file that it leads to is moved.

    Returns:
        Where it is now; None if there was none.
    """
    is_folder = path.is_dir()
    if not is_folder and is_no_plain_file(path):
        return None  # what is no file, like /dev/stdout, holds nothing
    if not is_folder:
        path = Path(os.path.realpath(path))
        if not path.is_file():
            return None
    stem, suffix = (path.name, "") if is_folder else (path.stem, path.suffix)
    is_folder = is_folder and not path.is_symlink()
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
    """Write a file all at once, so that a command that is killed leaves what was there before.

    A link stays, and what it leads to is written. What is not a plain file, such as /dev/stdout, is appended to.
    """
    if is_no_plain_file(path):
        sys.stdout.flush()
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
        return
    path = Path(os.path.realpath(path))
    descriptor, fresh = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0o077)
        os.umask(umask)
        os.chmod(fresh, 0o666 & ~umask)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
