"""Which run's memory cannot fit a GPU, or whose heads its engines cannot share, and what would; preflight.py asks before Ray starts.

A run is refused for what is certain of its sums (memory.py). What is guessed, some 9 GB, may be less on the user's GPUs: a run that exceeds the
card only with it starts, and engine_flags.py says so. What a line advises fits with all that is guessed.
"""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from flag_words import value
from gpus import visible_gpus
from memory import GB, Sizes, certain, generation_parts, kv_tokens, sizes_of, total, training_parts
from model_config import bytes_a_token, config_of, count

STEP = 1024  # tokens, to which advice is rounded
MOST_TOKENS = 2**18
NEW = "--rollout.max_new_tokens"


def card_gb() -> float | None:
    """Memory of the smallest GPU that CUDA shows here; None if it shows none."""
    with suppress(OSError, subprocess.SubprocessError):
        return min((gpu.total * 2**20 / GB for gpu in visible_gpus()), default=None)
    return None


def memory_problems(module: str, settings: dict[str, list[str]], card: float | None) -> Iterator[str]:
    """At most a line for training and one for engines; none where a card or a sum is not known.

    Args:
        module: of the training's command.
        settings: its flags.
        card: GB of the smallest GPU that runs it.
    """
    if card is None:
        return
    try:
        config, sizes = config_of(value(settings, "--actor.model_name_or_path")), sizes_of(module, settings)
        training = training_parts(config, sizes)
        if certain(training) > card:
            yield f"{training_line(config, sizes, card)}: {training_advice(config, sizes, card, settings)}"
        if why := engines_line(config, sizes, card):
            yield f"{why}: {engines_advice(config, sizes, card, settings)}"
    except (ValueError, ArithmeticError):  # engine_flags.py has said it
        return


def head_problems(settings: dict[str, list[str]]) -> Iterator[str]:
    """A line where an engine's GPUs cannot share the model's heads, which vLLM says once Ray has started."""
    try:
        heads = count(config_of(value(settings, "--actor.model_name_or_path")), "num_attention_heads")
        ranks, engines = (
            int(value(settings, f"--vllm.{name}", "1")) for name in ("tensor_parallel_size", "num_engines")
        )
        if ranks < 1 or heads % ranks == 0:
            return
    except ValueError:  # a model or a number that is not known
        return
    fitting = max(part for part in range(1, ranks + 1) if heads % part == 0 and engines * ranks % part == 0)
    yield (
        f"--vllm.tensor_parallel_size {ranks} does not divide the {heads} attention heads of the model: use "
        f"--vllm.tensor_parallel_size {fitting} --vllm.num_engines {engines * ranks // fitting}"
    )


def training_line(config: dict[str, Any], sizes: Sizes, card: float) -> str:
    flag = (
        f"--train.max_tokens_per_gpu {sizes.tokens}"
        if sizes.tokens > sizes.longest
        else f"--data.max_len {sizes.longest}"
    )
    return f"{flag} takes {total(training_parts(config, sizes)):.0f} GB of the card's {card:.0f} in training"


def training_advice(config: dict[str, Any], sizes: Sizes, card: float, settings: dict[str, list[str]]) -> str:
    """Variables of launch.sh that make training fit the card, all parts of it."""
    tokens, found = most_tokens(config, sizes, card), []
    if tokens >= sizes.longest:
        return f"TOKENS_PER_GPU={tokens}"
    prompt = sizes.longest - int(value(settings, NEW, str(sizes.longest)))  # 0 where an agent has all
    if tokens > prompt:
        name = "MAX_NEW_TOKENS" if NEW in settings else "MAX_LEN"
        found.append(f"{name}={tokens - prompt} TOKENS_PER_GPU={tokens}")
    for gpus in (sizes.gpus * times for times in (2, 4, 8, 16)):
        if most_tokens(config, sizes._replace(gpus=gpus), card) >= sizes.tokens:
            engines = f" and ENGINES={gpus // sizes.ranks}" if sizes.colocated else ""
            found.append(f"{gpus} GPUs that train (NODES, ACTOR_GPUS){engines}")
            break
    return ", or ".join(found) or "a smaller model, or GPUs with more memory"


def most_tokens(config: dict[str, Any], sizes: Sizes, card: float) -> int:
    """Tokens of a micro-batch with which training takes the card at most, in steps of STEP; 0 if there are none."""

    def fits(tokens: int) -> bool:
        return total(training_parts(config, sizes._replace(tokens=tokens))) <= card

    return next(filter(fits, range(MOST_TOKENS, 0, -STEP)), 0)


def engines_line(config: dict[str, Any], sizes: Sizes, card: float) -> str:
    """Why the engines certainly do not fit beside what is on their GPUs; empty if they may."""
    parts = generation_parts(config, sizes, card)
    if (taken := certain(parts)) > card:
        return f"--vllm.gpu_memory_utilization {sizes.share:g} takes {taken:.0f} GB of the card's {card:.0f} while engines generate"
    room = max(GB * (sizes.share * card - parts["weights"]), 0) / bytes_a_token(config, sizes.ranks)
    if room < sizes.longest:
        return (
            f"--vllm.tensor_parallel_size {sizes.ranks} puts {parts['weights']:.0f} GB of weights into an engine's "
            f"{sizes.share * card:.0f} of the card, which leaves {room:.0f} tokens of --data.max_len {sizes.longest}"
        )
    return ""


def engines_advice(config: dict[str, Any], sizes: Sizes, card: float, settings: dict[str, list[str]]) -> str:
    """Variables of launch.sh with which an engine holds its weights, a rollout of full length and all that is guessed."""
    heads = count(config, "num_attention_heads")
    ranks = [ranks for ranks in (sizes.ranks * times for times in (1, 2, 4, 8)) if heads % ranks == 0]
    gpus = sizes.gpus if sizes.colocated else sizes.ranks * int(value(settings, "--vllm.num_engines", "1"))
    ranks = [each for each in ranks if gpus % each == 0]
    shares = sorted((part / 20 for part in range(6, 20)), key=lambda share: abs(share - sizes.share))
    for share in (sizes.share, *shares):
        for each in ranks:
            if engines_fit(config, sizes._replace(ranks=each, share=share), card):
                tensor_parallel = [f"TENSOR_PARALLEL={each} ENGINES={gpus // each}"] if each != sizes.ranks else []
                return " ".join(tensor_parallel + ([f"GPU_MEMORY={share:g}"] if share != sizes.share else []))
    return "a smaller model, or GPUs with more memory"


def engines_fit(config: dict[str, Any], sizes: Sizes, card: float) -> bool:
    with suppress(ValueError):
        tokens = kv_tokens(config, sizes.share * card, sizes.ranks)
        return tokens >= sizes.longest and total(generation_parts(config, sizes, card)) <= card
    return False
