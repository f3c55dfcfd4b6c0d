"""What carries the gain: the default against plain steps for five public sets of lengths, with a filter and for prompts that come once."""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import pandas as pd
from lib.intervals import half_of, interval
from lib.paths import ENGINES
from lib.simulation.epochs import Epochs
from lib.simulation.lengths import LogNormal
from lib.simulation.public_lengths import SETS
from lib.simulation.runs import SUMMED, started
from lib.tables import show

GPUS = (16, 128)
PROMPTS, EPISODES = 20 * 128, 3  # two frames of ten steps each; prompts that come once are as many as come in these
ARMS = {"plain": "fixed:8", "auto": "fixed:8+tail"}
CELL = ["lengths", "filter", "prompts come", "gpus"]
FIGURES = {"generation": "generation, %", "step": "whole step, %"}


def totals(policy: str, lengths: LogNormal, filters: bool, again: bool, gpus: int, seed: int) -> pd.Series:
    """Means over the steps of a run of the seconds of generation and of a step, and of the tokens."""
    prompts, episodes = (PROMPTS, EPISODES) if again else (PROMPTS * EPISODES, 1)
    source = Epochs(lengths, prompts, 8, seed, filters)
    run = started(policy, gpus, source, ENGINES / "h100-7b.json", seed=seed, dynamic_sampling=filters)
    steps = []
    while run.queue.episode <= episodes:
        steps.append(run.step())
    return pd.DataFrame(steps)[["generation_seconds", "seconds", *SUMMED]].mean()


def row_of(lengths: str, filters: bool, again: bool, gpus: int, seed: int) -> dict:
    """The default over plain steps of a cell with a seed: shares of their seconds, and of its own tokens."""
    plain, auto = (totals(policy, SETS[lengths], filters, again, gpus, seed) for policy in ARMS.values())
    row = dict(zip(CELL, (lengths, filters, "again" if again else "once", gpus))) | {"seed": seed}
    row |= {"generation": auto["generation_seconds"] / plain["generation_seconds"]}
    row |= {"step": auto["seconds"] / plain["seconds"]}
    row |= {"in vain": auto["wasted_tokens"] / auto["decoded_tokens"]}
    row |= {"plain in vain": plain["wasted_tokens"] / plain["decoded_tokens"]}
    return row | {"length": auto["trained_tokens"] / auto["expected_tokens"]}


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a cell, in %: seconds of plain steps that the default takes with 95 % intervals over the seeds, and tokens."""
    found = []
    for cell, own in rows.groupby(CELL, sort=False):
        row = dict(zip(CELL, cell))
        for name, title in FIGURES.items():
            logs = np.log(own[name])
            mean, half = np.exp(logs.mean()), np.exp(half_of(logs))
            row[title] = interval(100 * mean, half, multiplied=True, digits=0)
        row["tokens in vain, %"] = f"{100 * own['in vain'].mean():.0f}"
        row["of plain steps, %"] = f"{100 * own['plain in vain'].mean():.0f}"
        found.append(row | {"trained length, %": f"{100 * (own['length'].mean() - 1):+.1f}"})
    return pd.DataFrame(found)


def measure(output: Path, arguments: argparse.Namespace) -> None:
    """Write lengths.csv, a row as soon as it is there, and show the table; a line a row says how much time is left."""
    cells = itertools.product(SETS, (False, True), (True, False), arguments.gpus or GPUS, arguments.seeds)
    begin, rows, grid = time.monotonic(), [], [*cells]
    for number, cell in enumerate(grid, 1):
        rows.append(row_of(*cell))
        pd.DataFrame(rows).to_csv(output / "lengths.csv", index=False, float_format="%.4g")
        left = (time.monotonic() - begin) / number * (len(grid) - number)
        print(f"{number} of {len(grid)} rows, some {left / 60:.0f} minutes left", flush=True)
    show("seconds of plain steps that the default takes", summary(pd.DataFrame(rows)))
