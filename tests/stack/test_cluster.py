"""Two Ray nodes on one machine: Ray's runtime_env brings the wheel's package to both, and a run goes on after a node was lost."""

import os
import re
import subprocess
import sys
import time

import psutil
import pytest
from ray.util.state import list_actors
from ray_nodes import Cluster
from real_runs import TIMEOUT, kill, logged_steps, training

pytestmark = pytest.mark.stack


@pytest.fixture
def cluster(tmp_path, python):
    with Cluster(tmp_path, python) as made:
        yield made


def test_nodes_know_openrlhf_by_what_ray_brings_alone():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run([sys.executable, "-c", "import openrlhf"], env=environment, capture_output=True, text=True)
    assert "No module named 'openrlhf'" in found.stderr


@pytest.mark.in_turns
def test_a_run_on_two_nodes_ends_with_a_node_and_goes_on_from_its_checkpoint(cluster, task, tmp_path, python):
    second = cluster.join()
    flags = {
        "train__num_episodes": 1,
        "ckpt__output_dir": tmp_path / "trained",
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
    }

    def submit(name: str, until: str | None = None, **more) -> tuple[int | None, str]:
        """(exit code or None, output) once the job has ended or printed `until`."""
        log = tmp_path / f"{name}.log"
        with log.open("w") as sink:
            job = cluster.submit(sink, training(task, python, "-m", "openrlhf_sagc", **flags, **more))
        jobs.append(job)
        return follow(job, log, until)

    jobs = []
    try:
        submit("first", until="Global step 1:")
        actors = list_actors(address=cluster.dashboard, filters=[("state", "=", "ALIVE")])
        homes = {actor.class_name: actor.node_id for actor in actors}
        assert homes["PolicyModelActor"] != homes["RolloutRayActor"]
        follow(jobs[-1], tmp_path / "first.log", "Global step 2:")
        kill(second)
        code, output = follow(jobs[-1], tmp_path / "first.log", None)
        assert code == 1
        lost = r"^openrlhf_sagc: \w+ \(process \d+ on [\d.]+\) has died: .*; its log says why, start again with --ckpt.load_enable$"
        assert re.search(lost, output, re.MULTILINE), output[-5000:]
        saved = logged_steps(output).index[-1]
        assert 2 <= saved < 6

        cluster.wait(1)
        cluster.join()
        code, output = submit("second", ckpt__load_enable=True)
        steps = logged_steps(output)
        assert code == 0 and steps.index[0] in (saved, saved + 1) and steps.index[-1] == 6
        assert (steps["rollout/num_samples"] == 64).all()
    finally:
        for job in jobs:
            if job.poll() is None:
                kill(job)


def follow(job: psutil.Popen, log, until: str | None) -> tuple[int | None, str]:
    deadline = time.monotonic() + TIMEOUT
    while job.poll() is None:
        output = log.read_text(errors="replace")
        if until and until in output:
            return None, output
        awaited = f"to print {until!r}" if until else "to end"
        assert time.monotonic() < deadline, f"waited {TIMEOUT} s for the job {awaited}; it printed:\n{output[-5000:]}"
        time.sleep(0.5)
    return job.returncode, log.read_text(errors="replace")
