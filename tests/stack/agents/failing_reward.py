"""Reward function that is 0 or 1 by a checksum, and fails once FAIL_AFTER calls were made in this process."""

import itertools
import os
import zlib

import torch

CALLS = itertools.count()


def reward_func(queries, prompts, labels, **kwargs):
    if next(CALLS) >= int(os.environ["FAIL_AFTER"]):
        raise ConnectionError("verifier is gone")
    rewards = torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards}
