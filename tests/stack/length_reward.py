"""Reward function of the stack tests: 1 where the number of words is divisible by three, so that groups are mixed."""

import torch


def reward_func(queries, prompts, labels, **kwargs):
    rewards = torch.tensor([float(len(query.split()) % 3 == 0) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
