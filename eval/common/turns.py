"""Training runs that take turns, a step each, so that a machine whose speed drifts is equally fast for all of them.

While one run has its turn, the processes of the others are stopped. Needs the memory of all runs at once.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from common.logs import STEP_END

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

    def take_turn(self, steps: int) -> None:
        """Resume the run; stop it after so many more steps, unless it ends first.

        Raises:
            ValueError: it failed.
        """
        if self.stopped_at is not None:
            self.pauses.append([self.stopped_at, time.time()])
            self.stopped_at = None
            self.send(signal.SIGCONT)
        while steps > 0 and self.process.poll() is None:
            steps -= self._new_steps()
            time.sleep(POLL_SECONDS)
        if self.process.poll() is None:
            self.stopped_at = time.time()
            self.send(signal.SIGSTOP)
        elif self.process.returncode:
            raise ValueError(f"a run failed with exit code {self.process.returncode}, see {self.log}")

    def send(self, number: signal.Signals) -> None:
        """Signal all processes, those that start meanwhile as well."""
        reached: set[psutil.Process] = set()
        while new := set(self.family()) - reached:
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            reached |= new

    def family(self) -> list[psutil.Process]:
        """The run's process and all below it; none once it has ended."""
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.process.pid), *self.process.children(recursive=True)]
        return []

    def _new_steps(self) -> int:
        """Steps that ended since the last call."""
        with self.log.open("rb") as log:
            log.seek(self.bytes_read)
            found = log.read()
        whole = found[: found.rfind(b"\n") + 1]
        self.bytes_read += len(whole)
        return len(STEP_END.findall(whole.decode(errors="replace")))


def take_turns(
    commands: dict[str, tuple[list, Path]], warm_up: int, on_turn: Callable[[], None]
) -> dict[str, list[list[float]]]:
    """Run commands to their ends: `warm_up` steps of each, then a step of each in turn.

    Args:
        commands: of each run, with the file for all its output.
        warm_up: steps of a run before the next one starts.
        on_turn: called after every turn.

    Returns:
        [begin, end] of every pause of each run, in seconds of `time.time`.

    Raises:
        ValueError: a run failed, or ended in its warm-up; all are ended.
    """
    runs: dict[str, Run] = {}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # a step's line is in the file at once
    try:
        for name, (command, log) in commands.items():
            with log.open("w") as sink:
                words = list(map(str, command))
                process = psutil.Popen(words, stdout=sink, stderr=subprocess.STDOUT, env=environment)
            runs[name] = Run(process, log)
            runs[name].take_turn(warm_up)
            if process.returncode is not None:
                raise ValueError(f"a run ended in its warm-up, see {log}")
            on_turn()
        while left := [run for run in runs.values() if run.process.returncode is None]:
            for run in left:
                run.take_turn(1)
                on_turn()
    finally:
        end(list(runs.values()))
    return {name: run.pauses for name, run in runs.items()}


def end(runs: list[Run]) -> None:
    """End what still runs: at first as its script does, which ends its Ray cluster, and then at once."""
    left = [process for run in runs for process in run.family()]
    for run in runs:
        run.send(signal.SIGCONT)
        with suppress(psutil.NoSuchProcess):
            run.process.terminate()
    for process in psutil.wait_procs(left, timeout=GRACE_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for run in runs:
        run.process.wait()


def paused_seconds(pauses: list[list[float]], begin: float, end: float) -> float:
    """Seconds between two times of day in which a run was stopped."""
    return sum(max(min(end, last) - max(begin, first), 0.0) for first, last in pauses)
