"""Who can run a job on a Ray that the scripts start: this user with the token, and nobody without it."""

import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from cpu_stack import ROOT
from ray_nodes import free_ports
from real_runs import TIMEOUT, kill

pytestmark = pytest.mark.stack
NOBODY = 12345  # a user of no name


@pytest.fixture(scope="module")
def head(tmp_path_factory, python):
    """A head as on_cpu.sh starts Ray: its process, the port where its agent takes jobs, its token."""
    folder = tmp_path_factory.mktemp("head")
    port, gcs = free_ports(2)
    start = [python, Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port", gcs]
    start += [
        "--node-ip-address",
        "127.0.0.1",
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
        "--num-cpus",
        2,
    ]
    start += ["--ray-client-server-port", *free_ports(1), "--dashboard-agent-listen-port", port]
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched", *start]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with (folder / "log").open("w") as log:
        process = psutil.Popen(
            list(map(str, command)), stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + TIMEOUT
        while post_job(port, "", {}, os.getuid()) == 0:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.5)
        session = process.children()[0].environ()
        token = Path(session.get("RAY_AUTH_TOKEN_PATH", os.devnull))
        yield SimpleNamespace(port=port, token=token, folder=Path(session["RAY_TMPDIR"]))
    finally:
        kill(process)


def post_job(port: int, command: str, headers: dict, user: int) -> int:
    """The status with which the agent at this port answers a job of `user`; 0 if there is none yet."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user != os.getuid():
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
            headers = {"Content-Type": "application/json", **headers}
            connection.request("POST", "/api/job_agent/jobs/", json.dumps({"entrypoint": command}), headers)
            os.write(writer, str(connection.getresponse().status).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        status = int(answer.read() or 0)
    os.waitpid(child, 0)
    return status


def users() -> list[int]:
    return [os.getuid(), NOBODY] if os.getuid() == 0 else [os.getuid()]


def test_a_job_runs_with_the_token_alone(head, tmp_path):
    """A file for each job that ran. The last job is the owner's: when it has run, the others would have too."""
    port, token = head.port, head.token.read_text()
    refused = {"no": {}, "wrong": {"Authorization": "Bearer " + "0" * 64}}
    for user in users():
        for name, headers in refused.items():
            status = post_job(port, f"touch {tmp_path}/{name}-{user}", headers, user)
            assert status == (401 if name == "no" else 403)
    assert post_job(port, f"touch {tmp_path}/owner", {"Authorization": f"Bearer {token}"}, os.getuid()) == 200
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "owner").exists():
        assert time.monotonic() < deadline, "the owner's job did not run"
        time.sleep(0.2)
    assert [file.name for file in tmp_path.iterdir()] == ["owner"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act for another user")
def test_another_user_reads_neither_token_nor_session(head):
    """Ray opens its session folder to all; the private one around it is closed."""
    code = f"import os; os.setgroups([]); os.setuid({NOBODY}); open({str(head.token)!r})"
    ran = subprocess.run(["python3", "-c", code], capture_output=True, text=True)
    assert "PermissionError" in ran.stderr
    assert head.token.stat().st_mode & 0o777 == 0o600 and head.folder.stat().st_mode & 0o777 == 0o700
    assert (head.folder / "ray").stat().st_mode & 0o777 == 0o777


def test_a_run_of_its_own_has_a_token_of_its_own(tmp_path):
    """On one machine, as the quickstart starts it; the token ends with the run."""
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched", "bash", "-c"]
    command += [
        'echo "$RAY_AUTH_MODE" "$RAY_AUTH_TOKEN_PATH" "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")"; cat "$RAY_AUTH_TOKEN_PATH"'
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    tokens = set()
    for _ in range(2):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        (mode, path, rights), token = ran.stdout.splitlines()[0].split(), ran.stdout.splitlines()[1]
        assert (mode, rights) == ("token", "600") and not os.path.exists(path) and len(token) == 64
        tokens.add(token)
    assert len(tokens) == 2
