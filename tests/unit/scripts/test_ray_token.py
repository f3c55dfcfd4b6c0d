"""Who may use Ray's ports: when a run needs a token, and whether a shell, a Ray and a cluster have one."""

import http.server
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("flags", "cluster", "variable", "why"),
    [
        (["--actor.num_nodes", "1"], None, None, ""),
        (["--actor.num_nodes", "2"], None, None, "--actor.num_nodes 2"),
        (["--ref.num_nodes=3"], "http://127.0.0.1:8265", None, "--ref.num_nodes 3"),
        (["--actor.num_nodes", "x[$(id)]"], None, None, ""),  # the flags' own parser says so
        ([], "http://127.0.0.1:8265", None, ""),
        ([], "http://localhost:8265", "auto", ""),
        ([], "http://192.0.2.77:8265", None, "--cluster http://192.0.2.77:8265"),
        ([], None, "192.0.2.77:6379", "RAY_ADDRESS 192.0.2.77:6379"),
        ([], None, "ray://192.0.2.77:10001", "RAY_ADDRESS ray://192.0.2.77:10001"),
        ([], None, "http://[", "RAY_ADDRESS http://["),
    ],
)
def test_what_of_a_run_needs_a_token(preflight, no_token, monkeypatch, flags, cluster, variable, why):
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert preflight.reason_for_token(preflight.settings_of(flags), cluster) == why


def follow(line):
    """The line's commands in a shell."""
    make, export = re.findall("`(.*?)`", line)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f"{make} && {export} && printenv RAY_AUTH_MODE"
    shell = subprocess.run(["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert shell.returncode == 0 and shell.stdout == "token\n"
    return shell


def test_the_line_of_a_missing_token_makes_one(preflight, no_token, monkeypatch):
    """Its commands, followed in a shell, leave nothing to complain of, and a file for this user alone."""
    (line,) = preflight.token_problems("--actor.num_nodes 2")
    assert line.startswith("--actor.num_nodes 2 needs a token, else whoever reaches Ray's ports runs jobs as you")
    shell = follow(line)
    token = no_token / ".ray/auth_token"
    assert token.stat().st_mode & 0o777 == 0o600 and token.read_text() not in shell.stdout + shell.stderr
    (line,) = preflight.token_problems("--actor.num_nodes 2")
    assert "RAY_AUTH_MODE is not token" in line and " rm " not in line and token.read_text()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert not list(preflight.token_problems("--actor.num_nodes 2"))
    token.chmod(0o644)
    (line,) = preflight.token_problems("--actor.num_nodes 2")
    assert line.endswith(f"other users may read it: chmod 600 {token}, in a folder of your own")


def test_the_line_of_an_unusable_token_makes_another(preflight, no_token, monkeypatch):
    home = no_token / "a b"  # which the line's commands take for one word
    monkeypatch.setenv("HOME", str(home))
    token = home / ".ray/auth_token"
    token.parent.mkdir(parents=True)
    token.touch(0o644)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    (line,) = preflight.token_problems("--actor.num_nodes 2")
    assert "is empty" in line
    follow(line)
    assert token.stat().st_mode & 0o777 == 0o600 and not list(preflight.token_problems("--actor.num_nodes 2"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(no_token / "none"))
    (line,) = preflight.token_problems("--actor.num_nodes 2")
    assert f"{no_token}/none cannot be read" in line and "make one with `unset RAY_AUTH_TOKEN_PATH; (umask" in line


def test_a_token_in_the_shell_needs_no_file(preflight, no_token, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one")
    assert not list(preflight.token_problems("--actor.num_nodes 2"))


@pytest.mark.parametrize(
    ("version", "known"), [("2.9.3", False), ("2.51.1", False), ("2.52.0", True), ("3.0.0", True)]
)
def test_an_older_ray_is_refused(preflight, no_token, monkeypatch, version, known):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    lines = list(preflight.token_problems("--actor.num_nodes 2"))
    needed = f"--actor.num_nodes 2 needs a token, which Ray {version} does not know: install Ray 2.52 or later"
    assert lines == ([] if known else [needed])


@pytest.mark.parametrize(
    ("status", "mode", "is_open"), [(200, "disabled", True), (404, None, True), (200, "token", False)]
)
def test_a_cluster_that_takes_jobs_from_anybody_is_refused(preflight, status, mode, is_open):
    class Dashboard(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/api/authentication_mode" and "Authorization" not in self.headers
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"authentication_mode": mode}).encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        problems = " / ".join(preflight.open_cluster_problems(address))
        server.shutdown()
    assert ("was started without a token" in problems) == is_open == bool(problems)
