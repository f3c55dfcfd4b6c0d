"""Flags of vLLM's engines that follow from the model and the memory, a word a line: engine_flags.py MODULE FLAG...

launch.sh adds them to the training's command, where its flags do not have them already. OpenRLHF's engines decode 128 rollouts
at a time, in batches of 2,048 tokens, whatever memory there is. A sum on standard error says how many fit.
"""

import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from flag_words import settings_of, value  # noqa: E402
from memory import (  # noqa: E402
    CARD_GB,
    RELEASED,
    generation_parts,
    in_words,
    kv_tokens,
    sizes_of,
    sync_parts,
    total,
    training_parts,
)
from memory_problems import card_gb, training_advice, training_line  # noqa: E402
from model_config import config_of, layers_without_cache  # noqa: E402

# By its path, as in preflight.py.
_redaction = runpy.run_path(str(Path(__file__).parent.parent / "openrlhf_sagc/redaction.py"))
hide, without_secrets = _redaction["hide"], _redaction["without_secrets"]
ENGINE_ARGS, EAGER = "--vllm.engine_args", "--vllm.enforce_eager"  # OpenRLHF as released has no ENGINE_ARGS
BATCHED_TOKENS = 8192  # vLLM's own default for a model that it runs by itself, on most GPUs
MOST_SLOTS = 512  # vLLM captures no graph for more
PART = 8  # a rollout in flight holds this part of the longest one, on average
SMALLEST = 8  # slots; with fewer the sum is of another model


def slots_of(tokens: int, longest: int) -> int:
    """Rollouts that an engine decodes at a time if its KV cache holds these tokens and a rollout has `longest` at most."""
    slots = min(tokens * PART // longest, MOST_SLOTS)
    if slots < SMALLEST:
        raise ValueError(f"its KV cache of {tokens:,} tokens is too small for rollouts of {longest:,}")
    return slots if slots < 16 else slots // 16 * 16  # the graphs' sizes


def engine_flags(module: str, settings: dict[str, list[str]]) -> Iterator[str]:
    """The words; what they come from goes to standard error."""
    model = value(settings, "--actor.model_name_or_path")
    try:
        config, card = config_of(model), card_gb() or CARD_GB
        if os.environ.get("DEVICE") != "cpu":
            _say_sums(module, config, settings, card)
        states = layers_without_cache(config)
        if states and EAGER not in settings:
            _say(
                f"{model} has layers without a KV cache ({states}), for which vLLM may not capture CUDA graphs: {EAGER}"
            )
            yield EAGER
        if ENGINE_ARGS in settings:
            return
        if module == RELEASED:
            raise ValueError("OpenRLHF as released has no flag for more")
        ranks = int(value(settings, "--vllm.tensor_parallel_size", "1"))
        longest = int(value(settings, "--data.max_len"))
        gpu_gb = float(value(settings, "--vllm.gpu_memory_utilization")) * card
        tokens = kv_tokens(config, gpu_gb, ranks)
        slots = slots_of(tokens, longest)
    except (ValueError, ArithmeticError) as error:  # also of a number that is 0 or has no end
        if ENGINE_ARGS not in settings:
            more = "" if module == RELEASED else f" ({ENGINE_ARGS} sets more)"
            _say(f"{model}: {error}; an engine decodes 128 rollouts at a time, vLLM's default{more}")
        return
    yield ENGINE_ARGS
    yield json.dumps({"max_num_seqs": slots, "max_num_batched_tokens": BATCHED_TOKENS})
    _say(
        f"an engine decodes {slots} rollouts at a time: {gpu_gb:.0f} GB of each of its GPUs ({ranks}) hold {tokens:,} tokens of "
        f"rollouts, one in flight has 1 / {PART} of {longest:,}, and CUDA graphs are for {MOST_SLOTS} at most"
    )


def _say_sums(module: str, config: dict[str, Any], settings: dict[str, list[str]], card: float) -> None:
    """What training, engines and the sync of weights take, and what would fit where training may not."""
    try:
        sizes = sizes_of(module, settings)
        training, generation = training_parts(config, sizes), generation_parts(config, sizes, card)
        _say(f"predicted GB of a GPU in training: {in_words(training)}")
        if total(training) > card:
            _say(
                f"{training_line(config, sizes, card)}, and may fail there: {training_advice(config, sizes, card, settings)}"
            )
        sync = f"; in the sync of weights: {total(sync_parts(config, sizes)):.0f}" if sizes.colocated else ""
        _say(f"predicted GB of a GPU while engines generate: {in_words(generation)}{sync}")
    except (ValueError, ArithmeticError) as error:
        _say(f"memory of a GPU is not predicted: {error}")


def _say(line: str) -> None:
    print(f"train_scripts/engine_flags.py: {without_secrets(line)}", file=sys.stderr)


if __name__ == "__main__":
    given, *words = sys.argv[1:]
    hide(words)
    print(*engine_flags(given, settings_of(words)), sep="\n")
