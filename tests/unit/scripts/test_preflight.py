import argparse
import runpy
import socket
import subprocess
import sys
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
        (["--rollout.sagc.enabled"], "--rollout.sagc.enabled is no flag; the closest one is --rollout.sagc.enable"),
        (["--rollout.sagc.enable"], "--algo.advantage.estimator gae has no groups"),
        (["--train.partial_rollout_enable"], "--train.partial_rollout_enable requires --train.async_enable."),
    ],
)
def test_wrong_flags(preflight, flags, line):
    fitting = ["--reward.remote_url", "reward.py", "--rollout.n_samples_per_prompt", "8", "--vllm.num_engines", "1"]
    (problem,) = preflight.flag_problems("openrlhf_sagc", [*fitting, *flags])
    assert line in problem and "\n" not in problem


def test_old_flags_have_a_line_each_as_in_the_command(preflight):
    assert list(preflight.flag_problems("openrlhf_sagc", ["--pretrain", "m", "--bf16"])) == [
        "openrlhf_sagc: --pretrain is --actor.model_name_or_path since 0.10.2",
        "openrlhf_sagc: --bf16 is --ds.param_dtype bf16 since 0.9.2",
        "openrlhf_sagc: python -m openrlhf_sagc.migrate SCRIPT writes an old script anew",
    ]


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
