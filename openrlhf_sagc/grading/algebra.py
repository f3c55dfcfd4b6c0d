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
TRIES = 2  # of a comparison whose process died
MOST_SENT = 500  # comparisons of which no verdict has come back
REMEMBERED = 20_000  # verdicts: the samples of a group often agree
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
        program: Python that the process runs, with `processes` and the module search path as arguments.
    """

    def __init__(self, processes: int = PROCESSES, program: str = _PROGRAM):
        self._processes, self._program = processes, program
        self._numbers = itertools.count()
        self._waiting: deque[_Asked] = deque()  # to be sent
        self._sent: dict[int, _Asked] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._is_ready = False

    def ask(self, gold: str, answer: str) -> Future:
        """The verdict to come: whether they are equal, or None if math-verify failed on them or took all its seconds.

        It is a RuntimeError if there can be none: the process cannot be started, died twice, or was too busy.
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

    def _start(self) -> None:
        """Start the process, and the thread that listens to it."""
        paths = json.dumps([os.path.abspath(path) for path in sys.path if path])
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", self._program, str(self._processes), paths],
            env={},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        threading.Thread(target=self._listen, args=[self._process], name="comparisons", daemon=True).start()

    def _send(self) -> None:
        """Send what waits, as far as the answers to it fit into a pipe: so neither side waits for the other."""
        while self._is_ready and self._waiting and len(self._sent) < MOST_SENT:
            asked = self._waiting.popleft()
            asked.tries += 1
            self._sent[asked.number] = asked
            assert self._process and self._process.stdin
            with suppress(OSError):  # it is dead, which `_listen` is about to hear
                self._process.stdin.write(asked.line)

    def _listen(self, process: subprocess.Popen) -> None:
        """Give the verdicts to those who wait for them, until the process ends. Then start it anew for the others."""
        assert process.stdout
        start = threading.Timer(START_SECONDS, process.kill)
        start.start()
        first = json.loads(process.stdout.readline() or "{}")
        start.cancel()
        with self._lock:
            self._is_ready = "ready" in first and self._process is process
            self._send()
        for line in process.stdout:
            self._hear(**json.loads(line))
        process.kill()
        why = first.get("error") or f"it ended with exit code {process.wait()}"
        with self._lock:
            if self._process is process:
                self._process = None
                self._go_on(f"math-verify cannot be run in a process of its own: {why}", was_ready=self._is_ready)

    def _go_on(self, error: str, was_ready: bool) -> None:
        """The process has died: start it anew for the comparisons that may be tried again."""
        self._is_ready = False
        left = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting = deque(asked for asked in left if was_ready and asked.tries < TRIES)
        for asked in left:
            if not was_ready or asked.tries >= TRIES:
                asked.verdict.set_exception(RuntimeError(error))
        if self._waiting:
            self._start()

    def _hear(self, id: int, verdict: bool | str) -> None:
        with self._lock:
            asked = self._sent.pop(id)
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
