"""The process that compares answers: started by exec with an empty environment, it forks one child for each comparison.

A child begins as a copy of it, gives up all it could reach, compares, and says one byte. So nothing that a comparison leaves
behind reaches the next. The process ends with the one that started it, and children end with it.

Lines of JSON come and go: {"id", "gold", "answer"} on standard input, {"id", "verdict"} on a pipe of their own, since libraries
may print. The verdict is true, false, or null: the comparison failed, was stopped, or got no time. The first line out is
{"ready": true} or {"error": why it cannot work}.
"""

import gc
import json
import logging
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.disarm import disarm, prepare
from openrlhf_sagc.grading.sandbox import OUTPUT, check, confine, seccomp_filter

TRIES = (0.25, 1.5, 120.0)  # seconds by the clock of a comparison's first, second and last try: most take hundredths
OWN_SECONDS = 5  # of the processor, at most, in each try
LESSONS = (  # answers of several forms, compared before the process is ready: sympy imports and caches what they need
    (r"\frac{1}{2}+x", r"x+0.5"),
    (r"\sqrt{8}", r"2\sqrt2"),
    (r"x^2+2x+1", "(x+1)^2"),
    (r"(1,2]", r"(1,\infty)"),
    (r"\begin{pmatrix}1 \\ \pi\end{pmatrix}", r"\begin{pmatrix}1 \\ 3\end{pmatrix}"),
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"e^{2\pi i}", "e^{-i}"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    (r"\log_2 8", r"\ln 20"),
    (r"2^{x+1}", r"2\cdot 2^x"),
    (r"\binom{7}{2}+5!", r"\sum_{n=1}^{10} n"),
    (r"y=2x+3", "2y=4x+6"),
    (r"x<2 \text{ or } x>\sqrt{5}", r"(-\infty,2)\cup(\sqrt5,\infty)"),
)


@dataclass
class Comparison:
    """One that was asked for, and the child that has it: its process, its pipe, and the second of the clock that ends it."""

    id: int
    gold: str
    answer: str
    tries: int = 0
    pid: int = 0
    pipe: int = -1
    deadline: float = 0.0


class Comparisons:
    """The comparisons of this process, and the line that goes out for each.

    Every try stands behind those that have had fewer, and the last ones leave the others a process. So answers that hang delay
    others by a second or two, and waiting costs none of a comparison's own time.

    Args:
        compare: (gold, answer) -> whether they are equal; runs confined in a child.
        rules: of `seccomp_filter`.
        processes: that compare at once.
        say: sends a line out.
    """

    def __init__(self, compare: Callable[[str, str], bool], rules: Any, processes: int, say: Callable[[dict], None]):
        self._compare, self._rules, self._processes, self._say = compare, rules, processes, say
        self._waiting: list[deque[Comparison]] = [deque() for _ in TRIES]
        self.busy: dict[int, Comparison] = {}  # by their pipe

    def add(self, comparison: Comparison) -> None:
        """It waits for its next try."""
        self._waiting[comparison.tries].append(comparison)

    def start_what_may_run(self) -> None:
        """Give children to those whose turn it is."""
        while len(self.busy) < self._processes:
            last = sum(one.tries == len(TRIES) for one in self.busy.values())
            open_to_last = last < max(self._processes - 1, 1)
            queue = next((queue for queue in (self._waiting if open_to_last else self._waiting[:-1]) if queue), None)
            if not queue:
                return
            if not self._start(queue[0]):
                return
            queue.popleft()

    def _start(self, comparison: Comparison) -> bool:
        """Whether it runs: where no process or memory is left, it is tried again later."""
        comparison.pipe, verdict = os.pipe()
        parent = os.getpid()
        try:
            comparison.pid = os.fork()
        except OSError:
            os.close(comparison.pipe)
            os.close(verdict)
            return False
        if comparison.pid == 0:
            self._compare_and_exit(comparison, verdict, parent)
        os.close(verdict)
        comparison.deadline = time.monotonic() + TRIES[comparison.tries]
        comparison.tries += 1
        self.busy[comparison.pipe] = comparison
        return True

    def _compare_and_exit(self, comparison: Comparison, verdict: int, parent: int) -> None:
        """The child's whole life."""
        try:
            confine(self._rules, verdict, OWN_SECONDS, parent)
            os.write(OUTPUT, b"1" if self._compare(comparison.gold, comparison.answer) else b"0")
        except BaseException:  # of sympy on odd input, also a MemoryError
            os.write(OUTPUT, b"x")
        finally:
            os._exit(0)

    def hear(self, pipe: int) -> None:
        """A child has said its verdict, or is gone: one that was killed from outside is tried again."""
        verdict = os.read(pipe, 1)
        comparison = self.busy[pipe]
        status, own_seconds = self._bury(comparison)
        was_killed = (
            os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and own_seconds < 0.9 * OWN_SECONDS
        )
        if not verdict and was_killed and comparison.tries < len(TRIES):
            self.add(comparison)
        else:
            self._say({"id": comparison.id, "verdict": {b"1": True, b"0": False}.get(verdict)})

    def end_late_ones(self) -> None:
        """Kill the children whose time by the clock is over."""
        now = time.monotonic()
        for comparison in [one for one in self.busy.values() if one.deadline <= now]:
            if select.select([comparison.pipe], [], [], 0)[0]:  # it has just said it
                self.hear(comparison.pipe)
                continue
            self._bury(comparison)
            if comparison.tries < len(TRIES):
                self.add(comparison)
            else:
                self._say({"id": comparison.id, "verdict": None})

    def _bury(self, comparison: Comparison) -> tuple[int, float]:
        """End the child; its exit status and the processor's seconds that it took."""
        os.kill(comparison.pid, signal.SIGKILL)  # nobody else waits for it, so the number is still its own
        _, status, usage = os.wait4(comparison.pid, 0)
        del self.busy[comparison.pipe]
        os.close(comparison.pipe)
        return status, usage.ru_utime + usage.ru_stime


def serve(compare: Callable[[str, str], bool], processes: int, say: Callable[[dict], None]) -> None:
    """Answer the lines of standard input until it ends, or the process that started this one. Arguments as `Comparisons` has them."""
    try:
        rules = seccomp_filter()
        check(rules)
    except RuntimeError as error:
        return say({"error": str(error)})
    comparisons, parent, rest = Comparisons(compare, rules, processes, say), os.getppid(), b""
    gc.freeze()  # children share these objects
    say({"ready": True})
    while os.getppid() == parent:
        comparisons.start_what_may_run()
        poll = select.poll()
        for descriptor in (0, *comparisons.busy):
            poll.register(descriptor, select.POLLIN)
        deadline = min((one.deadline for one in comparisons.busy.values()), default=float("inf"))
        for descriptor, _ in poll.poll(min(max(deadline - time.monotonic(), 0) * 1000 + 1, 10_000)):
            if descriptor:
                comparisons.hear(descriptor)
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                comparisons.add(Comparison(**json.loads(line)))
        comparisons.end_late_ones()


def compare_answers(gold: str, answer: str) -> bool:
    """What a child does."""
    disarm()
    return equal(gold, answer)


def main(compare: Callable[[str, str], bool] = compare_answers) -> None:
    """Started by algebra.py."""
    output = int(sys.argv[3])

    def say(line: dict) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(output, data) :]

    logging.disable(logging.CRITICAL)
    prepare()
    for gold, answer in LESSONS:
        equal(gold, answer)
    serve(compare, int(sys.argv[1]), say)
