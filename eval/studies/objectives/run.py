"""Effective samples a second of group control, by its objective, against the best fixed size of each cell.

A cell is a number of GPUs, made-up rollouts (lengths, success rates that may drift, slow engines), dynamic sampling or not,
what a step keeps, and tail batching or not. N samples in groups of G count as N (G - 1) / G. Every run is simulated from
its first step on, so that learning counts. With the limit out of the way (0.95) a share of 1 is the best of all fixed
sizes; with the limit in force (0.2) it is the best of those that keep it, or the smallest size where none does.

It writes runs.csv, a row a run, and cells.csv, a row a cell, and prints the table.
"""

import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from lib.paths import ENGINES, study_flags
from lib.simulation.runs import started
from lib.simulation.workloads import WORKLOADS, WorkloadSource
from lib.tables import show
from rich.progress import track

SIZES = (4, 8, 16, 32)
LIMITS = (0.95, 0.2)
GPUS = (1, 2, 16, 64, 1024)
STEPS = 100
CELL = ["gpus", "workload", "filter", "hold", "tail"]
POLICIES = [(f"fixed:{size}", LIMITS[0]) for size in SIZES]
POLICIES += itertools.product(("size", "throughput"), LIMITS)  # objectives


class Cell(NamedTuple):
    gpus: int
    workload: str
    filter: bool
    hold: str
    tail: bool


def cells() -> list[Cell]:
    """The table's cells: each workload in several settings."""
    names, table = itertools.cycle(WORKLOADS), []
    for filtering, hold, tail in itertools.product((False, True), ("samples", "prompts"), (False, True)):
        table += [Cell(gpus, next(names), filtering, hold, tail) for gpus in GPUS]
        next(names)
    return table


def measure(cell: Cell, name: str, limit: float, seed: int) -> dict:
    """One simulated run of a policy: effective samples a second, mean straggler rate and group size."""
    fixed, workload = name.startswith("fixed"), WORKLOADS[cell.workload]
    source = WorkloadSource(workload, seed)
    training = started(
        # A group is all its rollouts: with a response_ratio above 1 it would be the short ones of them.
        (name if fixed else "sagc") + ("+tail:1" if cell.tail else ""),
        cell.gpus,
        source,
        ENGINES / "h100-7b.json",
        batch_size=64,
        group_sizes=list(SIZES),
        hold=cell.hold,
        dynamic_sampling=cell.filter,
        max_gen_batches=1000,
        max_straggler_rate=limit,
        objective="size" if fixed else name,
        seed=seed,
    )
    costs = training.costs
    slow = {name: 2 * cost for name, cost in vars(costs).items() if name.startswith(("decode", "prefill"))}
    for engine in training.cluster.engines[: round(workload.slow_share * cell.gpus)]:
        engine.costs = replace(costs, **slow)
    rows = []
    for number in range(STEPS):
        source.progress = number / STEPS
        rows.append(training.step())
    table = pd.DataFrame(rows)
    effective = (table["samples"] * (1 - 1 / table["group_size"])).sum()
    return {
        **cell._asdict(),
        "policy": name,
        "limit": limit,
        "seed": seed,
        "effective_per_second": effective / table["seconds"].sum(),
        "straggler_rate": table["straggler_rate"].mean(),
        "group_size": table["group_size"].mean(),
        "changes": (table["group_size"].diff().iloc[1:] != 0).mean(),
    }


def shares(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and limit: the best fixed size, and each policy's share of its effective samples a second."""
    rows = []
    means = runs.groupby([*CELL, "policy", "limit"], sort=False).mean().drop(columns="seed")
    for cell, table in means.groupby(CELL, sort=False):
        table = table.droplevel(CELL)
        fixed = table.loc[POLICIES[: len(SIZES)]].droplevel("limit")
        for limit in LIMITS:
            keep = fixed[fixed["straggler_rate"] <= limit]
            best = (keep if len(keep) else fixed.iloc[:1])["effective_per_second"]
            row = {**dict(zip(CELL, cell)), "limit": limit, "best": int(best.idxmax().partition(":")[2])}
            row |= {name: value / best.max() for name, value in fixed["effective_per_second"].items()}
            for objective in ("size", "throughput"):
                run = table.loc[(objective, limit)]
                row[objective] = run["effective_per_second"] / best.max()
                row[f"rate of {objective}"] = run["straggler_rate"]
            row["least rate"] = fixed["straggler_rate"].min()
            rows.append(row)
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each limit and policy: mean and least share over the cells, and the highest rate where some size keeps it."""
    rows = []
    for limit, of_limit in table.groupby("limit", sort=False):
        for policy in dict.fromkeys(name for name, its in POLICIES if its == limit):
            row = {"limit": limit, "policy": policy, "mean share": of_limit[policy].mean()}
            row["least share"] = of_limit[policy].min()
            if not policy.startswith("fixed"):
                row["highest rate"] = of_limit.loc[of_limit["least rate"] <= limit, f"rate of {policy}"].max()
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    plan = [(cell, *policy, seed) for cell in cells() for seed in arguments.seeds for policy in POLICIES]
    with ProcessPoolExecutor(arguments.processes, initializer=os.nice, initargs=(19,)) as pool:
        runs = pd.DataFrame(track(pool.map(measure, *zip(*plan)), "simulated runs", len(plan)))
    runs.to_csv(arguments.output / "runs.csv", index=False, float_format="%.5g")
    of_cells = shares(runs)
    of_cells.to_csv(arguments.output / "cells.csv", index=False, float_format="%.4g")
    show(f"share of the best fixed size's effective samples a second, {STEPS} steps", of_cells.round(3))
    show("over all cells", summary(of_cells).round(3))
