import argparse
import http.server
import importlib.metadata
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT

SCRIPT = ROOT / "train_scripts" / "preflight.py"
COLOCATED = [
    "--actor.num_nodes",
    "2",
    "--actor.num_gpus_per_node",
    "8",
    "--vllm.num_engines",
    "4",
    "--train.colocate_all",
]


@pytest.fixture(scope="module")
def preflight():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def said(problems):
    return " / ".join(problems)


def test_the_later_flag_wins(preflight):
    words = ["--a", "1", "2", "--b", "--c=3", "--d", "-1", "--a", "4"]
    assert preflight.settings_of(words) == {"--a": ["4"], "--b": [], "--c": ["3"], "--d": ["-1"]}
    assert preflight.value({"--a": ["4"], "--b": []}, "--b", "5") == "5"


@pytest.mark.parametrize(
    ("more", "gpus"),
    [([], 16), (["--train.async_enable"], 20), (["--vllm.num_engines", "1", "--train.async_enable"], 17)],
)
def test_gpus_needed(preflight, more, gpus):
    assert preflight.gpus_needed(preflight.settings_of([*COLOCATED, *more])) == gpus


@pytest.mark.parametrize(
    ("lines", "visible", "line"),
    [
        (["10, 81559"] * 8, None, ""),
        (["10, 81559"] * 4, None, "the run needs 8 GPUs, this node has 4: set ACTOR_GPUS and ENGINES"),
        (["10, 81559"] * 8, "0,1", "this node has 2 in CUDA_VISIBLE_DEVICES=0,1"),
        (["10, 81559"] * 7 + ["40960, 81559"], None, "GPU 7 has 40 of 80 GiB in use"),
        (None, None, "nvidia-smi does not work, and the run needs 8 GPUs"),
    ],
)
def test_gpus(preflight, monkeypatch, tmp_path, lines, visible, line):
    program = tmp_path / "nvidia-smi"
    if lines is not None:
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{text}'\n" for text in lines))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    problems = said(preflight.gpu_problems(8))
    assert line in problems and bool(line) == bool(problems)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def reward_func(queries, prompts, labels): pass", ""),
        ("x = 1", "cannot be used: AttributeError"),
        ("import no_such_module", "cannot be used: ModuleNotFoundError: No module named 'no_such_module'"),
        (None, "is not there"),
    ],
)
def test_reward_files(preflight, tmp_path, code, line):
    file = tmp_path / "reward.py"
    if code:
        file.write_text(code)
    problems = said(preflight.file_problems({"--reward.remote_url": [str(file)]}))
    assert line in problems and bool(line) == bool(problems)
    assert not line or problems.startswith(f"--reward.remote_url {file} ")


def test_files(preflight, tmp_path):
    (tmp_path / "model").mkdir()
    settings = {
        "--reward.remote_url": ["http://host:5000/reward"],
        "--actor.model_name_or_path": [str(tmp_path / "model")],
        "--data.prompt_dataset": ["OpenRLHF/dapo-math-17k"],
        "--eval.dataset": [f"OpenRLHF/aime-2024,{tmp_path}/eval.jsonl"],
    }
    assert list(preflight.file_problems(settings)) == [
        f"--eval.dataset {tmp_path}/eval.jsonl is not there",
        f"--actor.model_name_or_path {tmp_path}/model has no config.json",
    ]


def test_the_default_reward_grades_an_answer(preflight):
    from openrlhf_sagc import math_reward

    settings = {"--reward.remote_url": [math_reward.__file__]}
    assert not list(preflight.file_problems(settings))
    answer = {"rewards": mock.Mock(tolist=lambda: [0.0])}
    with mock.patch("importlib.util.module_from_spec", lambda spec: SimpleNamespace(reward_func=lambda *_: answer)):
        with mock.patch("importlib.util.spec_from_file_location"):
            assert "gives 10/2 for 5 the reward [0.0]" in said(preflight.file_problems(settings))


def test_ports(preflight):
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"port {port} is not free" in said(preflight.port_problems([port]))
        command = [sys.executable, SCRIPT, "--ports", str(port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert run.returncode == 2 and run.stdout.startswith(f"train_scripts/preflight.py: port {port} is not free")
    assert not list(preflight.port_problems([port]))


def test_room(preflight, tmp_path):
    output = str(tmp_path / "not/yet/there")
    assert not list(preflight.room_problems(output, 0, 0))
    problems = said(preflight.room_problems(output, 1e9, 1e9))
    assert "the run's checkpoints need 1000000000" in problems and "of memory, the run needs 1000000000" in problems


def test_cluster(preflight):
    """It is asked until it has the GPUs, or the time is over."""
    nodes = [SimpleNamespace(resources_total={"GPU": 8.0, "CPU": 4.0}), SimpleNamespace(resources_total={"CPU": 4.0})]
    with mock.patch("time.sleep"):
        with mock.patch("ray.util.state.list_nodes", side_effect=[ConnectionError("not yet"), nodes[1:], nodes]):
            assert not list(preflight.cluster_problems("http://head:8265", 8, 1))
        with mock.patch("ray.util.state.list_nodes", return_value=nodes):
            assert "has 8 of 16 GPUs on 2 nodes" in said(preflight.cluster_problems("http://head:8265", 16, 0))
        with mock.patch("ray.util.state.list_nodes", side_effect=ConnectionError("refused")):
            assert "does not answer: refused" in said(preflight.cluster_problems("http://head:8265", 16, 0))


def test_a_cluster_that_runs_here_is_not_joined_by_chance(preflight, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with mock.patch("ray._private.services.find_gcs_addresses", return_value={"10.0.0.1:6379"}):
        assert "already runs here, at 10.0.0.1:6379" in said(preflight.ray_problems())
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        assert not list(preflight.ray_problems())


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--rollout.sagc.enabled"], "unrecognized arguments: --rollout.sagc.enabled"),
        (["--rollout.sagc.enable"], "--algo.advantage.estimator gae has no groups"),
        (["--train.partial_rollout_enable"], "--train.partial_rollout_enable requires --train.async_enable."),
    ],
)
def test_wrong_flags(preflight, flags, line):
    fitting = ["--reward.remote_url", "reward.py", "--rollout.n_samples_per_prompt", "8", "--vllm.num_engines", "1"]
    (problem,) = preflight.flag_problems("openrlhf_sagc", [*fitting, *flags])
    assert line in problem and "\n" not in problem


def test_missing_modules(preflight):
    settings = preflight.settings_of(["--ds.packing_samples", "--logger.wandb.key", "x"])
    with mock.patch("importlib.util.find_spec", return_value=None):
        problems = said(preflight.module_problems("openrlhf_sagc", settings))
    for name in ("openrlhf", "openrlhf_sagc", "vllm", "ray", "flash_attn", "wandb"):
        assert f"no module {name}: install " in problems


def test_each_problem_is_a_line_and_the_rest_is_still_checked(preflight, tmp_path):
    command = ["openrlhf_sagc", "--reward.remote_url", "/none.py", "--ckpt.output_dir", str(tmp_path)]
    options = argparse.Namespace(
        ports=[],
        command=command,
        device="cpu",
        cluster=None,
        isolated_network=False,
        disk_gb=1e9,
        memory_gb=0,
        wait_minutes=0,
    )
    lines = list(preflight.problems(options))
    assert any("/none.py is not there" in line for line in lines) and any("free disk" in line for line in lines)


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    """A shell of which Ray would find no token."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


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
    token = no_token / ".ray/auth_token"
    token.parent.mkdir()
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
        problems = said(preflight.open_cluster_problems(address))
        server.shutdown()
    assert ("was started without a token" in problems) == is_open == bool(problems)


@pytest.fixture
def check(monkeypatch, capsys):
    """check(*words): what preflight.py prints for them, a line each."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            assert end.code == 2
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("start", [["--ports", "0"], ["--device", "cpu"]])
def test_several_nodes_without_a_token_are_refused(check, no_token, start):
    """As a head is started, and as a job is; but not where the platform isolates the network."""
    job = [] if "--ports" in start else ["openrlhf_sagc", "--actor.num_nodes", "2", "--reward.remote_url", "x.py"]
    assert "needs a token" in check(*start, *job)
    assert "needs a token" not in check("--isolated_network", *start, *job)


def test_a_problem_is_printed_without_secrets(check):
    flags = ["--reward.remote_url", "x.py", "--eval.dataset", "/none/http://user:s3cret@host/x"]
    said = check("--device", "cpu", "openrlhf_sagc", *flags)
    assert "/none/http://host/x is not there" in said and "s3cret" not in said
