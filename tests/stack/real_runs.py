"""The command of a run, its steps as printed, and its end."""

import ast
import contextlib
import re
import shutil
from pathlib import Path

import pandas as pd
import psutil

AGENTS = Path(__file__).with_name("agents")  # and rewards
TIMEOUT = 1200  # seconds a run may take; one takes about 25
# OpenRLHF looks for a free port, lets it go, and opens it seconds later, when another process may have it.
PORT_TAKEN = re.compile("EADDRINUSE|address already in use", re.IGNORECASE)


def training(task: Path, *program, **flags) -> list:
    """The command by which a program trains on a task; a flag's dots are two underscores here, True is a bare flag."""
    settings = {
        "actor__model_name_or_path": task / "model",
        "reward__remote_url": AGENTS / "hash_reward.py",
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
        "logger__wandb__run_name": "run",
        **flags,
    }
    command = list(program)
    for flag, value in settings.items():
        if value is None:
            continue
        command.append("--" + flag.replace("__", "."))
        command += [] if value is True else value if isinstance(value, list) else [value]
    return command


def why_it_ended(output: str) -> str:
    """The errors, the command's own traceback or first line, and the end, which workers often fill after it.

    The errors come first, since a long text is often shown as its beginning.
    """
    errors = "\n".join(re.findall(r"^(?:\([^)]*\) )?\S*(?:Error|Exception)\b.*", output, re.MULTILINE)[-5:])
    own = re.search(r"^(Traceback \(most recent call last\)|openrlhf_sagc: ).*", output, re.MULTILINE | re.DOTALL)
    return f"{errors}\n" + (f"{own[0][:6000]}\n[...]\n" if own else "") + output[-5000:]


def logged_steps(output: str) -> pd.DataFrame:
    """The scalars as the trainer printed them: those of a killed run are not all in its TensorBoard file.

    Ray may bring a line in two parts, with lines of other processes between them.
    """
    steps = re.findall(r"Global step (\d+): (\{[^{}]*\})", output.replace(": nan", ": None"))
    whole = (re.sub(r"\n\(GroupTrainer pid=\d+\) |\n\((?!GroupTrainer)[^\n]*", "", scalars) for _, scalars in steps)
    return pd.DataFrame({int(step): ast.literal_eval(scalars) for (step, _), scalars in zip(steps, whole)}).T


def process_ids(output: str, name: str) -> list[int]:
    """The ids of the run's processes of this name, Ray actors or vLLM's, with which their lines of the output begin."""
    return [int(number) for number in re.findall(rf"\({name} pid=(\d+)", output)]


def actor_process(output: str, actor: str) -> psutil.Process:
    """The process of this Ray actor, which has printed something."""
    return psutil.Process(process_ids(output, actor)[-1])


def kill(process: psutil.Process) -> None:
    """SIGKILL for the process and all below it, and no trace left of its Ray cluster."""
    if not process.is_running():
        return
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
