"""What a launch script's header says of the memory that it takes."""

import re
from typing import NamedTuple

from lib.gpu_checks.processes import ROOT

SCRIPT = "dapo_qwen2.5_7b.sh"
LOGITS = re.compile(r"(\d+) logits \((\d+) bytes x ([\d,]+) x ([\d,]+) tokens\)")
CHECKPOINTS = re.compile(r"(\d+) activation checkpoints \(2 bytes x (\d+) layers x ([\d,]+) x tokens\)")
TRAINING = re.compile(r"training \d+ = \d+ states \((\d+) bytes a parameter, ZeRO-3 over (\d+) GPUs\)")
OTHERS = re.compile(r"\+ (\d+) a layer at work.*?\+ (\d+) sleeping engines", re.DOTALL)
GENERATION = re.compile(r"generation \d+ = \d+ engines \(0\.(\d) of the card\).*?\+ (\d+) contexts", re.DOTALL)


class Figures(NamedTuple):
    """Of the script's header; GB are those of one GPU."""

    logit_bytes: int
    vocabulary: int
    tokens: int  # of a full pack
    layers: int
    hidden: int
    checkpoints_gb: float
    parameter_bytes: int
    gpus: int
    logits_gb: float
    other_gb: float  # a layer at work, gathered weights, and sleeping engines
    engine_share: float  # of a card
    contexts_gb: float


def figures(script: str = SCRIPT) -> Figures:
    """Read them.

    Raises:
        ValueError: the header has another form.
    """
    text = (ROOT / "train_scripts" / script).read_text()
    found = [pattern.search(text) for pattern in (LOGITS, CHECKPOINTS, TRAINING, OTHERS, GENERATION)]
    if not all(found):
        raise ValueError(f"train_scripts/{script} does not say what logits, checkpoints, states and engines take")
    logits, checkpoints, training, others, generation = (
        [int(number.replace(",", "")) for number in match.groups()] for match in found if match
    )
    return Figures(
        logit_bytes=logits[1],
        vocabulary=logits[2],
        tokens=logits[3],
        layers=checkpoints[1],
        hidden=checkpoints[2],
        checkpoints_gb=checkpoints[0],
        parameter_bytes=training[0],
        gpus=training[1],
        logits_gb=logits[0],
        other_gb=sum(others),
        engine_share=generation[0] / 10,
        contexts_gb=generation[1],
    )
