"""The process that compares answers: started by exec with an empty environment, it forks one child for each comparison.

A child begins as a copy of it, gives up all it could reach, compares, and says one byte: 1 they are equal, 0 they are not.
So nothing that a comparison leaves behind reaches the next. The process ends with the one that started it, and children
end with it. A request is the JSON of [gold, answer, seconds], with the pipe for that byte.
"""

import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.walls import OUTPUT, confine, disarm, prepare, seccomp_filter

OWN_SECONDS = 5  # of the processor, at most, in each try
LESSONS = (  # answers of several forms, compared before the process is ready: sympy imports and caches what they need
    (r"(\frac{1}{2}+x, x^2+2x+1, \sin^2 x + \cos^2 x, 2^{x+1})", r"(x+0.5, (x+1)^2, 1, 2\cdot 2^x)"),
    (r"(\frac{x^2-1}{x-1}, \sqrt{8}, e^{2\pi i})", r"(x+1, 2\sqrt2, e^{-i})"),
    (r"(\log_2 8, \begin{pmatrix}1 \\ \pi\end{pmatrix})", r"(\frac{\ln 8}{\ln 2}, \begin{pmatrix}1\\3\end{pmatrix})"),
    (r"(y=2x+3, \binom{7}{2}+5!, \sum_{n=1}^{10} n)", "(y=3+2x, 141, 55)"),  # equal, as a child has to say besides
)


def compare(request: bytes, pipe: int, rules: Any) -> None:
    """Let a child say the verdict by the pipe, confined by the rules of `seccomp_filter`; closes the pipe here."""
    parent, pid = os.getpid(), -1
    while pid < 0:
        try:
            pid = os.fork()
        except OSError:  # no process or memory is left
            time.sleep(0.1)
    if pid == 0:
        try:  # sympy may raise anything, be it a MemoryError
            gold, answer, seconds = json.loads(request)
            confine(rules, pipe, OWN_SECONDS, seconds, parent)
            disarm()
            os.write(OUTPUT, b"1" if equal(gold, answer) else b"0")
        finally:
            os._exit(0)
    os.close(pipe)


def main() -> None:
    """Compare until the process that started this one ends. The argument is as `algebra.Comparisons` has it."""
    connection, parent = socket.socket(fileno=int(sys.argv[1])), os.getppid()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    prepare()
    for gold, answer in LESSONS:
        equal(gold, answer)
    rules = seccomp_filter()
    ours, theirs = os.pipe()
    compare(json.dumps([*LESSONS[-1], 100]).encode(), theirs, rules)
    if os.read(ours, 1) != b"1":
        raise RuntimeError("no child compares under seccomp: this takes a kernel with CONFIG_SECCOMP_FILTER")
    os.close(ours)
    connection.send(b"!")  # ready
    connection.settimeout(1)
    gc.freeze()  # children share these objects
    while os.getppid() == parent:  # a fork of it may keep the socket open
        with suppress(TimeoutError):
            request, pipes, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            if not request:
                return
            compare(request, pipes[0], rules)
