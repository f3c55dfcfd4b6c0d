"""Seconds that it takes to send prompts to an engine, with the tokenizer as OpenRLHF sends it and without.

OpenRLHF's own `_dispatch_prompts_to_vllm` sends them through real Ray to an actor that answers at once. The tokenizer is
made up: byte-level BPE with as many tokens as a model's.
"""

import argparse
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import ray
from common.tables import show
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from rich.progress import track
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


def measure(tokenizer: PreTrainedTokenizerFast | None, engine, prompts: int) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens", type=int, default=151643, help="of the tokenizer; 151,643 are as many as Qwen2.5's"
    )
    parser.add_argument("--prompts", type=int, default=16, help="sent in each turn")
    parser.add_argument("--turns", type=int, default=5, help="with the tokenizer and without, one after the other")
    parser.add_argument("--csv", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    tokenizer = made_up_tokenizer(arguments.tokens)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    engine = Engine.remote()
    ray.get(engine.get_num_unfinished_requests.remote())
    rows = []
    for _ in track(range(arguments.turns), "turns"):
        for name, sent in (("with the tokenizer", tokenizer), ("without", None)):
            rows.append({"call": name, "tokens": arguments.tokens} | measure(sent, engine, arguments.prompts))
    table = pd.DataFrame(rows).groupby(["call", "tokens"], sort=False).median().reset_index()
    show("Median seconds a prompt", table)
    if arguments.csv:
        table.to_csv(arguments.csv, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
