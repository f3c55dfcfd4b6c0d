"""OpenRLHF reward function for Countdown, given to `--reward.remote_url`: 1 for a solved problem, else 0."""

import importlib.util
from pathlib import Path

import torch

SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")


def _load_task():
    """The module `task.py` beside this file; OpenRLHF loads this file by path, outside of any package."""
    spec = importlib.util.spec_from_file_location("countdown_task", Path(__file__).with_name("task.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


task = _load_task()


def reward_func(queries, prompts, labels, **kwargs):
    """Rewards for decoded `queries`, each a prompt of `prompts` followed by its response.

    Returns a dict of float tensors of shape [len(queries)]: `rewards`, `scores` (the same values) and, in
    `extra_logs`, the share of searches given up.
    """
    rewards, gave_up = [], []
    for query, prompt in zip(queries, prompts):
        words = query.split()
        named = prompt.split()
        response = words[len(named) :] if words[: len(named)] == named else []
        while response and response[-1] in SPECIAL_TOKENS:
            response.pop()
        rewards.append(float(task.solved(prompt, " ".join(response))))
        gave_up.append(float(response[-1:] == ["stuck"]))
    rewards = torch.tensor(rewards)
    return {"rewards": rewards, "scores": rewards.clone(), "extra_logs": {"gave_up": torch.tensor(gave_up)}}
