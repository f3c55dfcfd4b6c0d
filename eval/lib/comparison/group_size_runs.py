"""Training runs of the Countdown model that differ by their group sizes only; the studies group_sizes and simulate need them."""

from pathlib import Path

import pandas as pd
from lib.run_logs.read import read_run
from lib.runs import train_once

SIZES = [4, 8, 16, 32]
SAMPLES, PROMPTS = 64, 4  # of a step, where they are held; few enough that a step is as long as its longest rollout
WARM_UP = 5  # first steps, which are left out


def flags_of(hold: str, sizes: list[int], steps: int, usual_size: int = 6) -> list[str]:
    """Flags of one run, which takes about `steps` steps if a choice of sizes comes to `usual_size`."""
    n = 8 if len(sizes) > 1 else sizes[0]
    batch_size = SAMPLES // n if hold == "samples" else PROMPTS
    usual_prompts = SAMPLES / (usual_size if len(sizes) > 1 else n) if hold == "samples" else PROMPTS
    control = {"rollout.sagc.hold": hold, "rollout.sagc.group_sizes": sizes}
    settings = {
        **(control if len(sizes) > 1 else {}),
        "rollout.batch_size": batch_size,
        "rollout.n_samples_per_prompt": n,
        "train.batch_size": batch_size * n,
        "train.micro_batch_size": min(batch_size * n, 32),
        "rollout.micro_batch_size": min(batch_size * n, 32),
        "data.max_samples": round((steps + WARM_UP) * usual_prompts),
        "actor.adam.lr": 0,
    }
    words = ["--rollout.sagc.enable"] if len(sizes) > 1 else []
    for flag, value in settings.items():
        words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def run(task: Path, output: Path, flags: list[str]) -> pd.DataFrame:
    """Train once; the scalars of the run's steps without the warm-up.

    Raises:
        ValueError: the run failed.
    """
    train_once("cpu-patched", task, output, flags)
    return read_run(output / "tensorboard" / "run").iloc[WARM_UP:]
