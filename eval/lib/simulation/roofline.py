"""Costs of an engine and of training from data sheets, with shares of a card's bandwidth and speed that are assumed once for all."""

import runpy
from typing import Any, NamedTuple

from lib.paths import ROOT
from lib.simulation.costs import CostModel

MEMORY = runpy.run_path(str(ROOT / "train_scripts/memory.py"))
READING, DECODING, TRAINING = 0.8, 0.5, 0.4  # of the bandwidth and of the speed, as eval/engines/h100-7b.json has them
ALL_REDUCE, LINK = 12e-6, 300e9  # seconds of one of a few tokens, and bytes a second between GPUs; assumed


class Card(NamedTuple):
    """Bytes a second of its memory, operations a second in bfloat16 without sparsity, and GB."""

    bandwidth: float
    flops: float
    gb: float


H100 = Card(3.35e12, 989e12, 80)


def roofline(
    config: dict[str, Any], ranks: int, share: float, slots: int, launch: float = 0.0, card: Card = H100
) -> CostModel:
    """Costs of a dense model, with two all-reduces a layer where engines have several GPUs.

    Args:
        config: the model's config.json.
        ranks: GPUs of an engine.
        share: of a card's memory for its engine.
        slots: rollouts at a time.
        launch: as in `CostModel`.

    Raises:
        ValueError: the model is of another kind, or has no room; one line.
    """
    weights = MEMORY["weights_of"](config)
    reduces = 2 * config["num_hidden_layers"] if ranks > 1 else 0
    sent = reduces * 2 * config["hidden_size"] * 2 * (ranks - 1) / ranks / LINK
    token, bandwidth = 2 * weights / ranks / (DECODING * card.flops) + sent, READING * card.bandwidth
    return CostModel(
        decode_base=2 * weights / ranks / bandwidth + reduces * ALL_REDUCE,
        decode_per_request=token,
        decode_per_kv_token=MEMORY["bytes_a_token"](config, ranks) / bandwidth,
        prefill_per_token=token,
        launch=launch,
        max_running=slots,
        kv_limit=MEMORY["kv_tokens"](config, share * card.gb, ranks),
        gpus_per_engine=ranks,
        generation_base=1.0,
        experience_base=1.0,
        experience_per_token=2 * weights / (TRAINING * card.flops),
        train_base=1.0,
        train_per_token=8 * weights / (TRAINING * card.flops),
        sync=2.0,
    )
