"""The arms of the study, and the commands of their runs."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from lib.comparison.arms import DYNAMIC, MICRO_BATCH_SIZE, PROMPTS, SAMPLES, flags_of
from lib.comparison.group_size_runs import WARM_UP
from lib.comparison.tasks import task_of
from lib.machine import data_type
from lib.paths import ROOT
from lib.runs import train_command
from lib.turns import GIGABYTES
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

SIZE = SAMPLES // PROMPTS
UNPATCHED, DEFAULTS, COMPILED, TRL, FLOOR = ARMS = ["unpatched", "defaults", "compiled", "trl", "floor"]
PACKED = "packed"
OURS = (DEFAULTS, COMPILED, PACKED)
POLICIES = {UNPATCHED: f"unpatched:{SIZE}", **dict.fromkeys(OURS, f"fixed:{SIZE}")}
PACKS = {"ds.packing_samples": None, "ds.attn_implementation": "sdpa", **DYNAMIC, "train.max_tokens_per_gpu": 512}
# TRL pads to the longest of the step in any micro-batch, and 64 samples take less time than 16.
ONE_PROCESS = {TRL: ("with_trl.py", 64), FLOOR: ("bare.py", MICRO_BATCH_SIZE)}
GIGABYTES_OF_ONE_PROCESS = 3
TRL_FILE = Path(__file__).parent / "trl.txt"  # with its hash
TRL_NAME = TRL_FILE.read_text().split()[0].replace("==", "-")
TRL_FOLDER = ROOT / "build" / TRL_NAME


class Shape(NamedTuple):
    """A model, and a step of it: prompts, most tokens of a response (None: the task's), optimizer steps."""

    arms: list[str]
    prompts: int = PROMPTS
    max_new_tokens: int | None = None
    optimizer_steps: int = 1
    warm_up: int = WARM_UP  # first steps of a run, which do not count
    random: bool = False  # a large random model, instead of the task's
    gigabytes: int = 0  # that a run of it needs; such runs are made one after another


SHAPES = {
    "tiny": Shape(ARMS),
    "computing": Shape([PACKED, TRL, FLOOR], 4, 64, optimizer_steps=2, warm_up=1, random=True, gigabytes=14),
}


def gigabytes_of(arm: str) -> int:
    """Memory that the arm's run of the tiny model needs at most."""
    return GIGABYTES_OF_ONE_PROCESS if arm in ONE_PROCESS else GIGABYTES


def make_random(task: Path, folder: Path) -> Path:
    """The task with a random model of 0.3 B parameters in its model's place, whose responses end by chance."""
    tokenizer = AutoTokenizer.from_pretrained(task / "model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=20,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    shutil.copytree(task / "data", folder / "data", dirs_exist_ok=True)
    tokenizer.save_pretrained(folder / "model")
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    return folder


def command_of(arm: str, task: Path, seed: int, steps: int, threads: int, folder: Path, shape: Shape) -> list:
    """The command of an arm's run, whose results are in the folder.

    `threads` are those of an arm of one process; of a large model's, also of each of OpenRLHF's processes.
    """
    if arm in ONE_PROCESS:
        return _one_process(arm, task, seed, steps, threads, folder, shape)
    command = _openrlhf(arm, task, seed, steps, folder, shape)
    return ["env", f"CPU_THREADS={threads}", *command] if shape.random else command


def _openrlhf(arm: str, task: Path, seed: int, steps: int, folder: Path, shape: Shape) -> list:
    kind = task_of(task)
    tree, flags = flags_of(POLICIES[arm], "grpo", seed, control={}, task=kind)
    settings = {
        "reward.remote_url": kind.grader,
        "rollout.batch_size": shape.prompts,
        "rollout.max_new_tokens": shape.max_new_tokens or kind.max_new_tokens,
        "train.batch_size": shape.prompts * SIZE // shape.optimizer_steps,
        "train.num_episodes": 1,
        "data.max_samples": steps * shape.prompts,
        "actor.adam.lr": 0,
        **(PACKS if arm == PACKED else {}),
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value) if word is not None]
    return train_command(tree, task, folder, flags + list(map(str, words)), eager=arm not in (COMPILED, PACKED))


def _one_process(arm: str, task: Path, seed: int, steps: int, threads: int, folder: Path, shape: Shape) -> list:
    script, micro_batch_size = ONE_PROCESS[arm]
    kind = task_of(task)
    words = {
        "model": task / "model",
        "prompts": task / "data/train.jsonl",
        "grader": kind.grader,
        "output": folder / "steps.jsonl",
        "dtype": data_type(),
        "steps": steps,
        "seed": seed,
        "groups": shape.prompts,
        "size": SIZE,
        "optimizer_steps": shape.optimizer_steps,
        "micro_batch_size": min(micro_batch_size, shape.prompts * SIZE // shape.optimizer_steps),
        "max_new_tokens": shape.max_new_tokens or kind.max_new_tokens,
        "max_len": kind.max_len,
    }
    flags = [word for name, value in words.items() for word in (f"--{name}", value)]
    packages = [ROOT / "eval", *([TRL_FOLDER] if arm == TRL else [])]
    environment = ["env", "-u", "TORCHDYNAMO_DISABLE", f"OMP_NUM_THREADS={threads}"]  # so vLLM compiles
    environment += [f"PYTHONPATH={':'.join(map(str, packages))}"]
    on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base"]
    return [*on_cpu, *environment, "python", Path(__file__).parent / script, *flags]


def install_trl() -> None:
    """Put TRL into build/, where only its arm finds it; what it needs is in the virtual environment.

    Raises:
        ValueError: pip did not.
    """
    if (TRL_FOLDER / f"{TRL_NAME}.dist-info").is_dir():
        return
    print(f"{TRL_NAME} is installed into {TRL_FOLDER}, for its arm only", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if code := subprocess.run([*pip, "--require-hashes", "--target", TRL_FOLDER, "-r", TRL_FILE]).returncode:
        raise ValueError(f"pip could not install {TRL_NAME} (exit code {code}): leave trl out of --arms")
