"""What a model's config.json says of its size: weights, and the bytes of a token in the KV cache and in training."""

import json
import os
from pathlib import Path
from typing import Any

BYTES = 2  # of a weight, an activation and a number in the KV cache, in bfloat16
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
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


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


def weights_of(config: dict[str, Any]) -> int:
    """Weights of a dense model with gated layers; biases and norms, a thousandth, are left out.

    Raises:
        ValueError: the model is of another kind; the message says so.
    """
    if any(config.get(name) for name in EXPERTS) or config.get("kv_lora_rank"):
        raise ValueError("it is no dense model with grouped attention")
    if layers_without_cache(config):
        raise ValueError("the sum knows nothing of its states")
    hidden, width = count(config, "hidden_size"), count(config, "intermediate_size")
    queries, keys = _widths(config)
    layer = 2 * hidden * (queries + keys) + 3 * hidden * width
    ends = embedding_of(config) * (1 if config.get("tie_word_embeddings") else 2)
    return count(config, "num_hidden_layers") * layer + ends


def layers_without_cache(config: dict[str, Any]) -> str:
    """What says that some layers keep a state instead of a KV cache (Mamba, linear attention); empty if nothing does."""
    kinds = config.get("layer_types")
    others = sorted({str(kind) for kind in kinds} - ATTENTION) if isinstance(kinds, list) else []
    keys = sorted(key for key in config if key.startswith(STATES) and config[key])
    named = ("".join(letter for letter in name if letter.isprintable())[:40] for name in (others + keys)[:3])
    return ", ".join(named)


def bytes_a_token(config: dict[str, Any], ranks: int) -> float:
    """What a token takes in the KV cache, on each GPU of an engine of `ranks`."""
    heads = count(config, "num_key_value_heads", count(config, "num_attention_heads"))
    return 2 * BYTES * count(config, "num_hidden_layers") * _head_size(config) * max(heads / ranks, 1)


def kept_a_token(config: dict[str, Any]) -> int:
    """Bytes of a token that a layer keeps for its backward pass: what the norms, the attention and the gate multiply by."""
    queries, keys = _widths(config)
    return 16 * count(config, "hidden_size") + 4 * (queries + keys) + 8 * count(config, "intermediate_size")


def _widths(config: dict[str, Any]) -> tuple[int, int]:
    """Of all queries of a token, and of all its keys."""
    heads = count(config, "num_attention_heads")
    return heads * _head_size(config), count(config, "num_key_value_heads", heads) * _head_size(config)


def embedding_of(config: dict[str, Any]) -> int:
    """Weights of the embedding, which is the largest parameter."""
    return count(config, "vocab_size") * count(config, "hidden_size")


def _head_size(config: dict[str, Any]) -> int:
    return count(config, "head_dim", count(config, "hidden_size") // count(config, "num_attention_heads"))


def count(config: dict[str, Any], name: str, default: int | None = None) -> int:
    found = config.get(name) or default
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"its config.json has no {name}")
    return found
