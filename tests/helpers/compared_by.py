"""Comparisons whose children run any Python, as if the first wall were not there."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from openrlhf_sagc.grading.algebra import Comparisons

PROGRAM = """
import ctypes, json, mmap, os, pickle, pyseccomp, resource, signal, socket, subprocess, sys, threading, time
import sympy
from openrlhf_sagc.grading import process
process.LESSONS = [("", "done = True")]
process.disarm = lambda: None
def run(gold, answer):
    scope = {}
    exec(answer, scope)
    return scope["done"]
process.equal = run
"""


class Asked(Comparisons):
    """Comparisons in threads of their own."""

    def __init__(self, processes, program):
        self.threads = ThreadPoolExecutor(100)
        super().__init__(processes, program)

    def ask(self, gold, answer):
        """The verdict to come, None if the comparison was stopped."""
        return self.threads.submit(self._ask, gold, answer)

    def _ask(self, gold, answer):
        try:
            return self.verdict(gold, answer)
        except TimeoutError:
            return None

    def close(self):
        with self._starting:
            self._program = "raise SystemExit"  # whoever waits is told
            if self._process:
                self._process.kill()
        self.threads.shutdown(cancel_futures=True)


@contextmanager
def comparisons(*lines, processes=4):
    """Comparisons that run the answer, which sets `done`; `lines` of Python come before."""
    running = Asked(processes, "\n".join([PROGRAM, *lines, "process.main()"]))
    try:
        yield running
    finally:
        running.close()


def until(condition, seconds=100):
    """What the condition returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
