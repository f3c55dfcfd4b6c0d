"""The trace of a run: a row a rollout, in a CSV file that eval/simulate.py and eval/compare.py read."""

import fcntl
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from openrlhf_sagc.config.checks import check_trace
from openrlhf_sagc.config.refusal import TRACE, refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.decisions.length_prediction import key_of
from openrlhf_sagc.decisions.records import Back, Prompt
from openrlhf_sagc.decisions.step import Step

COLUMNS = ("prompt_id", "sample_id", "tokens", "correct", "truncated", "step", "group_size", "seconds", "stopped")
HEADER = ",".join(COLUMNS).encode() + b"\n"
CHUNK = 1 << 20  # bytes that are read at a time
RIGHT_ABOVE = 0.5  # score of a correct rollout, as eval/evaluate.py has it


class RunTrace:
    """Rows of the rollouts that came back, appended to a file at the end of every step.

    A checkpoint has the length and the digest of the run's rows. A resumed run goes on behind them: it moves what follows
    into a file of its own, since it rolls that out again. So a rollout has one row, and no row is lost. If the file begins
    with other rows, it is another run's, and all of them are moved.

    Args:
        path: of the file; None for no trace.
        warn: called once if rows are missing, and with the name of every file that rows were moved to.
    """

    def __init__(self, path: str | None, warn: Callable[[str], None]) -> None:
        self._path, self._warn = path, warn
        self._rows: list[str] = []
        self._length = 0  # bytes of the file that are of this run
        self._digest = hashlib.blake2b(digest_size=16)  # of these bytes
        self._saved_digest: str | None = (
            None  # of those that a checkpoint knows of, until the file was compared with it
        )

    def add(self, step: Step, back: Back) -> None:
        """Note all rollouts of a group that is back, stopped ones included.

        Args:
            step: in which it came back.
            back: its responses have `truncated`, and `scores` or `reward` if they are known.
        """
        if self._path is None:
            return
        group, prompt = back.group, prompt_id(back.group.prompt)
        for place, (rollout, response) in enumerate(zip(back.rollouts, back.responses)):
            ended_early = not rollout.finished or rollout.failure is not None
            row = (
                prompt,
                f"{group.number}-{place}",
                rollout.tokens,
                "" if ended_early else _is_correct(response),
                "" if ended_early else int(bool(response.get("truncated"))),
                step.number + 1,
                group.size,
                f"{rollout.running_seconds:.4g}",
                int(ended_early),
            )
            self._rows.append(",".join(map(str, row)) + "\n")

    def write(self) -> None:
        """Append what was noted behind the rows that the run has written."""
        if self._path is None:
            return
        rows, self._rows = "".join(self._rows).encode(), []
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab+") as file:
                self._go_to_own_end(file)
                rows = rows if self._length else HEADER + rows
                file.write(rows)
            self._length += len(rows)
            self._digest.update(rows)
        except OSError as error:
            self._warn(f"{TRACE} {self._path} cannot be written to ({error.strerror}): the trace ends here")
            self._path = None

    def _go_to_own_end(self, file: BinaryIO) -> None:
        """Leave the rows of this run in the file, whole ones alone if it has lost some, and move all others."""
        if self._saved_digest is not None:
            self._take_up(file)
        size = file.seek(0, os.SEEK_END)
        if size < self._length:
            file.seek(0)
            whole = file.read(size).rfind(b"\n") + 1
            self._warn(f"{TRACE} {self._path} has {whole} of {self._length} bytes: rows of earlier steps are missing")
            self._count(file, whole)
        if size > self._length:
            aside = move_rows(file, str(self._path), self._length)
            self._warn(f"{TRACE} {self._path} had rows that no checkpoint of this run knows of, now in {aside}")

    def _take_up(self, file: BinaryIO) -> None:
        """Compare the file with what the checkpoint knows; if it begins with other rows, none of them are the run's."""
        known, self._saved_digest = self._saved_digest, None
        is_long_enough = file.seek(0, os.SEEK_END) >= self._length
        file.seek(max(self._length - 1, 0))
        ends_a_row = not self._length or file.read(1) == b"\n"  # a checkpoint without a digest may be another run's
        self._count(file, self._length)
        if not is_long_enough or not ends_a_row or (known and self._digest.hexdigest() != known):
            self._count(file, 0)

    def _count(self, file: BinaryIO, length: int) -> None:
        """The first `length` bytes of the file are the run's."""
        self._length = length
        self._digest = hashlib.blake2b(digest_size=16)
        file.seek(0)
        while length > 0 and (rows := file.read(min(length, CHUNK))):
            self._digest.update(rows)
            length -= len(rows)

    def state_dict(self) -> dict[str, int | str]:
        """What `load_state_dict` needs; empty without a trace."""
        if self._path is None:
            return {}
        return {"trace_bytes": self._length, "trace_digest": self._digest.hexdigest()}

    def load_state_dict(self, state: dict) -> None:
        """Go on behind the rows that the checkpoint knows of; it knows of none if the run had no trace then."""
        self._rows, self._length = [], state.get("trace_bytes", 0)
        self._saved_digest = state.get("trace_digest", "")  # "" before format 4: its rows are taken for the run's


def move_rows(file: BinaryIO, path: str, kept: int) -> str:
    """Move the rows behind the first `kept` bytes into a new file beside this one.

    Returns:
        The new file, `NAME.before-resume-N.csv` with the first N that is free.

    Raises:
        OSError: it cannot be written; then no row is moved.
    """
    folder, name = os.path.split(os.path.realpath(path))
    for number in itertools.count(1):
        aside = os.path.join(folder, f"{name.removesuffix('.csv')}.before-resume-{number}.csv")
        with suppress(FileExistsError), open(aside, "xb") as new:
            file.seek(kept)
            new.write(HEADER if kept else b"")
            while rows := file.read(CHUNK):
                new.write(rows)
            new.flush()
            os.fsync(new.fileno())
            break
    file.truncate(kept)
    file.seek(0, os.SEEK_END)
    return aside


def prompt_id(prompt: Prompt) -> str:
    """The same for the same text and label, in every episode and run."""
    return key_of(prompt.identity)


def _is_correct(response: dict) -> int | str:
    """1 or 0; empty if a reward model gives the score later."""
    score = response.get("reward") if response.get("scores") is None else response["scores"]
    return "" if score is None else int(score > RIGHT_ABOVE)


@contextmanager
def held_trace(args: Settings) -> Iterator[None]:
    """Hold the trace as the one run that writes it, whatever name it is given by; a file that is not there is made.

    Raises:
        SystemExit: another run holds it, it cannot be written, or it holds something else; the message is one line.
    """
    with ExitStack() as stack:
        if args.rollout.trace is not None:
            file = stack.enter_context(_opened_trace(args.rollout.trace))
            _hold(file, args.rollout.trace)
            if _has_rows(file):
                _check_rows(file, args)
            else:
                file.truncate(0)  # its header is written anew with the first rows
        yield


def _opened_trace(path: str) -> BinaryIO:
    check_trace(path)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SystemExit(f"openrlhf_sagc: {TRACE} {path} cannot be written to: {reason}") from None
    return open(descriptor, "ab+")


def _hold(file: BinaryIO, path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refuse(True, f"{TRACE} {path} is written by another run: wait for its end, or give this run a separate file")
    except OSError as error:  # some network file systems have no locks
        print(f"openrlhf_sagc: {TRACE} {path} cannot be locked ({error.strerror}): let no second run write it")


def _has_rows(file: BinaryIO) -> bool:
    """Whether more stands there than the beginning of a header, with which a run can have been killed in its first write."""
    file.seek(0)
    return not HEADER.startswith(file.read(len(HEADER) + 1))


def _check_rows(file: BinaryIO, args: Settings) -> None:
    """The rows are those of the run that goes on."""
    file.seek(0)
    first, path = file.readline(len(HEADER)), args.rollout.trace
    refuse(
        first != HEADER,
        f"{TRACE} {path} is not the trace of a run, its first line is {first.decode(errors='replace').strip()!r}: "
        "give another file",
    )
    refuse(
        not args.ckpt.load_enable,
        f"{TRACE} {path} has the rows of another run: give a separate file, or --ckpt.load_enable to go on with that "
        "run",
    )
