"""The process that compares answers: started by exec with an empty environment, it forks one child for each comparison.

A child begins as a copy of it, gives up all it could reach, compares, and says one byte. So nothing that a comparison leaves
behind reaches the next. The process ends with the one that started it, and children end with it.

A request is the JSON of [gold, answer]. Its reply is that byte before the request: 1 they are equal, 0 they are not, ? the
comparison failed, was stopped, or got no time. The first message out is empty, or says why the process cannot work.
"""

import gc
import json
import logging
import os
import signal
import sys
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.disarm import disarm, prepare
from openrlhf_sagc.grading.sandbox import OUTPUT, check, confine, seccomp_filter

TRIES = (0.25, 1.5, 120.0)  # seconds by the clock of a comparison's first, second and last try: most take hundredths
OWN_SECONDS = 5  # of the processor, at most, in each try
LESSONS = (  # answers of several forms, compared before the process is ready: sympy imports and caches what they need
    (r"(\frac{1}{2}+x, x^2+2x+1, \sin^2 x + \cos^2 x, 2^{x+1})", r"(x+0.5, (x+1)^2, 1, 2\cdot 2^x)"),
    (r"(\frac{x^2-1}{x-1}, \sqrt{8}, e^{2\pi i})", r"(x+1, 2\sqrt2, e^{-i})"),
    (r"(\log_2 8, \begin{pmatrix}1 \\ \pi\end{pmatrix})", r"(\frac{\ln 8}{\ln 2}, \begin{pmatrix}1\\3\end{pmatrix})"),
    (r"(y=2x+3, \binom{7}{2}+5!)", r"(2y=4x+6, \sum_{n=1}^{10} n)"),
)


class Comparisons:
    """Children, `processes` at most, that are confined by the rules of `seccomp_filter`; their replies go by the connection.

    Every try stands behind those that have had fewer, and the last ones leave the others a process. So answers that hang delay
    others by a second or two, and waiting costs none of a comparison's own time.
    """

    def __init__(self, processes: int, rules: Any, connection: Connection):
        self._rules, self._connection = rules, connection
        self._at_once = [*[processes] * (len(TRIES) - 1), max(processes - 1, 1)]
        self.waiting: list[deque[bytes]] = [deque() for _ in TRIES]  # requests, by the tries that they have had
        # By the pipe to hear a child: its pid, the tries before this one, the request.
        self.busy: dict[Connection, tuple[int, int, bytes]] = {}

    def start_what_may_run(self) -> None:
        """Give children to those whose turn it is, as far as there are processes, memory and file descriptors."""
        with suppress(OSError):
            for tries, requests in enumerate(self.waiting):
                while requests and len(self.busy) < self._at_once[tries]:
                    self._start(tries, requests[0])
                    requests.popleft()

    def _start(self, tries: int, request: bytes) -> None:
        pipe, target = Pipe(duplex=False)
        parent = os.getpid()
        with target:
            pid = os.fork()
            if pid == 0:
                try:  # without a verdict if sympy raises, be it a MemoryError
                    confine(self._rules, target.fileno(), OWN_SECONDS, TRIES[tries], parent)
                    disarm()
                    os.write(OUTPUT, b"1" if equal(*json.loads(request)) else b"0")
                finally:
                    os._exit(0)
        self.busy[pipe] = pid, tries, request

    def hear(self, pipe: Connection) -> None:
        """A child has said its verdict, or is gone. One that was late, or killed from outside, is tried again."""
        pid, tries, request = self.busy.pop(pipe)
        with pipe:
            verdict = os.read(pipe.fileno(), 1)
        os.kill(pid, signal.SIGKILL)  # nobody else waits for it, so the number is still its own
        end = -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not verdict and end in (signal.SIGALRM, signal.SIGKILL) and tries + 1 < len(TRIES):
            self.waiting[tries + 1].append(request)
        else:
            self._connection.send_bytes((verdict or b"?") + request)


def main() -> None:
    """Compare until the process that started this one ends. The arguments are as `algebra.Comparisons` has them."""
    connection, parent = Connection(int(sys.argv[2])), os.getppid()
    logging.disable(logging.CRITICAL)
    prepare()
    for gold, answer in LESSONS:
        equal(gold, answer)
    try:
        check(rules := seccomp_filter())
    except RuntimeError as error:
        return connection.send_bytes(str(error).encode())
    connection.send_bytes(b"")
    comparisons = Comparisons(int(sys.argv[1]), rules, connection)
    gc.freeze()  # children share these objects
    while os.getppid() == parent:  # a fork of it may keep the connection open
        comparisons.start_what_may_run()
        ready = wait([connection, *comparisons.busy], timeout=1)
        if connection in ready:
            comparisons.waiting[0].append(connection.recv_bytes())
        for pipe in [pipe for pipe in comparisons.busy if pipe in ready]:
            comparisons.hear(pipe)
