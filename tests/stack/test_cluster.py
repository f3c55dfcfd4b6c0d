"""Two Ray nodes on one machine: Ray's runtime_env brings the trees to both, and a run goes on after a node was lost."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cpu_stack import ROOT
from ray.util.state import list_actors, list_nodes
from real_runs import TIMEOUT, kill, logged_steps, training

pytestmark = pytest.mark.stack
PYTHON_PATHS = [ROOT / "build/cpu-patched/openrlhf", ROOT / "openrlhf_sagc"]
AGENT_PORTS = (
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "runtime-env-agent-port",
)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """A head and nodes of one pretended GPU each, without OpenRLHF in their path, in processes of their own."""

    def __init__(self, folder, python):
        self._folder, self._nodes = folder, []
        self._ray = [python, Path(sys.executable).with_name("ray")]
        self._port, dashboard = free_ports(2)
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        self.start(
            "--head", "--port", self._port, "--dashboard-port", dashboard, "--ray-client-server-port", *free_ports(1)
        )
        self.wait(1)

    def start(self, *flags) -> psutil.Popen:
        ports = [word for name, port in zip(AGENT_PORTS, free_ports(4)) for word in (f"--{name}", port)]
        path = ["env", "-u", "PYTHONPATH", 'RAY_OVERRIDE_RESOURCES={"GPU": 1, "CPU": 8}']
        start = [*self._ray, "start", "--block", "--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
        log = (self._folder / f"node-{len(self._nodes)}.log").open("w")
        self._nodes.append(self.run([*path, *start, *ports, *flags], log))
        return self._nodes[-1]

    def join(self) -> psutil.Popen:
        """One more node."""
        node = self.start("--address", f"127.0.0.1:{self._port}")
        self.wait(2)
        return node

    def wait(self, count: int) -> None:
        """Until so many nodes are alive."""
        deadline, error = time.monotonic() + TIMEOUT, None
        while True:
            try:
                alive = [node for node in list_nodes(address=self.dashboard) if node.state == "ALIVE"]
                if len(alive) == count:
                    return
            except Exception as raised:  # the dashboard does not answer yet
                error = raised
            assert time.monotonic() < deadline, f"no {count} nodes: see {self._folder}; last error: {error}"
            time.sleep(1)

    def submit(self, log, command: list) -> psutil.Popen:
        environment = {"py_modules": list(map(str, PYTHON_PATHS))}
        submit = ["job", "submit", "--address", self.dashboard, "--runtime-env-json", json.dumps(environment)]
        return self.run([*self._ray, *submit, "--", *command], log)

    @staticmethod
    def run(command: list, log) -> psutil.Popen:
        on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        settings = dict(stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        return psutil.Popen(list(map(str, [*on_cpu, *command])), **settings)

    def close(self) -> None:
        for node in reversed(self._nodes):
            kill(node)


@pytest.fixture
def cluster(tmp_path, python):
    made = Cluster(tmp_path, python)
    yield made
    made.close()


def test_nodes_know_openrlhf_by_what_ray_brings_alone():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run([sys.executable, "-c", "import openrlhf"], env=environment, capture_output=True, text=True)
    assert "No module named 'openrlhf'" in found.stderr


def test_a_run_on_two_nodes_ends_with_a_node_and_goes_on_from_its_checkpoint(cluster, task, tmp_path, python):
    second = cluster.join()
    flags = {
        "rollout__sagc__enable": True,
        "rollout__sagc__group_sizes": [8],
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
        lost = (
            r"a process of the run has died|a vLLM engine has died|Connection (closed|reset) by peer|its node has died"
        )
        assert re.search(lost, output), output[-5000:]  # whoever notices first says so
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
