"""Prompts, responses and rewards for `ppo_loop.py`, made up from the prompt and the sample's number."""

import random
from types import SimpleNamespace

import torch

VOCABULARY = 32
PROMPT_TOKENS = 6


class Tokenizer:
    pad_token_id = 0

    def decode(self, *_, **__):
        return " "

    def save_pretrained(self, _):
        pass


class Prompts:
    """The dataset and its dataloader: prompts "0", "1", ... in this order."""

    collate_fn = None

    def __init__(self, count):
        self.count, self.next, self.sampler = count, 0, SimpleNamespace(generator=torch.Generator())

    def __len__(self):
        return self.count

    def __iter__(self):
        for i in range(self.next, self.count):
            self.next = i + 1
            yield [""], [str(i)], [""], [None]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def is_lost(prompt, number):
    """Whether a failed reward costs this sample, where a run is to have some."""
    return (int(prompt) + 3 * number) % 5 == 0


def roll_out(prompt, number, rewards):
    """A response as an agent's executor returns it."""
    draw = random.Random(f"{prompt} {number}")
    length = draw.randint(3, 20)
    tokens = [draw.randint(2, VOCABULARY - 1) for _ in range(PROMPT_TOKENS + length)]
    reward = draw.choice(rewards)
    return {
        "prompt": prompt,
        "label": "",
        "images": None,
        "observation_tokens": tokens,
        "action_ranges": [(PROMPT_TOKENS, len(tokens))],
        "rollout_log_probs": None,
        "reward": reward,
        "scores": reward,
        "truncated": length > 18,
    }
