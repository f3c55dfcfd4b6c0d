"""An engine's actor whose engine core dies."""

import subprocess
import sys

from cpu_stack import ROOT

PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from openrlhf_sagc.actors import engine_core
engine_core.PAUSE = 0.05
llm = SimpleNamespace(errored=False, dead_error=RuntimeError("see the stack\\nabove"))
engine_core.end_with_the_core(SimpleNamespace(llm=llm))
time.sleep(0.3)
print("runs", flush=True)
llm.errored = sys.argv[2] == "dies"
time.sleep(60 if llm.errored else 0.3)
"""


def ended(how: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROGRAM, str(ROOT), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_actor_ends_with_its_core():
    died = ended("dies")
    assert (died.returncode, died.stdout) == (1, "runs\n")
    assert died.stderr == (
        "openrlhf_sagc: vLLM's engine core has died, and its actor ends: RuntimeError: see the stack above\n"
    )


def test_the_actor_of_a_core_that_lives_runs_on():
    assert (ended("lives").returncode, ended("lives").stderr) == (0, "")
