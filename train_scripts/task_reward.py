"""OpenRLHF's reward function for the small tasks: 1 for a solved problem, else 0."""

import importlib.util
from pathlib import Path

import torch

SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")


def load_task(folder: Path):
    """The module task.py of a task's folder; OpenRLHF loads rewards by path, outside of any package."""
    spec = importlib.util.spec_from_file_location(f"{folder.name}_task", folder / "task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rewards_of(task, given_up: str, queries: list[str], prompts: list[str]) -> dict:
    """Rewards for decoded `queries`, each a prompt of `prompts` followed by its response.

    Args:
        task: module with `solved(prompt, response)`.
        given_up: the last word of a response that gives up.

    Returns:
        float tensors of shape [len(queries)]: `rewards`, `scores` (the same values) and, in `extra_logs`, the share of
        responses that gave up.
    """
    rewards, gave_up = [], []
    for query, prompt in zip(queries, prompts):
        words = query.split()
        named = prompt.split()
        response = words[len(named) :] if words[: len(named)] == named else []
        while response and response[-1] in SPECIAL_TOKENS:
            response.pop()
        rewards.append(float(task.solved(prompt, " ".join(response))))
        gave_up.append(float(response[-1:] == [given_up]))
    rewards = torch.tensor(rewards)
    return {"rewards": rewards, "scores": rewards.clone(), "extra_logs": {"gave_up": torch.tensor(gave_up)}}
