"""Runs as a report has them, made up."""

import numpy as np
import pandas as pd
from lib.run_logs.starts import Run
from lib.run_report.measured import Arm, measure

PARTS = {"timing/make_experience": 1.0, "timing/ppo_train": 2.0, "timing/broadcast": 0.5}


def run_of(generation, kept=None, evaluations=None, source="run", notes=(), every=1, first=(0,), **columns) -> Run:
    """A run whose steps generate for so many seconds, and log these columns (`__` in a name stands for a slash)."""
    generation = np.asarray(generation, float)
    index = pd.RangeIndex(1, len(generation) + 1, name="step")
    steps = pd.DataFrame({"timing/generation": generation, **PARTS}, index=index)
    steps["timing/step_total"] = steps.sum(axis=1)
    steps["rollout/num_samples"] = 64.0
    for name, values in columns.items():
        steps[name.replace("__", "/")] = values
    if "wall_time" not in steps:
        steps["wall_time"] = 1000.0 + steps["timing/step_total"].cumsum()
    steps["first"] = np.isin(np.arange(len(steps)), first)
    evaluations = pd.DataFrame(evaluations or {}, dtype=float)
    return Run(source, steps, evaluations, every, tuple(notes), kept or {})


def arm_of(name, *runs) -> Arm:
    return Arm(name, [measure(run, seed) for seed, run in enumerate(runs)])


def noisy(mean, steps=60, seed=0, spread=0.5):
    """Seconds with a slow first step."""
    values = np.random.default_rng(seed).normal(mean, spread, steps)
    return np.concatenate([[10 * mean], values])
