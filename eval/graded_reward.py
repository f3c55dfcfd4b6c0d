"""Reward of eval/dynamic_sampling.py: the first word of a label says how its prompt is scored.

hard: always 0; easy: always 1; format: always 0.5, as partial credit for the form gives; real: as Countdown. Appends
"PROMPT-CHECKSUM SCORE" for each sample to the file that REWARD_LOG names.
"""

import importlib.util
import os
import zlib
from pathlib import Path

import torch

SPEC = importlib.util.spec_from_file_location(
    "countdown_reward", Path(__file__).parents[1] / "train_scripts/countdown/reward.py"
)
COUNTDOWN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(COUNTDOWN)
ALWAYS = {"hard": 0.0, "easy": 1.0, "format": 0.5}


def reward_func(queries, prompts, labels, **kwargs):
    scores = []
    for query, prompt, label in zip(queries, prompts, labels):
        kind, _, answer = label.partition(" ")
        score = ALWAYS.get(kind)
        if score is None:
            score = float(COUNTDOWN.reward_func([query], [prompt], [answer])["rewards"][0])
        scores.append(score)
        with open(os.environ["REWARD_LOG"], "a") as log:
            log.write(f"{zlib.crc32(prompt.encode())} {score}\n")
    return {"rewards": torch.tensor(scores), "scores": torch.tensor(scores)}
