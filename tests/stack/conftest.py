"""Runs of the real trainer (Ray, DeepSpeed, vLLM) on the CPU stack, each in a Ray cluster of its own."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.append(str(ROOT / "eval"))
TIMEOUT = 420  # seconds a run may take; one takes about 70


@dataclass
class Run:
    """A finished run: its exit code, its whole output, its scalars (a row a step) and the saved model's folder."""

    code: int
    output: str
    scalars: pd.DataFrame
    model: Path


@pytest.fixture(scope="session")
def task(tmp_path_factory):
    """An untrained model, whose responses end at random, and 48 prompts: folder with model/ and prompts.jsonl."""
    folder = tmp_path_factory.mktemp("task")
    script = ROOT / "train_scripts" / "countdown" / "warm_start.py"
    subprocess.run([sys.executable, script, "--output", folder, "--steps", "1"], check=True, capture_output=True)
    lines = (folder / "data" / "train.jsonl").read_text().splitlines()
    random.Random(0).shuffle(lines)
    (folder / "prompts.jsonl").write_text("\n".join(lines[:48]) + "\n")
    return folder


@pytest.fixture
def train(task, tmp_path, run_command):
    """Trains: train(tree, **flags) -> Run; a flag's dots are written as two underscores, True is a bare flag."""

    def run(tree: str, **flags) -> Run:
        from report import read_run

        name = f"{tree}-{len(list(tmp_path.iterdir()))}"
        settings = {
            "actor__model_name_or_path": task / "model",
            "reward__remote_url": HERE / "hash_reward.py",
            "data__prompt_dataset": task / "prompts.jsonl",
            "data__input_key": "prompt",
            "data__label_key": "label",
            "data__max_len": 128,
            "rollout__max_new_tokens": 64,
            "rollout__batch_size": 8,
            "rollout__n_samples_per_prompt": 8,
            "rollout__micro_batch_size": 16,
            "train__batch_size": 64,
            "train__micro_batch_size": 16,
            "actor__num_gpus_per_node": 1,
            "actor__adam__lr": 1e-3,
            "actor__lr_scheduler": "constant",
            "algo__advantage__estimator": "group_norm",
            "algo__advantage__is_correction_level": "token",
            "algo__kl__init_coef": 0,
            "vllm__num_engines": 1,
            "vllm__enforce_eager": True,
            "vllm__sync_backend": "gloo",
            "ds__attn_implementation": "eager",
            "logger__tensorboard_dir": tmp_path / name,
            "logger__wandb__run_name": "run",
            "ckpt__output_dir": tmp_path / f"{name}-model",
            **flags,
        }
        command = ["bash", ROOT / "train_scripts" / "on_cpu.sh", tree, "python", "-m", "openrlhf.cli.train_ppo_ray"]
        for flag, value in settings.items():
            if value is None:
                continue
            command.append("--" + flag.replace("__", "."))
            command += [] if value is True else value if isinstance(value, list) else [value]
        code, output = run_command(command)
        (tmp_path / f"{name}.log").write_text(output)
        assert code == 0, output[-5000:]
        return Run(code, output, read_run(tmp_path / name / "run"), tmp_path / f"{name}-model")

    return run


@pytest.fixture
def run_command():
    """Runs a command in a process group of its own: run_command(command, timeout in s) -> (exit code, output)."""
    return run_in_group


def run_in_group(command: list, timeout: float = TIMEOUT) -> tuple[int, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    process = subprocess.Popen(
        list(map(str, command)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"not finished after {timeout} s; the output ends with:\n{output[-5000:]}")
    return process.returncode, output
