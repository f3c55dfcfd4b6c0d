"""The process that compares answers: started by exec with an empty environment, it forks one child for each comparison.

It imports math-verify once. A child begins as a copy of it, gives up all it could reach, compares, and sends one byte. So
nothing that a comparison leaves behind reaches the next, and nothing that a child says is more than a byte. The process ends
with the one that started it, and children end with it.

Lines of JSON come and go: {"id", "gold", "answer"} on standard input, {"id", "verdict"} on a pipe of their own, since libraries
may print. The verdict is true, false, "failed" (math-verify raised, or the memory is over), "stopped" (its own seconds are over) or "late" (the
machine was too busy to give it those seconds). The first line out is {"ready": true} or {"error": why it cannot work}.
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
from functools import partial
from typing import Any, TypeAlias

from openrlhf_sagc.grading.comparison import equal
from openrlhf_sagc.grading.disarm import disarm, prepare
from openrlhf_sagc.grading.lessons import FORMS, LESSONS
from openrlhf_sagc.grading.sandbox import INPUT, OUTPUT, check, confine, seccomp_filter

FIRST_SECONDS = 1.0  # of the first try, by the clock: most comparisons take hundredths
OWN_SECONDS = 5  # of the second try, of the processor's time
LATEST_SECONDS = 120.0  # of the second try, by the clock
KILLS = 2  # from outside that cost a comparison nothing: the child that was ready for its retry may be killed as well
QUESTION_BYTES = 1 << 15  # what a pipe takes at once, and more than the answers that need algebra have
MOST_SECONDS = 10.0  # without a look whether the process that started this one is still there
VERDICTS = {b"1": True, b"0": False}
Lessons: TypeAlias = deque[Callable[[], object]]


@dataclass
class Comparison:
    """One that was asked for: its id, its answers, and how often a child of it was killed from outside."""

    id: int
    gold: str
    answer: str
    killed: int = 0


@dataclass
class Child:
    """A process that waits for its one comparison, or has it, and the second of the clock that ends it."""

    pid: int
    question: int
    verdict: int
    comparison: Comparison | None = None
    deadline: float = float("inf")
    is_second: bool = False


class Comparisons:
    """The comparisons of this process: which wait, which run, and the line that goes out for each.

    A short first try has the first turn. The rest of the time stands behind those who have not had theirs, and leaves them
    a process. So answers that hang delay others by seconds, and waiting costs none of a comparison's own time.

    Args:
        compare: (gold, answer) -> whether they are equal; runs confined in a child.
        rules: of `seccomp_filter`.
        processes: that compare at once.
        say: sends a line out.
    """

    def __init__(self, compare: Callable[[str, str], bool], rules: Any, processes: int, say: Callable[[dict], None]):
        self._compare, self._rules, self._processes, self._say = compare, rules, processes, say
        self._first: deque[Comparison] = deque()
        self._second: deque[Comparison] = deque()
        self._ready: deque[Child] = deque()  # a comparison need not wait for the fork
        self._busy: dict[int, Child] = {}  # by their pipe

    @property
    def pipes(self) -> list[int]:
        """On which children are heard."""
        return [*self._busy, *(child.verdict for child in self._ready)]

    @property
    def idle(self) -> bool:
        return not self._busy

    def add(self, comparison: Comparison) -> None:
        self._first.append(comparison)

    def start_what_may_run(self) -> None:
        """Give children to those whose turn it is, and have one more ready."""
        while len(self._busy) < self._processes:
            seconds = sum(child.is_second for child in self._busy.values())
            if self._first:
                self._start(self._first.popleft(), is_second=False)
            elif self._second and seconds < max(self._processes - 1, 1):
                self._start(self._second.popleft(), is_second=True)
            else:
                break
        if not self._ready:
            self._ready.append(self._fork())

    def renew(self) -> None:
        """End the children that are ready: later ones know what this process has learned since."""
        while self._ready:
            self._bury(self._ready.popleft())

    def _start(self, comparison: Comparison, is_second: bool) -> None:
        child = self._ready.popleft() if self._ready else self._fork()
        child.comparison, child.is_second = comparison, is_second
        child.deadline = time.monotonic() + (LATEST_SECONDS if is_second else FIRST_SECONDS)
        self._busy[child.verdict] = child
        try:
            os.write(child.question, json.dumps([comparison.gold, comparison.answer]).encode()[:QUESTION_BYTES])
        except BrokenPipeError:  # it was killed, which `hear` is about to learn
            pass
        os.close(child.question)  # so that a child never waits

    def _fork(self) -> Child:
        question, questioner = os.pipe()
        answerer, verdict = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._compare_and_exit(question, verdict)
        os.close(question)
        os.close(verdict)
        return Child(pid, questioner, answerer)

    def _compare_and_exit(self, question: int, verdict: int) -> None:
        """The child's whole life."""
        try:
            confine(self._rules, question, verdict, OWN_SECONDS)
            text = b"".join(iter(lambda: os.read(INPUT, 1 << 16), b""))
            if text:
                os.write(OUTPUT, b"1" if self._compare(*json.loads(text)) else b"0")
        except BaseException:  # of sympy on odd input, also a MemoryError
            os.write(OUTPUT, b"x")
        finally:
            os._exit(0)

    def hear(self, pipe: int) -> None:
        """A child has written its verdict, or is gone."""
        child = self._busy.get(pipe)
        if child is None:
            (child,) = [child for child in self._ready if child.verdict == pipe]
            self._ready.remove(child)
            self._bury(child)
            return
        verdict = os.read(pipe, 1)
        status, own_seconds = self._bury(child)
        comparison = child.comparison
        assert comparison
        if verdict:
            self._say({"id": comparison.id, "verdict": VERDICTS.get(verdict, "failed")})
        elif own_seconds >= 0.9 * OWN_SECONDS:
            self._say({"id": comparison.id, "verdict": "stopped"})
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and comparison.killed < KILLS:
            comparison.killed += 1  # from outside
            self._first.append(comparison)
        else:
            self._say({"id": comparison.id, "verdict": "failed"})

    def end_late_ones(self) -> None:
        """Kill the children whose time by the clock is over; a first try gets its second."""
        now = time.monotonic()
        for child in [child for child in self._busy.values() if child.deadline <= now]:
            self._bury(child)
            assert child.comparison
            if child.is_second:
                self._say({"id": child.comparison.id, "verdict": "late"})
            else:
                self._second.append(child.comparison)

    def seconds_to_deadline(self) -> float:
        """Until a child is late, MOST_SECONDS at most."""
        deadlines = [child.deadline - time.monotonic() for child in self._busy.values()]
        return max(min(deadlines, default=MOST_SECONDS), 0.0)

    def _bury(self, child: Child) -> tuple[int, float]:
        """End the child; its exit status and the processor's seconds that it took."""
        os.kill(child.pid, signal.SIGKILL)  # nobody else waits for it, so the number is still its own
        _, status, usage = os.wait4(child.pid, 0)
        if not self._busy.pop(child.verdict, None):
            os.close(child.question)
        os.close(child.verdict)
        return status, usage.ru_utime + usage.ru_stime


def serve(compare: Callable[[str, str], bool], processes: int, say: Callable[[dict], None], lessons: Lessons) -> None:
    """Answer the lines of standard input until it ends, or the process that started this one.

    Args:
        compare: (gold, answer) -> whether they are equal; runs confined in a child.
        processes: that compare at once.
        say: sends a line out.
        lessons: what this process does while it has nothing to do, for the sake of later children.
    """
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
        for descriptor in (0, *comparisons.pipes):
            poll.register(descriptor, select.POLLIN)
        learns = comparisons.idle and bool(lessons)
        events = poll.poll(0 if learns else comparisons.seconds_to_deadline() * 1000 + 1)
        if learns and not events:
            lessons.popleft()()
            if not lessons:
                gc.freeze()
                comparisons.renew()
        for descriptor, _ in events:
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
    lessons: Lessons = deque(partial(equal, *pair) for pair in LESSONS)
    for _ in range(FORMS):
        lessons.popleft()()
    serve(compare, int(sys.argv[1]), say, lessons)
