"""OpenRLHF reward function for Route, given to `--reward.remote_url`: 1 for a solved problem, else 0."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from task_reward import load_task, rewards_of  # noqa: E402

task = load_task(Path(__file__).parent)


def reward_func(queries, prompts, labels, **kwargs):
    """Rewards for decoded `queries`, each a prompt of `prompts` followed by its response: see task_reward.py."""
    return rewards_of(task, "lost", queries, prompts)
