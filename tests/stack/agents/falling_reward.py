"""0 or 1 by a checksum; of evaluation prompts less with every call of all runs, which FALLING counts a byte each.

An evaluation takes two seconds, so that a test can do something between two checkpoints.
"""

import os
import time
import zlib

import torch


def reward_func(queries, prompts, labels, **kwargs):
    if labels[0] == "evaluation":
        with open(os.environ["FALLING"], "ab") as calls:
            calls.write(b".")
            time.sleep(2)
            rewards = torch.full((len(queries),), 1 / calls.tell())
    else:
        rewards = torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
