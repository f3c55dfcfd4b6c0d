"""Training runs that take turns, so that a machine whose speed drifts is equally fast for all of them.

While one run has its turn, the processes of the others are stopped. Needs the memory of all runs at once.
"""

import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
import psutil

GIGABYTES, GIGABYTES_OF_ENGINE = 5, 2  # of a run with one engine, and of each further one
POLL_SECONDS = 0.02
GRACE_SECONDS = 30.0  # for processes to end by themselves


@dataclass
class Run:
    """A run: its process, its output, and the times of day between which it was stopped.

    Signals reach one process after another. A pause counts from before the first stops until before the first goes on.
    """

    process: psutil.Popen
    log: Path
    bytes_read: int = 0
    stopped_at: float | None = None
    pauses: list[list[float]] = field(default_factory=list)
    known: set[psutil.Process] = field(default_factory=set)  # those below a process that died go on without it

    def take_turn(self, boundary: re.Pattern, count: int = 1) -> str:
        """Resume the run; stop it after so many more lines with `boundary`, unless it ends first. Returns what it printed.

        Raises:
            ValueError: it failed.
        """
        if self.stopped_at is not None:
            self.pauses.append([self.stopped_at, time.time()])
            self.stopped_at = None
            self.send(signal.SIGCONT)
        printed = ""
        while len(boundary.findall(printed)) < count and self.process.poll() is None:
            printed += self._new_lines()
            time.sleep(POLL_SECONDS)
        if self.process.poll() is None:
            self.stopped_at = time.time()
            self.send(signal.SIGSTOP)
        elif self.process.returncode:
            raise ValueError(f"a run failed with exit code {self.process.returncode}, see {self.log}")
        return printed + self._new_lines()

    def finish(self, last: re.Pattern) -> None:
        """Let the run go on to a line with `last`, and end it.

        Raises:
            ValueError: it ended before.
        """
        if not last.search(self.take_turn(last)):
            raise ValueError(f"a run ended too early, see {self.log}")
        end([self])

    def send(self, number: signal.Signals) -> None:
        """Signal all processes, those that start meanwhile as well."""
        reached: set[psutil.Process] = set()
        while new := set(self.family()) - reached:
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            reached |= new

    def family(self) -> list[psutil.Process]:
        """The run's processes that have not ended."""
        with suppress(psutil.NoSuchProcess):
            self.known |= {self.process, *self.process.children(recursive=True)}
        return [process for process in self.known if process.is_running()]

    def _new_lines(self) -> str:
        """Whole lines since the last call."""
        with self.log.open("rb") as log:
            log.seek(self.bytes_read)
            found = log.read()
        whole = found[: found.rfind(b"\n") + 1]
        self.bytes_read += len(whole)
        return whole.decode(errors="replace")


def take_turns(
    commands: dict[str, tuple[list, Path]],
    boundary: re.Pattern,
    warm_up: int,
    on_turn: Callable[[str, str], re.Pattern | None],
    on_end: Callable[[str], None] = lambda name: None,
) -> dict[str, list[list[float]]]:
    """Run commands to their ends, or until they are ended: `warm_up` boundaries of each first, then one of each in turn.

    Args:
        commands: of each run, with the file for all its output.
        boundary: in a line that ends a turn.
        warm_up: boundaries that a run reaches before the next one starts.
        on_turn: called after every turn with the run's name and what it printed in the turn. If it returns a pattern, the
            run goes on to a line with that, and is ended there.
        on_end: called with the name of a run that was ended so.

    Returns:
        [begin, end] of every pause of each run, in seconds of `time.time`.

    Raises:
        ValueError: a run failed, or ended in its warm-up, or one of an earlier start goes on; all of these are ended.
    """
    runs: dict[str, Run] = {}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # a line is in the file at once
    try:
        for name, (command, log) in commands.items():
            with opened_log(log) as sink:
                words = list(map(str, command))
                process = psutil.Popen(words, stdout=sink, stderr=subprocess.STDOUT, env=environment)
            runs[name] = Run(process, log)
            last = on_turn(name, runs[name].take_turn(boundary, warm_up))
            if process.returncode is not None:
                raise ValueError(f"a run ended in its warm-up, see {log}")
            if last:
                runs[name].finish(last)
                on_end(name)
        while left := {name: run for name, run in runs.items() if run.process.returncode is None}:
            for name, run in left.items():
                if last := on_turn(name, run.take_turn(boundary)):
                    run.finish(last)
                    on_end(name)
    finally:
        end(list(runs.values()))
    return {name: run.pauses for name, run in runs.items()}


def refuse_if_written(log: Path) -> None:
    """No run of an earlier start writes the file any more; it would go on if that was killed.

    Raises:
        ValueError: one does.
    """
    with suppress(FileNotFoundError), log.open("r+") as written:
        _hold(written, log)


@contextmanager
def opened_log(log: Path) -> Iterator[TextIO]:
    """An empty file for a run's output, which is held as long as a process has it.

    Raises:
        ValueError: a run of an earlier start writes it; it is left as it is.
    """
    with log.open("a") as sink:
        _hold(sink, log)
        sink.truncate(0)
        yield sink


def _hold(file: TextIO, log: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"{log} belongs to a run that has not ended{_how_to_end(log)}") from None


def _how_to_end(log: Path) -> str:
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error):
            if any(file.path == str(log) for file in process.open_files()):
                found |= {process, *process.children(recursive=True)}
    pids = " ".join(str(process.pid) for process in sorted(found, key=lambda process: process.pid))
    return f": end it with kill -CONT {pids}; kill {pids}" if pids else ""


def end(runs: list[Run]) -> None:
    """End what still runs: at first as its script does, which ends its Ray cluster, and then at once."""
    left = [process for run in runs for process in run.family()]
    for run in runs:
        run.send(signal.SIGCONT)
        with suppress(psutil.NoSuchProcess):
            run.process.terminate()  # the others end with it, as their script has it
    for process in psutil.wait_procs(left, timeout=GRACE_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for run in runs:
        run.process.wait()


def paused_seconds(log: pd.DataFrame, pauses: list[list[float]]) -> pd.Series:
    """Seconds for which a run was stopped between the end of the step before and the end of each step.

    Args:
        log: of the run, as `read_run` returns it.
        pauses: as `take_turns` returns them.
    """
    ends = log["wall_time"].to_numpy()
    overlap_SP = [np.minimum(ends, end) - np.maximum(np.append(-np.inf, ends[:-1]), begin) for begin, end in pauses]
    return pd.Series(np.clip(overlap_SP, 0.0, None).sum(axis=0) if pauses else 0.0, index=log.index)


def without_pauses(generation: pd.Series, paused: pd.Series) -> pd.Series:
    """Seconds of each step's generation without the pause, which falls into it unless it fell between two steps."""
    return generation - paused.where(generation >= paused, 0.0)


def room_for_runs(num_engines: int = 1) -> int:
    """Runs for which there is memory."""
    needed = GIGABYTES + GIGABYTES_OF_ENGINE * (num_engines - 1)
    return int(psutil.virtual_memory().available / 1e9 // needed)
