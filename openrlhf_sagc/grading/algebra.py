"""Comparison of answers by math-verify, in a process that can neither be harmed nor do harm; from any thread.

`process` is that process. What it says is read as data here, in the process of an engine.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

PROCESSES = 4  # comparisons at once; few answers need one, and every engine has its own
START_SECONDS = 120  # until the process can compare, on a busy machine
WAITING_SECONDS = 170  # for a verdict with its wait for others; under --reward.timeout
TRIES = 3  # of a comparison whose process died
REMEMBERED = 7_000  # verdicts, of answers of 8 kB at most (1,000 characters each): 64 MiB
FAILED = "math-verify cannot be run in a process of its own"
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from openrlhf_sagc.grading.process import main; main()"
)


@dataclass(eq=False)
class _Asked:
    """A comparison without a verdict yet."""

    line: bytes
    verdict: Future
    tries: int = 0


class Comparisons:
    """Comparisons in a process of their own, which the first one starts. One that dies is started anew.

    Args:
        processes: comparisons at once.
        program: Python that the process runs, with `processes`, the module search path and the file descriptor of its answers
            as arguments.
    """

    def __init__(self, processes: int = PROCESSES, program: str = _PROGRAM):
        self._processes, self._program = processes, program
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._lock = threading.Lock()
        self._writing = (
            threading.Lock()
        )  # who reads verdicts never waits for it, so that the process always can say them
        self._process: subprocess.Popen | None = None

    def ask(self, gold: str, answer: str) -> Future:
        """The verdict to come: whether they are equal, or None if math-verify failed on them or took all its seconds.

        It is a RuntimeError if there can be none: the process cannot be started, died again and again, or was closed.
        """
        number = next(self._numbers)
        line = json.dumps({"id": number, "gold": gold, "answer": answer}).encode() + b"\n"
        asked = _Asked(line, Future())
        with self._lock:
            self._asked[number] = asked
            if self._process is None:
                self._start()
            process = self._process
        self._send(process, [asked])
        return asked.verdict

    def close(self) -> None:
        """End the process, and with it all comparisons."""
        with self._lock:
            process, self._process = self._process, None
            if process:
                process.kill()
            self._give_up(list(self._asked), "the comparisons were closed")

    def _start(self) -> None:
        """Start the process, and the thread that listens to it."""
        paths = json.dumps([os.path.abspath(path) for path in sys.path if path])
        try:
            answers, target = os.pipe()
        except OSError as error:
            return self._give_up(list(self._asked), f"{FAILED}: {error}")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", self._program, str(self._processes), paths, str(target)],
                env={},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[target],
                bufsize=0,
            )
        except OSError as error:
            os.close(answers)
            return self._give_up(list(self._asked), f"{FAILED}: {error}")
        finally:
            os.close(target)
        threading.Thread(target=self._listen, args=[self._process, answers], name="comparisons", daemon=True).start()

    def _send(self, process: subprocess.Popen | None, comparisons: list[_Asked]) -> None:
        data = b"".join(asked.line for asked in comparisons)
        with self._writing, suppress(OSError):  # it is dead, which `_listen` hears
            while data and process and process.stdin:
                data = data[os.write(process.stdin.fileno(), data) :]

    def _listen(self, process: subprocess.Popen, answers: int) -> None:
        """Give the verdicts to those who wait for them, until the process ends. Then start it anew for the others."""
        start = threading.Timer(START_SECONDS, process.kill)
        start.daemon, error = True, None
        start.start()
        with open(answers, "rb") as lines, suppress(ValueError):  # of a line that was cut off
            first = lines.readline()
            start.cancel()
            error = json.loads(first or "{}").get("error")
            for line in lines:
                heard = json.loads(line)
                with self._lock:
                    asked = self._asked.pop(heard["id"], None)
                if asked:  # and not closed
                    asked.verdict.set_result(heard["verdict"])
        start.cancel()
        process.kill()
        why = f"{FAILED}: {error or f'it ended with exit code {process.wait()}'}"
        process.wait()
        with self._lock:
            if self._process is not process:  # closed
                return
            self._process = None
            for asked in self._asked.values():
                asked.tries += 1
            self._give_up([number for number, asked in self._asked.items() if error or asked.tries >= TRIES], why)
            left = list(self._asked.values())
            if left:
                self._start()
            process = self._process or process
        self._send(process, left)

    def _give_up(self, numbers: list[int], why: str) -> None:
        for number in numbers:
            self._asked.pop(number).verdict.set_exception(RuntimeError(why))


class _Shared:
    """The comparisons of this process, and the verdicts that it knows or waits for."""

    def __init__(self) -> None:
        self.comparisons = Comparisons()
        self.lock = threading.Lock()
        self.verdicts: dict[tuple[str, str], Future] = {}

    def verdict(self, pair: tuple[str, str]) -> Future:
        with self.lock:
            verdict = self.verdicts.get(pair)
            if verdict is None or (verdict.done() and (verdict.exception() or verdict.result() is None)):
                verdict = self.verdicts[pair] = self.comparisons.ask(*pair)
            if len(self.verdicts) > REMEMBERED:
                del self.verdicts[next(iter(self.verdicts))]
        return verdict


_shared = _Shared()


def _begin_anew() -> None:
    """In a process that was forked: the comparing process belongs to its parent."""
    global _shared
    _shared = _Shared()


os.register_at_fork(after_in_child=_begin_anew)


def equal_by_algebra(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal; None if math-verify failed on them, or gave no verdict in the seconds that there are.

    Only true and false are remembered.

    Raises:
        RuntimeError: there can be no verdict, as `Comparisons.ask` says.
    """
    try:
        return _shared.verdict((gold, answer)).result(WAITING_SECONDS)
    except TimeoutError:
        return None
