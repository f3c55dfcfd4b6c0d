"""A reward for measurements: the first word of a label may say how its prompt is scored. It logs every sample.

hard: always 0; easy: always 1; format: always 0.5, as partial credit for the form gives; other labels: as the task does that
REWARD_TASK names, Countdown without it. dynamic_sampling.py and compare.py train with it. For each sample it appends
"PROMPT-CHECKSUM SCORE TOKENS SECONDS" to the file that REWARD_LOG names: the tokens of the response, its end token included,
and the time of day.
"""

import importlib.util
import os
import time
import zlib
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location(
    "task_reward_file",
    Path(__file__).parents[2] / "train_scripts" / os.environ.get("REWARD_TASK", "countdown") / "reward.py",
)
TASK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TASK)
ALWAYS = {"hard": 0.0, "easy": 1.0, "format": 0.5}


def checksum(prompt: str) -> int:
    """The number by which the log names a prompt."""
    return zlib.crc32(prompt.encode())


def reward_func(queries, prompts, labels, **kwargs):
    """OpenRLHF's interface; `rewards` and `scores` are the same tensor of floats."""
    scores = []
    for query, prompt, label in zip(queries, prompts, labels):
        kind, _, answer = label.partition(" ")
        score = ALWAYS.get(kind)
        if score is None:
            score = float(TASK.reward_func([query], [prompt], [answer])["rewards"][0])
        scores.append(score)
        with open(os.environ["REWARD_LOG"], "a") as log:
            tokens = len(query.split()) - len(prompt.split())  # a token is a word
            log.write(f"{checksum(prompt)} {score} {tokens} {time.time():.4f}\n")
    return {"rewards": torch.tensor(scores), "scores": torch.tensor(scores)}
