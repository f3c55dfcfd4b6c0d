"""Comparison of answers by math-verify, in a process that can neither be harmed nor do harm; from any thread.

`process` is that process. What it says is read as data here, in the process of an engine.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Pipe, wait
from typing import Any

PROCESSES = 4  # comparisons at once; few answers need one, and every engine has its own
TRIES = (0.25, 1.5, 120.0)  # seconds by the clock of a comparison's first, second and last try: most take hundredths
START_SECONDS = 120  # until the process can compare, on a busy machine
WAITING_SECONDS = 170  # for a comparison with its turns; under --reward.timeout
DEATHS = 3  # of the process at one comparison, after which there is no verdict
REMEMBERED = 7_000  # verdicts, of answers of 8 kB at most (1,000 characters each): 64 MiB
_PROGRAM = "from openrlhf_sagc.grading.process import main; main()"
_ALONE: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": {}, "cwd": "/"}


class Comparisons:
    """Comparisons, `processes` at once, by children of a process that the first one starts. If it dies, it is started anew.

    Every try of a comparison stands behind those that have had fewer, and the last ones leave the others a child. So answers
    that hang delay others by a second or two. `program` is Python whose argument is the file descriptor of a socket.
    """

    def __init__(self, processes: int = PROCESSES, program: str = _PROGRAM):
        self._program, self._at_once = program, [*[processes] * (len(TRIES) - 1), max(processes - 1, 1)]
        self.begin()

    def begin(self) -> None:
        """Know of nothing: at first, and in a process that was forked, whose comparing process belongs to its parent."""
        self._turns, self._starting = threading.Condition(), threading.Lock()
        self._waiting, self._busy = [0] * len(TRIES), 0  # comparisons without a child, by the tries they had; with one
        self._process: Any = None
        self._socket: Any = None

    def verdict(self, gold: str, answer: str) -> bool:
        """Whether they are equal.

        Raises:
            TimeoutError: math-verify failed on them, took all its seconds, or had no turn in time.
            RuntimeError: the process died several times at them, or while it started.
            OSError: there is no file descriptor, process or memory for them.
        """
        deadline, tries, deaths = time.monotonic() + WAITING_SECONDS, 0, 0
        while tries < len(TRIES) and self._has_turn(tries, deadline):
            try:
                process, connection = self._started()
                seconds = min(TRIES[tries], max(deadline - time.monotonic(), TRIES[0]))
                said = _said(json.dumps([gold, answer, seconds]), connection, seconds + 10)  # a busy process is late
            finally:
                with self._turns:
                    self._busy -= 1
                    self._turns.notify_all()
            if said:
                return said == b"1"
            is_late = process.poll() is None and not wait([connection], 0)  # or failed, or was killed; not the process
            tries, deaths, code = (tries + 1, deaths, 0) if is_late else (tries, deaths + 1, process.wait())
            if deaths == DEATHS:
                error = f"exit code {code} " + " ".join(process.stderr.read().decode().splitlines()[-1:])
                raise RuntimeError(f"math-verify cannot be run in a process of its own: it ended with {error}")
        raise TimeoutError("the comparison was stopped")

    def _has_turn(self, tries: int, deadline: float) -> bool:
        """Wait for it until the deadline. Whoever has it gives it back."""
        with self._turns:
            self._waiting[tries] += 1
            has_turn = self._turns.wait_for(
                lambda: self._busy < self._at_once[tries] and not any(self._waiting[:tries]),
                deadline - time.monotonic(),
            )
            self._waiting[tries] -= 1
            self._busy += has_turn
            self._turns.notify_all()
        return has_turn

    def _started(self) -> tuple[Any, socket.socket]:
        """The process, and the socket that takes requests; nobody hears them if it has just died."""
        with self._starting:
            if not self._process or self._process.poll() is not None:
                program = f"import sys; sys.path[:] = {[os.path.abspath(path) for path in sys.path]}\n"
                self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
                with theirs:
                    command = [sys.executable, "-I", "-c", program + self._program, str(theirs.fileno())]
                    self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], **_ALONE)
                if not wait([self._socket], START_SECONDS):
                    self._process.kill()
                self._socket.recv(1)  # it can compare, or is dead
            return self._process, self._socket


def _said(request: str, connection: socket.socket, seconds: float) -> bytes:
    """The byte that a child says in these seconds; none if it was killed, or the process is dead."""
    ours, theirs = Pipe(duplex=False)
    with ours, theirs, suppress(ConnectionError):  # the process is dead
        socket.send_fds(connection, [request.encode()], [theirs.fileno()])
        theirs.close()
        return os.read(ours.fileno(), 1) if ours.poll(seconds) else b""
    return b""


_comparisons = Comparisons()
os.register_at_fork(after_in_child=_comparisons.begin)
equal_by_algebra = lru_cache(REMEMBERED)(_comparisons.verdict)  # remembers what is returned, not what is raised
