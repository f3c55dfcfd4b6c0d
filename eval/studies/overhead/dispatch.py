"""Seconds that it takes to send prompts to an engine, with the tokenizer as OpenRLHF sends it and without.

OpenRLHF's own `_dispatch_prompts_to_vllm` sends them through real Ray to an actor that answers at once. The tokenizer is
made up: byte-level BPE with as many tokens as a model's.
"""

import random
import time
from types import SimpleNamespace

import pandas as pd
import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from rich.progress import track
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TITLE = "Median seconds a prompt"
PARTS = 2000  # tokens that others end with; so few that random pairs find new ones


@ray.remote
class Engine:
    """Stands for an engine's actor."""

    def get_num_unfinished_requests(self):
        return 0

    def generate_responses(self, hf_tokenizer, **_):
        return hf_tokenizer is not None


def made_up_tokenizer(tokens: int, seed: int = 0) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with so many tokens, at least 256, in random merges."""
    draw = random.Random(seed)
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    known, merges = set(words), []
    while len(words) < tokens:
        left, right = draw.choice(words), draw.choice(words[:PARTS])
        if len(left + right) < 16 and left + right not in known:
            known.add(left + right)
            words.append(left + right)
            merges.append((left, right))
    model = models.BPE({word: number for number, word in enumerate(words)}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def seconds_of(tokenizer: PreTrainedTokenizerFast | None, engine, prompts: int) -> dict[str, float]:
    """Seconds a prompt until all are sent, and until all are answered."""
    rollout = SimpleNamespace(n_samples_per_prompt=8)
    algo = SimpleNamespace(advantage=SimpleNamespace(is_correction_level="off"))
    strategy = SimpleNamespace(args=SimpleNamespace(rollout=rollout, algo=algo))
    generator = SamplesGenerator(strategy, None, None, tokenizer, [engine])
    start = time.perf_counter()
    refs = generator._dispatch_prompts_to_vllm(["prompt"] * prompts, [""] * prompts, max_new_tokens=1)
    sent = time.perf_counter()
    answers = ray.get(refs)
    assert answers == [tokenizer is not None] * prompts
    return {"sent_seconds": (sent - start) / prompts, "answered_seconds": (time.perf_counter() - start) / prompts}


def measure(tokens: int = 151643, prompts: int = 16, turns: int = 5) -> pd.DataFrame:
    """Median seconds a prompt over the turns; 151,643 tokens are as many as Qwen2.5's tokenizer has."""
    tokenizer = made_up_tokenizer(tokens)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    engine = Engine.remote()
    ray.get(engine.get_num_unfinished_requests.remote())
    rows = []
    for _ in track(range(turns), "turns"):
        for name, sent in (("with the tokenizer", tokenizer), ("without", None)):
            rows.append({"call": name, "tokens": tokens} | seconds_of(sent, engine, prompts))
    return pd.DataFrame(rows).groupby(["call", "tokens"], sort=False).median().reset_index()
