"""Runs of the real trainer (Ray, DeepSpeed, vLLM) on the CPU stack, each in a Ray cluster of its own."""

import ast
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
from one_engine import engine, make_scheduler  # noqa: F401

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
    """Trains: train(tree, **flags) -> Run; a flag's dots are written as two underscores, True is a bare flag.

    `kill_at`: the run is killed (SIGKILL, all its processes) `grace` seconds after it has printed this text. `fails`:
    the run is to end with exit code 1.
    """

    def run(tree: str, *, kill_at: str | None = None, grace: float = 0, fails: bool = False, **flags) -> Run:
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
        code, output = run_command(command, log=tmp_path / f"{name}.log", kill_at=kill_at, grace=grace)
        assert code == (-9 if kill_at else fails), output[-5000:]
        scalars = logged_steps(output) if kill_at or fails else read_run(tmp_path / name / "run")
        return Run(code, output, scalars, tmp_path / f"{name}-model")

    return run


@pytest.fixture
def run_command(tmp_path):
    """Runs a command in a session of its own: run_command(command, timeout in s) -> (exit code, output)."""

    def run(command: list, timeout: float = TIMEOUT, log: Path | None = None, kill_at: str | None = None, grace=0.0):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        log = log or tmp_path / "command.log"
        with log.open("w") as sink:
            process = psutil.Popen(
                list(map(str, command)), env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            deadline, kill_time = time.monotonic() + timeout, None
            while process.poll() is None:
                output = log.read_text(errors="replace")
                if kill_at and kill_time is None and kill_at in output:
                    kill_time = time.monotonic() + grace
                if kill_time is not None and time.monotonic() >= kill_time:
                    break
                if time.monotonic() > deadline:
                    pytest.fail(f"not finished after {timeout:.0f} s; the output ends with:\n{output[-5000:]}")
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                kill(process)
        return process.returncode, log.read_text(errors="replace")

    return run


def logged_steps(output: str) -> pd.DataFrame:
    """The scalars as the trainer printed them: those of a killed run are not all in its TensorBoard file."""
    steps = re.findall(r"Global step (\d+): (\{.*\})", output.replace(": nan", ": None"))
    return pd.DataFrame({int(step): ast.literal_eval(scalars) for step, scalars in steps}).T


def kill(process: psutil.Process) -> None:
    """SIGKILL for the process and all below it, and no trace left of its Ray cluster."""
    family = process.children(recursive=True)
    folders = set()
    for member in [process, *family]:
        with contextlib.suppress(psutil.Error):  # some end by themselves when the first ones are gone
            folders.add(member.environ().get("RAY_TMPDIR"))
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(family, timeout=20)
    process.wait()
    for folder in folders - {None}:
        shutil.rmtree(folder, ignore_errors=True)
