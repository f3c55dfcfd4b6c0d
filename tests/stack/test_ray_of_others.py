"""A launch script on a machine where others, or the same user, run Ray: the run has a Ray of its own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from cpu_stack import ROOT
from ray_nodes import free_ports
from real_runs import TIMEOUT, kill

pytestmark = pytest.mark.stack
JOIN = "import ray; print('run in', ray.init(include_dashboard=False).address_info['gcs_address'])"
# Stands for the training: the checks and the printing of the command say nothing here.
PYTHON = f"""#!/bin/sh
case "$*" in "-m openrlhf_sagc"*) exec {sys.executable} -c "{JOIN}" ;; esac
"""


@pytest.fixture
def head():
    """A folder as RAY_TMPDIR of a Ray that runs, and that Ray's port."""
    folder = Path(tempfile.mkdtemp(prefix="ray.", dir="/tmp"))  # short: Ray's socket paths are limited
    (port,) = free_ports(1)
    program = Path(sys.executable).with_name("ray")
    start = [program, "start", "--head", "--block", "--port", port, "--num-cpus", "1"]
    start += ["--include-dashboard", "false", "--disable-usage-stats"]
    with (folder / "head.log").open("w") as log:
        process = psutil.Popen(list(map(str, start)), env=environment(folder), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + TIMEOUT
        while not (folder / "ray/ray_current_cluster").exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "head.log").read_text()
            time.sleep(0.5)
        yield folder, port
    finally:
        kill(process)
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, **more) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**others, "RAY_TMPDIR": str(folder), **more}


def test_a_launch_script_does_not_join_the_ray_that_its_shell_would_join(head, tmp_path):
    folder, port = head
    alone = subprocess.run(
        [sys.executable, "-c", JOIN], env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert joined(alone) == port
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    more = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REWARD": "/reward.py", "OUTPUT": str(tmp_path / "output")}
    command = ["bash", ROOT / "train_scripts/dapo_qwen2.5_7b.sh"]
    launched = subprocess.run(
        command, env=environment(folder, **more), capture_output=True, text=True, timeout=TIMEOUT
    )
    assert joined(launched) != port


def joined(command: subprocess.CompletedProcess) -> int:
    """The port of the Ray that it has joined, or started."""
    assert command.returncode == 0, command.stderr[-5000:]
    return int(re.search(r"run in \S+:(\d+)$", command.stdout, re.MULTILINE)[1])
