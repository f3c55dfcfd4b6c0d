"""The folders that a run writes to: no second run writes there, and a resumed run begins at a whole checkpoint."""

import fcntl
import os
import re
import socket
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from openrlhf_sagc.argument_checks import refuse

LOCK = "openrlhf_sagc.lock"  # file in each of the folders
SAVED = "metric.json"  # what OpenRLHF writes into a checkpoint once every rank has saved


@contextmanager
def held_folders(args: SimpleNamespace) -> Iterator[None]:
    """Hold the run's output folders until it ends, however it ends: the system releases the locks of a dead process.

    A folder of checkpoints that are only loaded may be read-only; then it is not held.

    Raises:
        SystemExit: another run holds one of them, or it cannot be written to; the message is one line.
    """
    with ExitStack() as stack:
        held = set()
        for flag, folder in _output_folders(args).items():
            if flag == "--ckpt.path" and not _saves(args) and not os.access(folder, os.W_OK):
                continue
            if os.path.realpath(folder) not in held:
                stack.enter_context(_held(flag, folder))
            held.add(os.path.realpath(folder))
        yield


def _output_folders(args: SimpleNamespace) -> dict[str, str]:
    """Flag -> folder that the run writes to; without any checkpoints --ckpt.path may be shared."""
    folders = {"--ckpt.output_dir": args.ckpt.output_dir}
    if _saves(args) or args.ckpt.load_enable:
        folders["--ckpt.path"] = args.ckpt.path
    return folders


def _saves(args: SimpleNamespace) -> bool:
    """Whether the run saves checkpoints."""
    saves_best = args.eval.dataset and args.eval.steps > 0 and args.ckpt.best_metric_key != "none"
    return bool(args.ckpt.save_steps > 0 or saves_best)


@contextmanager
def _held(flag: str, folder: str) -> Iterator[None]:
    """Hold one folder, by a lock on a file that names this run."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, LOCK), "a+")
    except OSError as error:
        raise SystemExit(f"openrlhf_sagc: {flag} {folder} cannot be written to: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            refuse(
                True,
                f"{flag} {folder} is in use by another run, {file.read().strip() or 'which begins just now'}: "
                "wait for its end, or give this run a folder of its own",
            )
        except OSError as error:  # some network file systems have no locks
            print(f"openrlhf_sagc: {flag} {folder} cannot be locked ({error.strerror}): let no second run write there")
        with suppress(OSError):  # a full disk: the lock is held, and names nobody
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def choose_checkpoint(args: SimpleNamespace) -> None:
    """Have a resumed run go on from the newest whole checkpoint, where the one that `latest` names is not whole.

    Where none was ever saved to its end, the run begins anew: whoever starts it again after every fault need not look.

    Raises:
        SystemExit: there are checkpoints, but none is whole any more; or `latest` cannot be mended. The message is one line.
    """
    folder = Path(args.ckpt.path, "_actor")
    if not args.ckpt.load_enable or args.ds.use_universal_ckpt or not folder.is_dir():
        return
    latest = folder / "latest"
    named = latest.read_text().strip() if latest.is_file() else ""
    problem = _problem(folder / named) if named else "it names none"
    if not problem:
        return
    saved = [path for path in folder.iterdir() if (path / SAVED).exists()]  # to their end
    if not saved:
        print(f"openrlhf_sagc: no checkpoint in {folder} was saved to its end: the run begins anew")
        args.ckpt.load_enable = False
        return
    whole = [path for path in saved if not _problem(path)]
    newest = max(whole, key=lambda path: (_step(path), path.stat().st_mtime), default=None)
    if newest is None:
        raise SystemExit(
            f"openrlhf_sagc: --ckpt.load_enable finds no whole checkpoint in {folder} (`latest`: {problem}): delete the "
            "folder to begin anew, or give --ckpt.path of another one"
        )
    print(f"openrlhf_sagc: {latest} does not lead to a whole checkpoint ({problem}): going on from {newest.name}")
    fresh = folder / "latest.new"
    try:
        fresh.write_text(newest.name)
        fresh.replace(latest)
    except OSError as error:
        raise SystemExit(
            f"openrlhf_sagc: {latest} cannot be written to ({error.strerror}): let it hold {newest.name}"
        ) from None


def _step(checkpoint: Path) -> int:
    """The step in the checkpoint's name."""
    number = re.search(r"global_step(\d+)$", checkpoint.name)
    return int(number[1]) if number else -1


def _problem(checkpoint: Path) -> str:
    """Why this is no whole checkpoint, for a message; empty if it is one.

    PyTorch's files are zip archives, whose directory is at the end. One that was cut short has none.
    """
    if not checkpoint.is_dir():
        return f"{checkpoint.name} is gone"
    files = sorted(checkpoint.rglob("*.pt"))
    if not any(file.name.endswith("model_states.pt") for file in files):
        return f"{checkpoint.name} has no model"
    for file in files:
        if not file.stat().st_size or (_is_zip(file) and not zipfile.is_zipfile(file)):
            return f"{checkpoint.name}/{file.name} was cut short"
    if not (checkpoint / SAVED).exists():
        return f"{checkpoint.name} was not saved to its end"
    return ""


def _is_zip(file: Path) -> bool:
    with file.open("rb") as start:
        return start.read(2) == b"PK"
