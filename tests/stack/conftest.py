"""Runs of the real trainer (Ray, DeepSpeed, vLLM) on the CPU stack, each in a Ray cluster of its own."""

import math
import os
import random
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
from cpu_stack import ROOT
from filelock import FileLock
from one_engine import MAX_LEN, engine, make_scheduler  # noqa: F401
from real_runs import PORT_TAKEN, TIMEOUT, kill, logged_steps, training, why_it_ended
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

TURN = 4  # a run of this folder has one in so many of the tests that are marked in_turns
LONG = ("quickstart", "drills", "tensor_parallel", "failures", "training", "together")  # minutes each
HERE = Path(__file__).parent
MODULES = {"cpu-patched": "openrlhf_sagc", "cpu-base": "openrlhf_sagc.unpatched"}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(config, items):
    # The long ones begin first, so that none is left alone at the end.
    items.sort(key=lambda item: item.path.parent == HERE and not item.path.stem.endswith(LONG))
    for item in items:
        if "engine" in getattr(item, "fixturenames", ()):  # they share it, so one worker runs them all
            item.add_marker(pytest.mark.xdist_group("engine"))
    if os.environ.get("TURNS") != "all" and any(Path(word.partition("::")[0]).is_dir() for word in config.args):
        leave_one_turn([item for item in items if item.get_closest_marker("in_turns")])


def leave_one_turn(tests):
    """Skip all but one in TURN of them, those whose turn it is at this commit; the end of the run names the others."""
    commits = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    turn = int(commits or 0) % TURN
    for place, test in enumerate(tests):
        if place % TURN != turn:
            test.add_marker(pytest.mark.skip(reason=f"{test.name} has its turn at another commit; TURNS=all runs all"))


@dataclass
class Run:
    """A finished run: its exit code, its whole output, its scalars (a row a step) and the saved model's folder."""

    code: int
    output: str
    scalars: pd.DataFrame
    model: Path


@pytest.fixture(scope="session")
def task(session_folder, python):
    """An untrained model, whose responses end at random, and 48 prompts: folder with model/, deep/ and prompts.jsonl.

    The model has one layer, since engines decode in a time that grows with layers. It reads as many tokens as one_engine.py
    needs. The deep one has three: for tests that would not find otherwise that a layer is left out, or computed with the
    weights of the step before.
    """
    folder = session_folder / "task"
    with FileLock(session_folder / "task.lock"):
        if not (folder / "prompts.jsonl").exists():
            script = ROOT / "train_scripts" / "warm_start.py"
            subprocess.run([python, script, "--output", folder, "--steps", "1"], check=True, capture_output=True)
            (folder / "model").rename(folder / "deep")
            config = AutoConfig.from_pretrained(
                folder / "deep", num_hidden_layers=1, layer_types=["full_attention"], max_position_embeddings=MAX_LEN
            )
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
            AutoTokenizer.from_pretrained(folder / "deep").save_pretrained(folder / "model")
            lines = (folder / "data" / "train.jsonl").read_text().splitlines()
            random.Random(0).shuffle(lines)
            (folder / "prompts.jsonl").write_text("\n".join(lines[:48]) + "\n")
    return folder


@pytest.fixture
def train(task, tmp_path, run_command, python):
    """Trains: train(tree, **flags) -> Run; flags as for `training`. `off`: patched OpenRLHF without the scheduler.

    `kill_at`: the run is killed (SIGKILL, all its processes) `grace` seconds after it has printed this text, or after
    `kill_at(output)`; or only the process that `victim(output)` gives, and the run is to end by itself. `fails`: with exit
    code 1, or `code`; its steps are then those that it printed.
    """

    def run(tree: str, *, off=False, kill_at=None, grace=0.0, victim=None, fails=False, code=1, **flags) -> Run:
        from lib.run_logs.read import read_run

        module = "openrlhf_sagc.off" if off else MODULES[tree]
        program = [
            "bash",
            ROOT / "train_scripts/on_cpu.sh",
            tree,
            python,
            ROOT / "train_scripts/train_on_cpu.py",
            module,
        ]
        small = {}
        if tree == "cpu-patched" and "vllm__engine_args" not in flags:  # or each engine writes a GiB of zeros
            small["vllm__engine_args"] = '{"num_gpu_blocks_override": 512}'
        moment = {"kill_at": kill_at, "grace": grace, "victim": victim}
        end = -9 if kill_at and not victim else code if fails or victim else 0
        for _ in range(3):
            name = f"{tree}-{len(list(tmp_path.iterdir()))}"
            outputs = {"logger__tensorboard_dir": tmp_path / name, "ckpt__output_dir": tmp_path / f"{name}-model"}
            command = training(task, *program, **outputs, **small, **flags)
            ended, output = run_command(command, log=tmp_path / f"{name}.log", **moment)
            if ended == end or not PORT_TAKEN.search(output):
                break
        assert ended == end, why_it_ended(output)
        scalars = logged_steps(output) if kill_at or fails else read_run(tmp_path / name / "run")
        return Run(ended, output, scalars, tmp_path / f"{name}-model")

    return run


@pytest.fixture
def run_script(run_command):
    """Runs a script: run_script(command) -> (exit code, output).

    It starts again where a port was taken, as its output says, or the log that this names.
    """

    def run(command: list) -> tuple[int, str]:
        for _ in range(3):
            code, output = run_command(command)
            logs = [Path(name) for name in re.findall(r"see (\S+log)\b", output)]
            texts = [output, *(log.read_text(errors="replace") for log in logs if log.is_file())]
            if not code or not any(map(PORT_TAKEN.search, texts)):
                break
        return code, output

    return run


@pytest.fixture
def run_command(tmp_path):
    """Runs a command in a session of its own: run_command(command, timeout in s) -> (exit code, output)."""

    def run(
        command: list,
        timeout: float = TIMEOUT,
        log: Path | None = None,
        kill_at: str | Callable[[str], bool] | None = None,
        grace=0.0,
        victim=None,
    ):
        awaited = f"to print {kill_at!r}" if kill_at else "to end"
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
                if kill_at and kill_time is None and (kill_at(output) if callable(kill_at) else kill_at in output):
                    kill_time = time.monotonic() + grace
                if kill_time is not None and time.monotonic() >= kill_time:
                    if victim is None:
                        break
                    victim(output).kill()
                    kill_time = math.inf
                if time.monotonic() > deadline:
                    pytest.fail(
                        f"waited {timeout:.0f} s for {command[0]} ... {command[-1]} {awaited}; it printed:\n{why_it_ended(output)}"
                    )
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                kill(process)
        return process.returncode, log.read_text(errors="replace")

    return run
