"""The 7B script's sizes, and the GB that train_scripts/memory.py reckons for them."""

import sys
from typing import Any

from lib.gpu_checks.processes import ROOT

sys.path.insert(0, str(ROOT / "train_scripts"))
from memory import Sizes, generation_parts, sync_parts, total, training_parts  # noqa: E402
from recipe_memory import CONFIGS, RECIPES  # noqa: E402

SCRIPT = "dapo_qwen2.5_7b.sh"


def of_script() -> tuple[dict[str, Any], Sizes]:
    """The model's config.json, as far as it says sizes, and those of the run."""
    model, sizes = RECIPES[SCRIPT]
    return CONFIGS[model], sizes


def predicted(config: dict[str, Any], sizes: Sizes, card_gb: float) -> dict[str, float]:
    """GB of a GPU in each phase: at training's peak, and while engines are awake."""
    awake = generation_parts(config, sizes, card_gb), sync_parts(config, sizes)
    return {"training": total(training_parts(config, sizes)), "generation": max(map(total, awake))}
