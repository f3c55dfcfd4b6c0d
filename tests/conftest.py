"""For all tests: processes that start at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from cpu_stack import ROOT, cpu_environment, deepspeed_environment
from filelock import FileLock

# Where the tests run in the background, or under nohup, these are ignored, and so they would be in every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

WORKER = "PYTEST_XDIST_WORKER" in os.environ
if WORKER or "-n" not in sys.argv:
    sys.executable = str(Path(sys.prefix) / "bin/python")  # a test that wants a warm one asks for it


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory) -> Path:
    """A folder that all workers of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if WORKER else folder


@pytest.fixture(scope="session")
def python(session_folder) -> Path:
    """Stands for `python`, with torch, DeepSpeed and vLLM imported; one server for all workers, or that of run.sh."""
    if "WARM_PYTHON" in os.environ:
        return Path(os.environ["WARM_PYTHON"])
    note = session_folder / "warm_python"
    with FileLock(f"{note}.lock"):
        if not note.exists():
            owner = os.getppid() if WORKER else os.getpid()
            note.write_text(str(warm_python.start(cpu_environment("cpu-base"), owner)))
    return Path(note.read_text())


@pytest.fixture(scope="session")
def run_in_tree(python):
    """run_in_tree(tree, *arguments, **options of subprocess.run): what python prints with build/TREE's OpenRLHF and our helpers."""

    def run(tree: str, *arguments, env=None, **options) -> str:
        environment = deepspeed_environment(ROOT / "build" / tree, ROOT / "tests/helpers") | (env or {})
        options = {"cwd": ROOT, "timeout": 600, **options}
        done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout

    return run
