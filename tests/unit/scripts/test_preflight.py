import argparse
import importlib.util
import runpy
import socket
import subprocess
import sys
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


GROUPS = [
    "--algo.advantage.estimator",
    "group_norm",
    "--rollout.n_samples_per_prompt",
    "8",
    "--rollout.batch_size",
    "8",
]
SIZES = ["--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1", "--train.batch_size", "64"]
KEYS = ["--data.input_key", "prompt", "--data.label_key", "label", "--actor.model_name_or_path", "none"]


@pytest.fixture
def fitting(tmp_path):
    """Flags of a run that can start."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "What is 1 + 1?", "label": "2"}\n' * 20)
    (tmp_path / "good.py").write_text("def reward_func(queries, prompts, labels): ...")
    files = ["--data.prompt_dataset", f"{tmp_path}/data.jsonl", "--reward.remote_url", f"{tmp_path}/good.py"]
    return [*GROUPS, *SIZES, *KEYS, *files]


WRONG = [
    (["--reward.remote_url", "{}/none.py"], "none.py is not there"),
    (["--reward.remote_url", "{}/bad.py"], "bad.py has no reward_func (there are score): name the function"),
    (["--data.input_key", "question"], "--data.input_key question: no such column in "),
    (["--data.prompt_dataset", "{}/empty.jsonl"], "row 2: the prompt is empty"),
    (["--eval.dataset", "{}/none.jsonl", "--eval.steps", "5"], "none.jsonl cannot be loaded: FileNotFoundError"),
    (["--actor.model_name_or_path", "{}"], "has no config.json"),
    (["--vllm.engine_args", '{{"dtype": "half"}}'], "--vllm.engine_args does not take dtype: use --ds.param_dtype"),
]


@pytest.mark.parametrize("module", ["openrlhf_sagc", "openrlhf_sagc.off"])
@pytest.mark.parametrize(("flags", "line"), WRONG)
def test_what_a_run_reads_is_looked_at_as_the_run_does(preflight, fitting, tmp_path, module, flags, line):
    """With the scheduler, and for a recipe's twin."""
    (tmp_path / "bad.py").write_text("def score(a): ...")
    (tmp_path / "empty.jsonl").write_text('{"prompt": "a", "label": "1"}\n{"prompt": "", "label": "1"}\n')
    assert not list(preflight.flag_problems(module, fitting))
    (problem,) = preflight.flag_problems(module, [*fitting, *(word.format(tmp_path) for word in flags)])
    assert line in problem and "\n" not in problem and problem.startswith("--")


def test_without_patches_names_and_the_file_are_looked_at_and_nothing_else_is_claimed(
    preflight, fitting, tmp_path, openrlhf_of
):
    openrlhf_of("cpu-base")
    twin = "openrlhf_sagc.unpatched"
    assert not list(preflight.flag_problems(twin, fitting))
    (problem,) = preflight.flag_problems(twin, [*fitting, "--reward.remote_url", f"{tmp_path}/none.py"])
    assert "none.py is not there" in problem
    said = preflight.all_right(
        argparse.Namespace(device="gpu", cluster=None, command=[twin, "--ds.attn_implementation", "sdpa"])
    )
    assert "flags' names" in said and "data" not in said and said.endswith("; attention: sdpa")
    (problem,) = preflight.flag_problems(twin, [*fitting, "--rollout.sagc.enable"])
    assert problem.startswith("--rollout.sagc.enable is a flag of python -m openrlhf_sagc, not of")
    assert (
        preflight.all_right(argparse.Namespace(device="gpu", command=[]))
        == "ports and Ray's token are as Ray's head needs them"
    )


def test_the_default_reward_grades_an_answer(preflight):
    from openrlhf_sagc import math_reward

    settings = {"--reward.remote_url": [math_reward.__file__]}
    assert not list(preflight.default_reward_problems(settings))
    answer = {"rewards": mock.Mock(tolist=lambda: [0.0])}
    with mock.patch("runpy.run_path", return_value={"reward_func": lambda *_: answer}):
        assert "gives 10/2 for 5 the reward [0.0]" in said(preflight.default_reward_problems(settings))


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


@pytest.mark.parametrize(
    ("count", "open_to_all", "said"),
    [(["few"], ["open"], ["few"]), ([], ["open"], ["open"]), ([], [], ["node a: no driver"])],
)
def test_a_cluster_is_asked_for_gpus_then_for_a_token_then_for_what_its_nodes_have(
    preflight, monkeypatch, count, open_to_all, said
):
    """Each once the one before is right. What this node has says nothing."""
    command = ["openrlhf_sagc.off", "--actor.num_nodes", "2", "--reward.remote_url", "x.py"]
    options = options_of(command)
    options.device, options.cluster = "gpu", "http://127.0.0.1:8265"
    answers = {
        "known_problems": [],
        "gpu_count_problems": count,
        "open_cluster_problems": open_to_all,
        "node_problems": said,
    }
    for name, lines in answers.items():
        monkeypatch.setitem(preflight.problems.__globals__, name, lambda *_, lines=lines: iter(lines))
    assert list(preflight.problems(options)) == said
    monkeypatch.setitem(preflight.problems.__globals__, "attention_of", None)
    assert "attention" not in preflight.all_right(options)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--rollout.sagc.enabled"], "--rollout.sagc.enabled is not a flag; the closest one is --rollout.sagc.enable"),
        (
            [],
            "--algo.advantage.estimator gae has no groups for the scheduler: use --algo.advantage.estimator group_norm, or start",
        ),
        (["--train.partial_rollout_enable"], "--train.partial_rollout_enable needs --train.async_enable: add it"),
    ],
)
def test_wrong_flags(preflight, flags, line):
    fitting = [
        "--actor.model_name_or_path",
        "none",
        "--reward.remote_url",
        "reward.py",
        "--rollout.n_samples_per_prompt",
        "8",
        "--vllm.num_engines",
        "1",
    ]
    (problem,) = preflight.flag_problems("openrlhf_sagc", [*fitting, *flags])
    assert line in problem and "\n" not in problem


def test_old_flags_have_a_line_each_as_in_the_command(preflight):
    assert list(preflight.flag_problems("openrlhf_sagc", ["--pretrain", "m", "--bf16"])) == [
        "--pretrain is --actor.model_name_or_path since 0.10.2",
        "--bf16 is --ds.param_dtype bf16 since 0.9.2",
        "python -m openrlhf_sagc.migrate SCRIPT writes an old script anew",
    ]


def options_of(command, disk_gb=0):
    """A CPU's, without a cluster."""
    usual = {
        "ports": [],
        "device": "cpu",
        "cluster": None,
        "isolated_network": False,
        "memory_gb": 0,
        "wait_minutes": 0,
    }
    return argparse.Namespace(command=command, disk_gb=disk_gb, **usual)


@pytest.mark.parametrize("module", ["openrlhf_sagc", "openrlhf_sagc.off"])
def test_flags_have_their_names_looked_at_where_a_module_is_missing(preflight, module):
    find = importlib.util.find_spec
    with mock.patch("importlib.util.find_spec", lambda name, *more: None if name == "vllm" else find(name, *more)):
        options = options_of([module, "--pretrain", "m", "--reward.remote_url", "/none.py"])
        lines = list(preflight.problems(options))
    assert lines[0] == "no module vllm: install it with all else that a GPU node needs: bash install.sh"
    assert "--pretrain is --actor.model_name_or_path since 0.10.2" in lines and not any("none.py" in x for x in lines)


def test_missing_modules(preflight, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    settings = preflight.settings_of(["--logger.wandb.key", "x"])
    with mock.patch("importlib.util.find_spec", return_value=None):
        problems = said(preflight.module_problems("openrlhf_sagc", settings))
        released = said(preflight.module_problems("openrlhf_sagc.unpatched", settings))
    for name in ("openrlhf_sagc", "vllm", "ray", "wandb"):
        assert f"no module {name}: install " in problems
    assert "flash_attn" not in problems and "no module flash_attn: install flash-attn, which OpenRLHF as" in released


def test_each_problem_is_a_line_and_the_rest_is_still_checked(preflight, tmp_path):
    command = ["openrlhf_sagc.off", "--reward.remote_url", "/none.py", "--ckpt.output_dir", str(tmp_path)]
    options = options_of(command, disk_gb=1e9)
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
    flags = ["--reward.remote_url", "/none/http://user:s3cret@host/x.py"]
    said = check("--device", "cpu", "openrlhf_sagc.off", *flags)
    assert "*** is not there" in said and "s3cret" not in said


def test_a_python_without_what_is_needed_gets_a_line(tmp_path):
    (tmp_path / "psutil.py").write_text("raise ModuleNotFoundError('psutil')")
    command = [sys.executable, SCRIPT, "openrlhf_sagc"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    line = "train_scripts/preflight.py: psutil is not installed, nor what else a GPU node needs: bash install.sh\n"
    assert (done.returncode, done.stderr) == (1, line)
