"""The arms of the study step_time, and the prompts that their runs need."""

import itertools
from pathlib import Path

from lib.comparison.arms import SAMPLES

# The parts of a faster step: flags of --train with what they are on and off.
SWITCHES = {"old_log_probs": ("auto", "forward"), "micro_batches": ("length", "shuffled"), "stream": ("auto", "off")}
UNPATCHED, ALL_ON, ALL_OFF = "unpatched", "all on", "all off"
ARMS = [UNPATCHED, ALL_ON, *(f"without {name}" for name in SWITCHES), ALL_OFF]
WARM_UP = 5  # first steps, which are left out
ARM = ["algorithm", "size", "arm"]  # columns of steps.csv that name one
GROUPS_MADE = {"grpo": 1, "dapo": 1.5}  # for one that is trained: dynamic sampling drops groups


def values_of(arm: str) -> dict[str, str]:
    """The values of the SWITCHES in an arm; unpatched OpenRLHF has none of the parts."""
    off = {name for name in SWITCHES if arm in (ALL_OFF, UNPATCHED, f"without {name}")}
    return {name: values[name in off] for name, values in SWITCHES.items()}


def prompts_of(algorithm: str, size: int, steps: int) -> int:
    """Prompts of a run with so many steps after the warm-up."""
    return round((WARM_UP + steps) * SAMPLES / size * GROUPS_MADE[algorithm])


def check_prompts(task: Path, algorithms: list[str], sizes: list[int], steps: int) -> None:
    """The task has the prompts of all runs; else they would end before their last step.

    Raises:
        ValueError: it has too few; the message begins with --steps and says what would do.
    """
    file = task / "data/train.jsonl"
    count = len(file.read_text().splitlines()) if file.is_file() else 0
    runs = itertools.product(algorithms, sizes)
    needed, algorithm, size = max((prompts_of(*run, steps), *run) for run in runs)
    if needed <= count:
        return
    most = int(count * size / SAMPLES / GROUPS_MADE[algorithm]) - WARM_UP
    larger = [other for other in (2, 4, 8, 16, 32, 64) if prompts_of(algorithm, other, steps) <= count]
    advice = [f"--steps {most} or fewer"] if most > 0 else []
    advice += [f"--sizes from {larger[0]} on"] if larger else []
    raise ValueError(
        f"--steps {steps} with --sizes {size} needs {needed} prompts in {algorithm}, and {file} has {count}: use "
        + (", or ".join(advice) or "a --task with more of them")
    )
