"""A process that a check starts leaves nothing behind, whatever session its own ones have."""

import os
import sys
import time
from pathlib import Path

import pytest
from lib.gpu_checks import processes
from lib.gpu_checks.processes import marked, started

# Starts another process in a session of its own, as Ray's daemons are; both ignore that they are told to end.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
apart = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
print(subprocess.Popen(apart, start_new_session=True).pid, os.environ["RAY_TMPDIR"], flush=True)
{end}
"""


def wait_for(log):
    for _ in range(600):
        if (words := log.read_text().split()) and log.read_text().endswith("\n"):
            return int(words[0]), Path(words[1])
        time.sleep(0.1)
    raise AssertionError("it has not begun")


@pytest.mark.parametrize("end", ["time.sleep(600)", ""])
def test_nothing_is_left_of_a_process_that_hangs_or_has_ended(tmp_path, monkeypatch, end):
    monkeypatch.setattr(processes, "ENDING", 1.0)
    log = tmp_path / "log"
    with started([sys.executable, "-c", STUBBORN.format(end=end)], log, {"GIVEN": "1"}) as process:
        apart, ray = wait_for(log)
        assert apart in marked(process.mark) and ray.is_dir()
        if not end:
            assert process.wait(60) == 0 and marked(process.mark) == [apart]
    assert process.poll() is not None and not marked(process.mark) and not ray.exists()


def test_a_part_of_a_check_has_a_mark_that_begins_with_the_checks(tmp_path, monkeypatch):
    monkeypatch.setenv(processes.MARK, "/check")
    with started([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log", {}) as process:
        assert process.mark.startswith("/check/") and process.pid in marked("/check")
        assert os.getpid() not in marked("")
    assert process.pid not in marked("/check")
