"""Comparison of answers by math-verify, in a process that can neither be harmed nor do harm; from any thread.

`process` is that process. What it says is read as data here, in the process of an engine.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

PROCESSES = 4  # comparisons at once; few answers need one, and every engine has its own
START_SECONDS = 120  # until the process can compare, on a busy machine
WAITING_SECONDS = 170  # for a verdict with its wait for others; under --reward.timeout
DEATHS = 3  # of the process without a verdict in between, after which whoever waits for one gets none
REMEMBERED = 7_000  # verdicts, of answers of 8 kB at most (1,000 characters each): 64 MiB
_PROGRAM = "from openrlhf_sagc.grading.process import main; main()"
_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


class Comparisons:
    """Comparisons, `processes` at once, in a process of their own, which the first one starts. One that dies is started anew.

    It runs `program`, Python whose arguments are that number and the file descriptor of a connection.
    """

    def __init__(self, processes: int = PROCESSES, program: str = _PROGRAM):
        self._processes, self._program = str(processes), program
        self.begin()

    def begin(self) -> None:
        """Know of nothing: at first, and in a process that was forked, whose comparing process belongs to its parent."""
        self._asked: dict[bytes, Future] = {}  # without a verdict yet, by their requests
        self._lock = threading.Lock()  # of the fields; not held while a request is written
        self._writing = threading.Lock()  # one request at a time; nobody waits for it to hear verdicts
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._deaths = 0

    def ask(self, gold: str, answer: str) -> Future:
        """The verdict to come: whether they are equal, or None if math-verify failed on them or took all its seconds.

        It is a RuntimeError if there can be none: the process cannot be started, died several times without any verdict, or was
        closed. Until it comes, whoever asks the same gets the same future.
        """
        request = json.dumps([gold, answer], ensure_ascii=False).encode(errors="surrogatepass")
        with self._lock:
            if request in self._asked:
                return self._asked[request]
            verdict = self._asked[request] = Future()
            if not self._process:
                self._start()
        self._send([request])
        return verdict

    def close(self) -> None:
        """End the process, and with it all comparisons."""
        with self._lock:
            if self._process:
                self._process.kill()
            self._give_up("the comparisons were closed")

    def _start(self) -> None:
        program = f"import sys; sys.path[:] = {[os.path.abspath(path) for path in sys.path if path]}\n{self._program}"
        try:
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                command = [sys.executable, "-I", "-c", program, self._processes, str(theirs.fileno())]
                process = subprocess.Popen(command, env={}, cwd="/", pass_fds=[theirs.fileno()], **_SILENT)
            threading.Thread(target=self._listen, args=[process, ours], name="comparisons", daemon=True).start()
        except (OSError, RuntimeError) as error:  # no process, or no thread; without one the process ends
            return self._give_up(error)
        self._process, self._connection = process, ours

    def _send(self, requests: list[bytes]) -> None:
        with self._writing, suppress(OSError):  # the process is dead, and `_listen` will send them to the next
            for request in requests:
                if self._connection:
                    self._connection.send_bytes(request)

    def _listen(self, process: subprocess.Popen, connection: Connection) -> None:
        """Give the verdicts to those who wait for them, until the process ends. Then start it anew for the others."""
        error = b""
        with suppress(EOFError, OSError):
            if not connection.poll(START_SECONDS):
                process.kill()
            error = connection.recv_bytes()
            while not error:
                reply = connection.recv_bytes()
                with self._lock:
                    asked, self._deaths = self._asked.pop(reply[1:], None), 0
                if asked:  # and not closed
                    asked.set_result({b"1": True, b"0": False}.get(reply[:1]))
        process.kill()
        code = process.wait()
        with self._lock:
            if self._process is not process:  # closed
                return
            self._deaths += 1
            if error or self._deaths == DEATHS or not self._asked:
                self._give_up(error.decode() or f"it ended with exit code {code}")
            else:
                self._start()
            left = list(self._asked)
        self._send(left)

    def _give_up(self, why: object) -> None:
        """Whoever waits hears why; what is asked next starts a new process."""
        self._process, self._deaths = None, 0
        for verdict in self._asked.values():
            verdict.set_exception(RuntimeError(f"math-verify cannot be run in a process of its own: {why}"))
        self._asked.clear()


_comparisons = Comparisons()
os.register_at_fork(after_in_child=_comparisons.begin)


@lru_cache(REMEMBERED)  # of true and false, not of what is raised
def _verdict(gold: str, answer: str) -> bool:
    verdict = _comparisons.ask(gold, answer).result(WAITING_SECONDS)
    if verdict is None:
        raise TimeoutError
    return verdict


def equal_by_algebra(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal; None if math-verify failed on them, or gave no verdict in the seconds that there are.

    Raises:
        RuntimeError: there can be no verdict, as `Comparisons.ask` says.
    """
    try:
        return _verdict(gold, answer)
    except TimeoutError:
        return None
