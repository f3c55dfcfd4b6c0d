"""Holds the folders that a run writes to, so that no second run writes there, and refuses outputs that would be overwritten.

Two locks of the system hold a folder. One is on the folder itself, so no file that is deleted takes it away. Network file
systems keep that lock on one node; the other one, on a file in the folder, reaches the others and names the run.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openrlhf_sagc.config.refusal import ROLLOUTS_TO, TRACE, refuse
from openrlhf_sagc.config.settings import Settings

LOCK = "openrlhf_sagc.lock"  # file in each of the folders
ROTATED = ("_actor", "_critic")  # folders of --ckpt.path in which OpenRLHF deletes what it takes for old checkpoints
MODELS = ("actor", "ref", "critic", "reward")  # sections of flags with a model_name_or_path


@contextmanager
def held_folders(args: Settings) -> Iterator[dict[str, str]]:
    """Hold the run's output folders until it ends, however it ends: the system releases the locks of a dead process.

    A folder of checkpoints that are only loaded may be read-only; then it is not held.

    Yields:
        Flag -> folder, of those that are held.

    Raises:
        SystemExit: another run holds one of them, it cannot be written to, or the run would overwrite what it loads or
            delete what it writes; the message is one line.
    """
    folders = _output_folders(args)
    _refuse_clashes(args, folders)
    with ExitStack() as stack:
        seen, names = set(), {}
        for flag, folder in folders.items():
            if flag == "--ckpt.path" and not saves(args) and not os.access(folder, os.W_OK):
                continue
            status = _made(flag, folder)
            if (status.st_dev, status.st_ino) not in seen:  # two flags may name one folder, in any words
                stack.enter_context(held(flag, folder))
            seen.add((status.st_dev, status.st_ino))
            names[flag] = folder
        yield names


def _output_folders(args: Settings) -> dict[str, str]:
    """Flag -> folder that the run writes to; without any checkpoints --ckpt.path may be shared."""
    folders = {"--ckpt.output_dir": args.ckpt.output_dir}
    if saves(args) or args.ckpt.load_enable:
        folders["--ckpt.path"] = args.ckpt.path
    if args.logger.tensorboard_dir:
        folders["--logger.tensorboard_dir"] = os.path.join(args.logger.tensorboard_dir, args.logger.wandb.run_name)
    if kept := getattr(getattr(args, "train", None), "rollouts_to", None):  # not a flag of OpenRLHF's
        folders[ROLLOUTS_TO] = kept
    return folders


def saves(args: Settings) -> bool:
    """Whether the run saves checkpoints."""
    saves_best = args.eval.dataset and args.eval.steps > 0 and args.ckpt.best_metric_key != "none"
    return bool(args.ckpt.save_steps > 0 or saves_best)


def needs_checkpoints(args: Settings) -> bool:
    """Whether the run saves or loads checkpoints."""
    return saves(args) or args.ckpt.load_enable


def _refuse_clashes(args: Settings, folders: dict[str, str]) -> None:
    """Refuse a trained model in the place of one that is loaded, and outputs where OpenRLHF deletes old checkpoints."""
    for section in MODELS:
        model = getattr(getattr(args, section, None), "model_name_or_path", None)
        refuse(
            model and os.path.isdir(model) and os.path.realpath(model) == os.path.realpath(args.ckpt.output_dir),
            f"--ckpt.output_dir {args.ckpt.output_dir} is the folder of --{section}.model_name_or_path too, so the trained "
            "model would overwrite it: give another --ckpt.output_dir",
        )
    checkpoints = Path(os.path.realpath(args.ckpt.path))
    trace = getattr(getattr(args, "rollout", None), "trace", None)  # of which OpenRLHF's own flags know nothing
    outputs = folders | ({TRACE: trace} if trace else {})
    for flag, path in outputs.items():
        inside = [name for name in ROTATED if Path(os.path.realpath(path)).is_relative_to(checkpoints / name)]
        refuse(
            inside,
            f"{flag} {path} lies in a folder {''.join(inside[:1])}, where OpenRLHF deletes old checkpoints: give a path "
            "outside of it",
        )


def _made(flag: str, folder: str) -> os.stat_result:
    """The folder, made if it was not there."""
    try:
        os.makedirs(folder, exist_ok=True)
        return os.stat(folder)
    except (OSError, ValueError) as error:
        raise _unusable(flag, folder, error) from None


def _unusable(flag: str, folder: str, error: Exception) -> SystemExit:
    reason = getattr(error, "strerror", None) or error
    return SystemExit(f"openrlhf_sagc: {flag} {folder} cannot be written to: {reason}")


@contextmanager
def held(flag: str, folder: str) -> Iterator[None]:
    """Hold one folder, which is there, by both locks.

    Raises:
        SystemExit: another process holds it, or it cannot be written to; the message is one line with the flag.
    """
    lock = os.path.join(folder, LOCK)
    not_plain = f"{flag} {folder} cannot be held, since its {LOCK} is not a plain file: delete that"
    with ExitStack() as stack:
        try:
            itself = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, itself)
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            stack.callback(os.close, file)
        except OSError as error:
            refuse(error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO), not_plain)
            refuse(
                isinstance(error, PermissionError) and os.path.lexists(lock) and os.access(folder, os.W_OK),
                f"{flag} {folder} cannot be held, since its {LOCK} is of another user's run: delete that if the run has ended, "
                "or give this run a separate folder",
            )
            raise _unusable(flag, folder, error) from None
        status = os.fstat(file)
        refuse(not stat.S_ISREG(status.st_mode) or status.st_nlink > 1, not_plain)  # a link's target is someone's file
        for descriptor in (itself, file):
            refuse(
                not _lock(descriptor, f"{flag} {folder}"),
                f"{flag} {folder} is in use by another run, {_holder(file) or 'which begins just now'}: wait for its end, "
                "or give this run a separate folder",
            )
        with suppress(OSError):  # a full disk: the lock is held, and names nobody
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield


def _lock(descriptor: int, name: str) -> bool:
    """Whether this process has the lock now; some network file systems have none, which is said."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(f"openrlhf_sagc: {name} cannot be locked ({error.strerror}): let no second run write there")
    return True


def _holder(file: int) -> str:
    """The run that the lock file names; empty if it names none."""
    return os.pread(file, 200, 0).decode(errors="replace").strip()
