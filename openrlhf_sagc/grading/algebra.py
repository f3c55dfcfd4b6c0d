"""Comparison of answers by math-verify, in a process that can neither be harmed nor do harm; from any thread.

`comparing_process` is that process. What it says is read as data here, in the process of an engine.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

PROCESSES = 4  # comparisons at once; few answers need one, and every engine has its own
START_SECONDS = 120  # until the process can compare, on a busy machine
WAITING_SECONDS = 170  # for a verdict with its wait for others; under --reward.timeout
TRIES = 3  # of a comparison whose process died
MOST_SENT = 60_000  # bytes of comparisons without a verdict, which a pipe holds: so nobody waits to write
REMEMBERED = 20_000  # verdicts: the samples of a group often agree
FAILED = "math-verify cannot be run in a process of its own"
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from openrlhf_sagc.grading.comparing_process import main; main()"
)


@dataclass(eq=False)
class _Asked:
    """A comparison without a verdict yet."""

    number: int
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
        self._waiting: deque[_Asked] = deque()  # to be sent
        self._sent: dict[int, _Asked] = {}
        self._sent_bytes = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._is_ready = False

    def ask(self, gold: str, answer: str) -> Future:
        """The verdict to come: whether they are equal, or None if math-verify failed on them or took all its seconds.

        It is a RuntimeError if there can be none: the process cannot be started, died again and again, was too busy or closed.
        """
        number = next(self._numbers)
        line = json.dumps({"id": number, "gold": gold, "answer": answer}).encode() + b"\n"
        asked = _Asked(number, line, Future())
        with self._lock:
            self._waiting.append(asked)
            if self._process is None:
                self._start()
            self._send()
        return asked.verdict

    def close(self) -> None:
        """End the process, and with it all comparisons."""
        with self._lock:
            process, self._process = self._process, None
            if process:
                process.kill()
            self._give_up(self._take_back(), "the comparisons were closed")

    def _start(self) -> None:
        """Start the process, and the thread that listens to it."""
        paths = json.dumps([os.path.abspath(path) for path in sys.path if path])
        answers, target = os.pipe()
        arguments = [str(self._processes), paths, str(target)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", self._program, *arguments],
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
            self._give_up(self._take_back(), f"{FAILED}: {error}")
            return
        finally:
            os.close(target)
        listener = threading.Thread(
            target=self._listen, args=[self._process, answers], name="comparisons", daemon=True
        )
        listener.start()

    def _send(self) -> None:
        """Send what waits, as far as it fits into a pipe, the answers to it as well."""
        while self._is_ready and self._waiting:
            asked = self._waiting[0]
            if self._sent and self._sent_bytes + len(asked.line) > MOST_SENT:
                return
            self._sent[asked.number] = self._waiting.popleft()
            self._sent_bytes += len(asked.line)
            assert self._process and self._process.stdin
            data = asked.line
            with suppress(OSError):  # it is dead, which `_listen` is about to hear
                while data:
                    data = data[os.write(self._process.stdin.fileno(), data) :]

    def _listen(self, process: subprocess.Popen, answers: int) -> None:
        """Give the verdicts to those who wait for them, until the process ends. Then start it anew for the others."""
        start = threading.Timer(START_SECONDS, process.kill)
        start.daemon, error = True, None
        start.start()
        with open(answers, "rb") as lines, suppress(ValueError):  # of a line that was cut off
            first = lines.readline()
            start.cancel()
            error = json.loads(first or "{}").get("error")
            with self._lock:
                self._is_ready = self._process is process and b"ready" in first
                self._send()
            for line in lines:
                self._hear(**json.loads(line))
        process.kill()
        why = f"{FAILED}: {error or f'it ended with exit code {process.wait()}'}"
        process.wait()
        with self._lock:
            if self._process is not process:  # closed
                return
            self._process, self._is_ready = None, False
            left = self._take_back()
            for asked in left:
                asked.tries += 1
            self._give_up([asked for asked in left if error or asked.tries >= TRIES], why)
            self._waiting.extend(asked for asked in left if not error and asked.tries < TRIES)
            if self._waiting:
                self._start()

    def _take_back(self) -> list[_Asked]:
        """All comparisons without a verdict, none of which is sent or waits any more."""
        left = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._sent_bytes = 0
        return left

    def _give_up(self, comparisons: list[_Asked], why: str) -> None:
        for asked in comparisons:
            asked.verdict.set_exception(RuntimeError(why))

    def _hear(self, id: int, verdict: bool | str) -> None:
        with self._lock:
            asked = self._sent.pop(id)
            self._sent_bytes -= len(asked.line)
            self._send()
        if verdict == "late":
            asked.verdict.set_exception(RuntimeError("the machine was too busy to compare two answers"))
        else:
            asked.verdict.set_result(verdict if isinstance(verdict, bool) else None)


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
    """Whether the answers are equal; None if math-verify failed on them or took all the seconds that a comparison has.

    Only true and false are remembered.

    Raises:
        RuntimeError: there can be no verdict, as `Comparisons.ask` says, or none came in time.
    """
    try:
        return _shared.verdict((gold, answer)).result(WAITING_SECONDS)
    except TimeoutError:
        raise RuntimeError(
            f"no verdict on two answers in {WAITING_SECONDS} s: others are compared before them"
        ) from None
