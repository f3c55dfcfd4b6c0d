"""Seconds and memory that the driver takes to cut a rollout into the batches of its forward passes, and what they are like.

OpenRLHF's own `split_rollout_samples` cuts them, on the trees of build/: cpu-base is unpatched. Responses are as long as those of
R1-Distill-Llama-8B on MATH-500, cut off at LONGEST tokens; batches hold TOKENS.
"""

import json
import os
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
from lib.paths import ROOT

TREES = {"patched": "cpu-patched", "unpatched": "cpu-base"}
SHAPES = [(1024, 8), (2048, 8), (4096, 8), (8192, 8), (8192, 64), (512, 64)]  # samples, data-parallel actors
LONGEST, PROMPT, TOKENS = 20480, 100, 22528
HIDDEN = {"busy_1.5b": 1536, "busy_7b": 3584, "busy_32b": 5120}  # sizes of Qwen2.5
TITLE = "Forward batches of a rollout: seconds of the driver, GiB, and the actors' useful share of the time"


def lengths_of(samples: int) -> np.ndarray:
    """[N] tokens of prompt and response: half of the responses above 955 tokens, a tenth above 6,989."""
    sigma = np.log(6989 / 955) / 1.2816
    responses = 955 * np.exp(sigma * np.random.default_rng(0).standard_normal(samples))
    return np.minimum(responses, LONGEST).astype(int) + PROMPT


def cut(samples: int, ranks: int) -> dict[str, float]:
    """What this process's OpenRLHF makes of a rollout."""
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    lengths_N = lengths_of(samples)
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    maker.tokenizer = SimpleNamespace(pad_token_id=0)
    maker.actor_model_group = SimpleNamespace(_actor_handlers=[None] * ranks, duplicate_actors=1)
    maker.critic_model_group = maker.reward_model_group = maker.initial_model_group = None
    maker.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=True),
        rollout=SimpleNamespace(max_tokens_per_gpu=TOKENS),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    rollout = [Experience(total_length=torch.tensor([float(length)])) for length in lengths_N]
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    batches = [lengths_N[batch.index] for batch in maker.split_rollout_samples(rollout)]
    row = {"seconds": time.process_time() - start}
    row["gib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    tokens = np.array([batch.sum() for batch in batches])
    row |= {"batches": len(batches), "above": int((tokens > TOKENS).sum()), "largest": tokens.max() / TOKENS}
    for name, hidden in HIDDEN.items():
        # Linear layers and causal attention. In each pass all actors wait for the last one, as under ZeRO-3.
        costs = np.array([(batch * (6.0 * hidden + batch)).sum() for batch in batches]).reshape(ranks, -1)
        row[name] = costs.sum() / (ranks * costs.max(axis=0).sum())
    return row


def measure(shapes: list[tuple[int, int]] = SHAPES) -> pd.DataFrame:
    """A row for each rollout and tree, each cut in a process of its own."""
    rows = []
    for samples, ranks in shapes:
        for name, tree in TREES.items():
            paths = os.pathsep.join(map(str, (ROOT / "eval", ROOT, ROOT / "build" / tree)))
            code = f"from studies.overhead.partition import *; print(json.dumps(cut({samples}, {ranks})))"
            environment = {**os.environ, "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
            output = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
            rows.append(
                {"samples": samples, "actors": ranks, "tree": name, **json.loads(output.stdout.splitlines()[-1])}
            )
    return pd.DataFrame(rows)
