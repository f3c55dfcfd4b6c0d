"""Reward of eval/dynamic_sampling.py and eval/compare.py: the first word of a label may say how its prompt is scored.

hard: always 0; easy: always 1; format: always 0.5, as partial credit for the form gives; else as Countdown. Appends
"PROMPT-CHECKSUM SCORE TOKENS SECONDS" for each sample to the file that REWARD_LOG names: its response's tokens, the end
token among them, and the time of day.
"""

import importlib.util
import os
import time
import zlib
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location(
    "countdown_reward", Path(__file__).parents[1] / "train_scripts/countdown/reward.py"
)
COUNTDOWN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(COUNTDOWN)
ALWAYS = {"hard": 0.0, "easy": 1.0, "format": 0.5}


def checksum(prompt: str) -> int:
    return zlib.crc32(prompt.encode())


def reward_func(queries, prompts, labels, **kwargs):
    scores = []
    for query, prompt, label in zip(queries, prompts, labels):
        kind, _, answer = label.partition(" ")
        score = ALWAYS.get(kind)
        if score is None:
            score = float(COUNTDOWN.reward_func([query], [prompt], [answer])["rewards"][0])
        scores.append(score)
        with open(os.environ["REWARD_LOG"], "a") as log:
            tokens = len(query.split()) - len(prompt.split())  # a token is a word
            log.write(f"{checksum(prompt)} {score} {tokens} {time.time():.4f}\n")
    return {"rewards": torch.tensor(scores), "scores": torch.tensor(scores)}
