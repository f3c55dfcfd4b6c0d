"""Flags of vLLM's engines that follow from the model and the memory, a word a line: engine_flags.py MODULE FLAG...

launch.sh adds them to the training's command, where its flags do not have them already. OpenRLHF's engines decode 128 rollouts
at a time, in batches of 2,048 tokens, whatever memory there is. A sum on standard error says how many fit.
"""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from flag_words import settings_of, value  # noqa: E402
from gpus import visible_gpus  # noqa: E402

# By its path, as in preflight.py.
without_secrets = runpy.run_path(str(Path(__file__).parent.parent / "openrlhf_sagc/redaction.py"))["without_secrets"]
ENGINE_ARGS, EAGER = "--vllm.engine_args", "--vllm.enforce_eager"
RELEASED = "openrlhf_sagc.unpatched"  # which has no ENGINE_ARGS
GB = 1e9
CARD_GB = 80  # where no GPU is seen, as on the head of a cluster
WORKING_GB = 5  # of an engine on a GPU: activations of BATCHED_TOKENS, logits, CUDA graphs
BATCHED_TOKENS = 8192  # vLLM's own default for a model that it runs by itself, on most GPUs
MOST_SLOTS = 512  # vLLM captures no graph for more
PART = 8  # a rollout in flight holds this part of the longest one, on average
SMALLEST = 8  # slots; with fewer the sum is of another model
BYTES = 2  # of a weight and of a number in the KV cache, in bfloat16
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
STATES = (
    "mamba",
    "ssm_",
    "linear_num_",
    "linear_attn",
    "hybrid_",
    "full_attention_interval",
    "attn_layer_period",
)  # so keys begin


def config_of(model: str) -> dict[str, Any]:
    """The text model's part of a model's config.json, in a folder or on the hub.

    Raises:
        ValueError: it cannot be had; the message says why.
    """
    try:
        if os.path.isdir(model):
            file = os.path.join(model, "config.json")
        else:
            from huggingface_hub import hf_hub_download

            file = hf_hub_download(model, "config.json")
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except Exception as error:  # of the network, too
        raise ValueError(f"its config.json cannot be read ({type(error).__name__})") from error
    text = config.get("text_config", config) if isinstance(config, dict) else None
    if not isinstance(text, dict):
        raise ValueError("its config.json holds no JSON object")
    return text


def layers_without_cache(config: dict[str, Any]) -> str:
    """What says that some layers keep a state instead of a KV cache (Mamba, linear attention); empty if nothing does."""
    kinds = config.get("layer_types")
    others = sorted({str(kind) for kind in kinds} - ATTENTION) if isinstance(kinds, list) else []
    keys = sorted(key for key in config if key.startswith(STATES) and config[key])
    return ", ".join((others + keys)[:3])


def weights_of(config: dict[str, Any]) -> int:
    """Weights of a dense model with gated layers; biases and norms, a thousandth, are left out.

    Raises:
        ValueError: the model is of another kind; the message says so.
    """
    if any(config.get(name) for name in EXPERTS) or config.get("kv_lora_rank"):
        raise ValueError("it is no dense model with grouped attention")
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    attention = 2 * hidden * _head_size(config) * (heads + _count(config, "num_key_value_heads", heads))
    layer = attention + 3 * hidden * _count(config, "intermediate_size")
    ends = _count(config, "vocab_size") * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return _count(config, "num_hidden_layers") * layer + ends


def bytes_a_token(config: dict[str, Any], ranks: int) -> float:
    """What a token takes in the KV cache, on each GPU of an engine of `ranks`."""
    heads = _count(config, "num_key_value_heads", _count(config, "num_attention_heads"))
    return 2 * BYTES * _count(config, "num_hidden_layers") * _head_size(config) * max(heads / ranks, 1)


def kv_tokens(config: dict[str, Any], gpu_gb: float, ranks: int) -> int:
    """Tokens that the KV cache of an engine holds.

    Args:
        config: of the model.
        gpu_gb: that the engine has of each of its GPUs.
        ranks: GPUs of the engine, which share weights and heads.

    Raises:
        ValueError: as `weights_of`, or there is no room.
    """
    weights = BYTES * weights_of(config) / ranks
    tokens = int((GB * (gpu_gb - WORKING_GB) - weights) / bytes_a_token(config, ranks))
    if tokens <= 0:
        raise ValueError(
            f"{gpu_gb:.0f} GB of each GPU do not hold its weights, {weights / GB:.0f}, and {WORKING_GB} to work"
        )
    return tokens


def _head_size(config: dict[str, Any]) -> int:
    return _count(config, "head_dim", _count(config, "hidden_size") // _count(config, "num_attention_heads"))


def _count(config: dict[str, Any], name: str, default: int | None = None) -> int:
    found = config.get(name) or default
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"its config.json has no {name}")
    return found


def slots_of(tokens: int, longest: int) -> int:
    """Rollouts that an engine decodes at a time if its KV cache holds these tokens and a rollout has `longest` at most."""
    slots = min(tokens * PART // longest, MOST_SLOTS)
    if slots < SMALLEST:
        raise ValueError(f"its KV cache of {tokens:,} tokens is too small for rollouts of {longest:,}")
    return slots if slots < 16 else slots // 16 * 16  # the graphs' sizes


def card_gb() -> float:
    """Memory of the smallest GPU that CUDA shows here."""
    with suppress(OSError, subprocess.SubprocessError):
        return min((gpu.total * 2**20 / GB for gpu in visible_gpus()), default=CARD_GB)
    return CARD_GB


def engine_flags(module: str, settings: dict[str, list[str]]) -> Iterator[str]:
    """The words; what they come from goes to standard error."""
    model = value(settings, "--actor.model_name_or_path")
    try:
        config = config_of(model)
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
        if states:
            raise ValueError("the sum knows nothing of its states")
        ranks = int(value(settings, "--vllm.tensor_parallel_size", "1"))
        longest = int(value(settings, "--data.max_len"))
        gpu_gb = float(value(settings, "--vllm.gpu_memory_utilization")) * card_gb()
        tokens = kv_tokens(config, gpu_gb, ranks)
        slots = slots_of(tokens, longest)
    except (ValueError, ArithmeticError) as error:  # also of a number that is 0 or has no end
        if ENGINE_ARGS not in settings:
            _say(
                f"{model}: {error}; an engine decodes 128 rollouts at a time, vLLM's default ({ENGINE_ARGS} sets more)"
            )
        return
    yield ENGINE_ARGS
    yield json.dumps({"max_num_seqs": slots, "max_num_batched_tokens": BATCHED_TOKENS})
    _say(
        f"an engine decodes {slots} rollouts at a time: {gpu_gb:.0f} GB of each of its GPUs ({ranks}) hold {tokens:,} tokens of "
        f"rollouts, one in flight has 1 / {PART} of {longest:,}, and CUDA graphs are for {MOST_SLOTS} at most"
    )


def _say(line: str) -> None:
    print(f"train_scripts/engine_flags.py: {without_secrets(line)}", file=sys.stderr)


if __name__ == "__main__":
    given, *words = sys.argv[1:]
    print(*engine_flags(given, settings_of(words)), sep="\n")
