"""What a run takes of each GPU's memory, in GB of 1e9 bytes, from the model's config.json, tokens and GPUs.

engine_flags.py prints the sums, memory_problems.py says which run cannot fit, recipe_memory.py has the recipes' sums. They are
predicted: no GPU has run them. tests/unit/scripts/test_memory_measured.py measures on CPU tensors what is not GUESSED.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from flag_words import value  # noqa: E402
from model_config import BYTES, bytes_a_token, count, embedding_of, kept_a_token, weights_of  # noqa: E402

RELEASED = "openrlhf_sagc.unpatched"
GB = 1e9
CARD_GB = 80  # where no GPU is seen, as on the head of a cluster
STATE_BYTES = 16  # a parameter: bfloat16 weight and gradient, fp32 weight and Adam's two moments
LOGIT_BYTES = (
    10  # 4 and 4 of gradient in fp32, 2 of gradient in bfloat16: with flash-attn, and of the patched OpenRLHF
)
RELEASED_LOGIT_BYTES = 16  # of OpenRLHF 0.11.2's log_probs_from_logits where flash-attn is missing
ENTROPY_LOGIT_BYTES = 16  # with --actor.entropy_coef, whose compiled function has a gradient of its own
HELD_LOGIT_BYTES = 4  # OpenRLHF's training step holds the fp32 logits to its end
LIVE, BUCKET = (
    1e9,
    5e8,
)  # parameters that DeepSpeed gathers at most, and those of its bucket of gradients: its defaults
WORKING_GB = 5  # of an engine, in its share: activations of engine_flags.BATCHED_TOKENS, logits, CUDA graphs; assumed
# Parts that are assumed, or of which only the most is known. A run is refused for what the others take.
GATHERED = "ZeRO's buffers"
SLEEPING, SLEEPING_GB = "sleeping engines", 3  # CUDA graphs and context
CONTEXT, CONTEXT_GB = "context, NCCL, gaps", 3
GUESSED = {GATHERED, SLEEPING, CONTEXT}
# Flags with the values that the sums are for, where "" stands for a flag that is not given.
RECKONED = {
    "--ds.zero_stage": "3",
    "--ds.ring_attn_size": " 1",
    "--ds.tensor_parallel_size": " 1",
    "--ds.zpg": " 1",
    "--ds.lora.rank": " 0",
    "--ds.param_dtype": " bf16 fp16",
    "--ds.grad_accum_dtype": " bf16",
    "--actor.optim": " adam",
}
OTHER_MODELS = ("--critic.model_name_or_path", "--ref.model_name_or_path", "--reward.model_name_or_path")
SWITCHES = (
    *OTHER_MODELS,
    "--ds.adam_offload",
    "--ds.load_in_4bit",
    "--ds.use_liger_kernel",
    "--ds.deepcompile",
)  # that change them


class Sizes(NamedTuple):
    """What a run's sums depend on besides the model.

    Attributes:
        tokens: of a micro-batch at most.
        longest: tokens of the longest sample, prompt and response.
        gpus: that share the policy's states (ZeRO 3).
        ranks: GPUs of an engine.
        share: of a GPU's memory for its engine.
        colocated: engines and policy have the same GPUs in turn.
        sleeps: the policy's optimizer states leave the GPU while engines generate.
        checkpoints: layers keep their inputs alone for the backward pass.
        logit_bytes: that a logit takes in the loss.
    """

    tokens: int
    longest: int
    gpus: int
    ranks: int = 1
    share: float = 0.8
    colocated: bool = True
    sleeps: bool = True
    checkpoints: bool = True
    logit_bytes: int = LOGIT_BYTES


def sizes_of(module: str, settings: dict[str, list[str]]) -> Sizes:
    """Those of a training's command.

    Raises:
        ValueError: a flag changes what the sums know nothing of; the message names it.
    """
    given = [(flag, value(settings, flag)) for flag in RECKONED]
    other = [f"{flag} {word}" for flag, word in given if word not in RECKONED[flag].split(" ")]
    other += [flag for flag in SWITCHES if flag in settings]
    if float(value(settings, "--algo.kl.init_coef", "0")) > 0:
        other.append("the reference model of --algo.kl.init_coef")
    if other:
        raise ValueError(f"the sums know nothing of {other[0].strip()}")
    if "--train.dynamic_batch_enable" not in settings:
        raise ValueError("the sums are for --train.dynamic_batch_enable")
    longest = int(value(settings, "--data.max_len", "2048"))
    nodes, gpus = int(value(settings, "--actor.num_nodes", "1")), int(
        value(settings, "--actor.num_gpus_per_node", "8")
    )
    logit_bytes = LOGIT_BYTES
    if module == RELEASED and importlib.util.find_spec("flash_attn") is None:
        logit_bytes = RELEASED_LOGIT_BYTES
    if "--actor.entropy_coef" in settings:
        logit_bytes = max(logit_bytes, ENTROPY_LOGIT_BYTES)
    return Sizes(
        tokens=max(int(value(settings, "--train.max_tokens_per_gpu", "16192")), longest),
        longest=longest,
        gpus=nodes * gpus,
        ranks=int(value(settings, "--vllm.tensor_parallel_size", "1")),
        share=float(value(settings, "--vllm.gpu_memory_utilization", "0.95")),
        colocated="--train.colocate_all" in settings,
        sleeps="--ds.enable_sleep" in settings,
        checkpoints="--actor.gradient_checkpointing_enable" in settings,
        logit_bytes=logit_bytes,
    )


def training_parts(config: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    """At the peak of a micro-batch's backward pass: in the loss, or in a layer where logits are few."""
    weights, hidden, layers = weights_of(config), count(config, "hidden_size"), count(config, "num_hidden_layers")
    logits, kept = count(config, "vocab_size") * sizes.tokens, kept_a_token(config)
    # The last norm keeps 8 bytes; a layer that is recomputed has its own besides what it keeps.
    held = layers * (BYTES * hidden if sizes.checkpoints else kept) + 8 * hidden
    layer = 6 * count(config, "intermediate_size") + 2 * hidden + (kept if sizes.checkpoints else 0)
    peaks = {
        f"logits of {sizes.logit_bytes} bytes": sizes.logit_bytes * logits,
        "logits and a layer at work": HELD_LOGIT_BYTES * logits + sizes.tokens * layer,
    }
    peak = max(peaks, key=lambda name: peaks[name])
    parts = {
        "states": STATE_BYTES * weights / sizes.gpus,
        peak: peaks[peak],
        "activation checkpoints" if sizes.checkpoints else "activations": sizes.tokens * held,
        GATHERED: BYTES * (min(weights, LIVE) + BUCKET),
    }
    rest = {SLEEPING: SLEEPING_GB, CONTEXT: CONTEXT_GB} if sizes.colocated else {CONTEXT: CONTEXT_GB}
    return {name: size / GB for name, size in parts.items()} | rest


def generation_parts(config: dict[str, Any], sizes: Sizes, card: float) -> dict[str, float]:
    """While engines generate; the KV cache has what they leave of their share, which may be less than nothing."""
    weights = BYTES * weights_of(config) / sizes.ranks / GB
    parts = {
        "weights": weights,
        "at work, CUDA graphs": WORKING_GB,
        "KV cache": sizes.share * card - weights - WORKING_GB,
    }
    return parts | _beside_engines(config, sizes)


def sync_parts(config: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    """While colocated engines, awake without a KV cache, get the weights; the largest is gathered and copied."""
    parts = {
        "weights": BYTES * weights_of(config) / sizes.ranks / GB,
        "a parameter, twice": 2 * BYTES * embedding_of(config) / GB,
    }
    return parts | {SLEEPING: SLEEPING_GB} | _beside_engines(config, sizes)


def _beside_engines(config: dict[str, Any], sizes: Sizes) -> dict[str, float]:
    if not sizes.colocated:
        return {}
    name, size = ("sleeping actors' weights", BYTES) if sizes.sleeps else ("actors' states", STATE_BYTES)
    return {name: size * weights_of(config) / sizes.gpus / GB, CONTEXT: CONTEXT_GB}


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


def total(parts: dict[str, float]) -> float:
    return sum(parts.values())


def certain(parts: dict[str, float]) -> float:
    """Without what is GUESSED."""
    return sum(size for name, size in parts.items() if name not in GUESSED)


def in_words(parts: dict[str, float]) -> str:
    terms = " + ".join(f"{size:.0f} {name}" if size >= 9.95 else f"{size:.1f} {name}" for name, size in parts.items())
    return f"{total(parts):.0f} = {terms}"
