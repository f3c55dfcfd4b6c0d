"""Ray nodes on this machine, started through train_scripts/on_cpu.sh."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from cpu_stack import ROOT
from ray._private.authentication_test_utils import reset_auth_token_state
from ray.util.state import list_nodes
from real_runs import TIMEOUT, kill

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


def unpacked_wheel(folder: Path) -> Path:
    """The package of this project's wheel, with OpenRLHF's trees.

    A folder, since Ray's agents of two nodes on one machine would install a wheel into one place at the same time.
    """
    make = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    ]
    subprocess.run([*make, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "unpacked", "zip")
    return folder / "unpacked/openrlhf_sagc"


class Cluster:
    """A head and nodes of one pretended GPU each, without OpenRLHF in their path, in processes of their own.

    They and this process have one token.
    """

    def __init__(self, folder, python):
        self._folder, self._nodes = folder, []
        self.package = unpacked_wheel(folder)
        self.token = folder / "token"
        self.token.write_text(secrets.token_hex(32))
        self.token.chmod(0o600)
        self._environment = {**os.environ}
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(self.token))
        reset_auth_token_state()  # Ray has read the environment when it was imported
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
        environment = {"py_modules": [str(self.package)]}
        submit = ["job", "submit", "--address", self.dashboard, "--runtime-env-json", json.dumps(environment)]
        return self.run([*self._ray, *submit, "--", *command], log)

    def run(self, command: list, log) -> psutil.Popen:
        on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment["RAY_AUTH_TOKEN_PATH"] = str(self.token)
        environment["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = str(TIMEOUT)  # for a machine that is busy
        settings = dict(stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        return psutil.Popen(list(map(str, [*on_cpu, *command])), **settings)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for node in reversed(self._nodes):
            kill(node)
        os.environ.clear()
        os.environ.update(self._environment)
        reset_auth_token_state()
