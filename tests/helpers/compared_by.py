"""Comparisons whose children run any Python, as if the first wall were not there."""

import time
from contextlib import contextmanager

from openrlhf_sagc.grading.algebra import Comparisons

PROGRAM = """
import ctypes, json, mmap, os, pickle, pyseccomp, resource, signal, socket, subprocess, sys, threading, time
import sympy
from openrlhf_sagc.grading import process
process.LESSONS = ()
process.disarm = lambda: None
def run(gold, answer):
    scope = {}
    exec(answer, scope)
    return scope["done"]
process.equal = run
"""


@contextmanager
def comparisons(*lines, processes=4):
    """Comparisons that run the answer, which sets `done`; `lines` of Python come before."""
    program = "\n".join([PROGRAM, *lines, "process.main()"])
    running = Comparisons(processes, program)
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
