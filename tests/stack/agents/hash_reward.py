"""Reward function of the stack tests: 0 or 1 by a checksum of the text, so that groups are mixed at any length."""

import zlib

import torch


def reward_func(queries, prompts, labels, **kwargs):
    rewards = torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
