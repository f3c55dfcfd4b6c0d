"""The cells of the matrix: kinds of rewards and what makes them slow, each asked by OpenRLHF's executor and by ours."""

import asyncio
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from lib.paths import ROOT

UNPATCHED = ROOT / "build/cpu-base"
if not importlib.util.find_spec("openrlhf"):
    sys.path.insert(0, str(UNPATCHED))
os.environ.setdefault("DS_ACCELERATOR", "cpu")

from studies.rewards.servers import KINDS as SERVERS  # noqa: E402
from studies.rewards.servers import reward_of  # noqa: E402

from openrlhf_sagc.engine.rewards import Rewards  # noqa: E402

ARMS = ("unpatched", "ours")
SPEEDS = ("fast", "slow CPU", "slow wait", "one hang")
HEAD = """
import asyncio, subprocess, threading, time
import numpy, torch
kept, free, children = threading.local(), threading.Event(), []

def work(label):
    {work}

def in_child(label):
    children.append(subprocess.Popen({child}))
    children[-1].wait()

def release():
    free.set()
    for child in children:
        child.kill()

async def answer(label):
    await asyncio.sleep(0)
    work(label)

def reward_func(queries, prompts, labels):
    label = labels[0]
    reward = label % 5 / 4
    {body}
"""
LOOP = "['sh', '-c', 'i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done']"
ROUNDS = 400_000  # of the shell in a second
WORK = {
    "fast": ("pass", "['true']"),
    "slow CPU": ("end = time.thread_time() + {seconds}\n    while time.thread_time() < end: pass", LOOP),
    "slow wait": ("time.sleep({seconds})", "['sleep', '{seconds}']"),
    "one hang": ("label < 0 and free.wait(60)", "['sleep', '60' if label < 0 else '0']"),
}
FUNCTIONS = {
    "tensor": "work(label)\n    return {'rewards': torch.tensor([reward])}",
    "dict": "work(label)\n    return {'rewards': reward, 'scores': reward, 'extra_logs': {'length': 3}}",
    "list": "work(label)\n    return {'rewards': [reward]}",
    "numpy": "work(label)\n    return {'rewards': numpy.float32(reward)}",
    "async": "asyncio.run(answer(label))\n    return {'rewards': reward}",
    "batch-centred": "work(label)\n    return {'rewards': (torch.tensor([reward]) - torch.tensor([reward]).mean()).item()}",
    "thread-local": (
        "kept.__dict__ or time.sleep(0.1) or kept.__dict__.update(tokenizer=1)\n    work(label)\n    return {'rewards': reward}"
    ),
    "subprocess": "in_child(label)\n    return {'rewards': reward}",
}
KINDS = (*FUNCTIONS, *SERVERS)
_numbers = count()  # of runs


class Asked(NamedTuple):
    """What came of a cell: right rewards, and the seconds, None where some samples still waited at its end."""

    rewards: int
    seconds: float | None


@contextmanager
def servers(seconds: float) -> Iterator[dict[str, dict[str, str]]]:
    """Addresses by kind and speed, while this is entered; a slow one takes so many seconds a sample."""
    command = [sys.executable, str(Path(__file__).with_name("servers.py")), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def target_of(kind: str, speed: str, seconds: float, addresses: dict, folder: Path) -> str:
    """What --reward.remote_url is in this cell: a file, or the address of a server."""
    if kind in SERVERS:
        return addresses[kind][speed]
    work, child = (text.format(seconds=seconds, rounds=int(ROUNDS * seconds)) for text in WORK[speed])
    path = folder / f"{kind} {speed}.py"
    path.write_text(HEAD.format(work=work, child=child, body=FUNCTIONS[kind]))
    return str(path)


async def ask(arm: str, target: str, samples: int, *, timeout: float = 180.0, limit: float = 60.0) -> Asked:
    """Ask for the rewards of so many samples at once, the last of which hangs if one does, for at most `limit` seconds.

    `timeout` is ours; unpatched OpenRLHF has 180 s for servers and none for functions.
    """
    executor = _agent().SingleTurnAgentExecutor(target if target.endswith(".py") else f"{target}{next(_numbers)}")
    if arm == "ours":
        rewards = Rewards(executor, timeout, 2 if timeout == 180 else 0, random.Random(0))
        executor._fetch_rewards_via_func = executor._fetch_rewards_via_http = rewards.fetch
    labels = [*range(samples - 1), -1]
    start = time.monotonic()
    asked = [asyncio.create_task(executor.execute(**_request(label))) for label in labels]
    done, waiting = await asyncio.wait(asked, timeout=limit)
    seconds = time.monotonic() - start
    if executor.reward_func:
        executor.reward_func.__globals__["release"]()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    centred = "batch-centred" in target
    right = [
        task for task, label in zip(asked, labels, strict=True) if task in done and _is_right(task, label, centred)
    ]
    return Asked(len(right), None if waiting else seconds)


def _is_right(task: asyncio.Task, label: int, centred: bool) -> bool:
    """Whether OpenRLHF would train the sample with the reward that is meant."""
    reward = task.result()["reward"]
    if reward is None:
        return False
    made = torch.tensor([reward])  # as OpenRLHF's samples generator does
    return made.numel() == 1 and made.item() == (0 if centred else reward_of(label))


def _agent():
    """OpenRLHF's module of executors, as released, whichever tree this process has otherwise."""
    spec = importlib.util.spec_from_file_location("unpatched_agent", UNPATCHED / "openrlhf/utils/agent.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _request(label: int) -> dict:
    output = SimpleNamespace(token_ids=[7] * 5, finish_reason="stop", logprobs=None)

    async def generate(*_, **__):
        return SimpleNamespace(outputs=[output])

    return {
        "prompt": "prompt",
        "label": label,
        "sampling_params": SimpleNamespace(max_tokens=5, logprobs=None),
        "max_length": 64,
        "hf_tokenizer": _Tokenizer(),
        "llm_engine": SimpleNamespace(generate=generate),
    }


class _Tokenizer:
    def __call__(self, text, add_special_tokens, return_tensors):
        return {"input_ids": torch.tensor([[1, 2, 3]])}

    def decode(self, tokens, skip_special_tokens):
        return f"{len(tokens)} tokens"
