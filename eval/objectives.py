"""Effective samples a second of group control, by its objective, against the best fixed size of each cell.

A cell is a number of GPUs, made-up rollouts (lengths, success rates that may drift, slow engines), dynamic sampling or not,
what a step keeps, and tail batching or not. N samples in groups of G count as N (G - 1) / G. Every run is simulated from
its first step on, so that learning counts. With the limit out of the way (0.95) a share of 1 is the best of all fixed
sizes; with the limit in force (0.2) it is the best of those that keep it, or the smallest size where none does.

It writes runs.csv, a row a run, and cells.csv, a row a cell, and prints the table. Started again, it leaves out the runs that
runs.csv has: delete the file after a change of the code.
"""

import argparse
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
from common.paths import ENGINES, RESULTS, ROOT, output_folder
from common.policies import parse_policy
from common.tables import show
from rich.console import Console
from rich.progress import Progress
from simulation.costs import CostModel
from simulation.flags import default_arguments
from simulation.runs import train
from simulation.workloads import WORKLOADS, WorkloadSource

SIZES = (4, 8, 16, 32)
LIMITS = (0.95, 0.2)
GPUS = (1, 2, 16, 64, 1024)
CELL = ["gpus", "workload", "filter", "hold", "tail"]
SETTINGS = ["steps", "batch_size", "tradeoff"]


class Cell(NamedTuple):
    gpus: int
    workload: str
    filter: bool
    hold: str
    tail: bool


class Run(NamedTuple):
    cell: Cell
    policy: str  # "fixed:N", or an objective
    limit: float
    seed: int


def cells(gpus: list[int], quick: bool) -> list[Cell]:
    """The table's cells: each workload in several settings; a corner of the table if quick."""
    if quick:
        return [Cell(gpus, "mid", filtering, "samples", False) for gpus in (2, 64) for filtering in (False, True)]
    names = itertools.cycle(WORKLOADS)
    table = []
    for filtering, hold, tail in itertools.product((False, True), ("samples", "prompts"), (False, True)):
        table += [Cell(number, next(names), filtering, hold, tail) for number in GPUS]
        next(names)
    return [cell for cell in table if cell.gpus in gpus]


def runs_of(cell: Cell, seeds: list[int]) -> Iterator[Run]:
    for seed in seeds:
        for size in SIZES:
            yield Run(cell, f"fixed:{size}", LIMITS[0], seed)
        for objective, limit in itertools.product(("size", "throughput"), LIMITS):
            yield Run(cell, objective, limit, seed)


def measure(run: Run, steps: int, batch_size: int, tradeoff: float) -> dict:
    """One simulated run: effective samples a second, mean straggler rate and group size, and with what it was made."""
    fixed = run.policy.startswith("fixed")
    arguments = default_arguments(
        batch_size=batch_size,
        n_samples_per_prompt=8,
        prompt_tokens=256,
        group_sizes=list(SIZES),
        hold=run.cell.hold,
        dynamic_sampling=run.cell.filter,
        max_gen_batches=1000,
        max_straggler_rate=run.limit,
        tradeoff=tradeoff,
        objective="size" if fixed else run.policy,
        seed=run.seed,
    )
    workload = WORKLOADS[run.cell.workload]
    # A group is all its rollouts: with a response_ratio above 1 it would be the short ones of them.
    policy = parse_policy((run.policy if fixed else "sagc") + ("+tail:1" if run.cell.tail else ""))
    source = WorkloadSource(workload, run.seed)
    costs = CostModel.load(ENGINES / "h100-7b.json")
    training = train(policy, run.cell.gpus, source, costs, arguments)  # type: ignore[arg-type]
    slow = replace(
        costs, **{name: 2 * cost for name, cost in vars(costs).items() if name.startswith(("decode", "prefill"))}
    )
    for engine in training.cluster.engines[: round(workload.slow_share * run.cell.gpus)]:
        engine.costs = slow
    rows = []
    for number in range(steps):
        source.progress = number / steps
        rows.append(training.step())
    table = pd.DataFrame(rows)
    effective = (table["samples"] * (1 - 1 / table["group_size"])).sum()
    return {
        **run.cell._asdict(),
        "policy": run.policy,
        "limit": run.limit,
        "seed": run.seed,
        "effective_per_second": effective / table["seconds"].sum(),
        "straggler_rate": table["straggler_rate"].mean(),
        "group_size": table["group_size"].mean(),
        "changes": (table["group_size"].diff().iloc[1:] != 0).mean(),
        "steps": steps,
        "batch_size": batch_size,
        "tradeoff": tradeoff,
    }


def key_of(row: dict) -> tuple:
    """What two rows of the same run agree in."""
    return tuple(row[name] for name in (*CELL, "policy", "limit", "seed", *SETTINGS))


def shares(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and limit: the best fixed size, and each policy's share of its effective samples a second."""
    rows = []
    means = runs.groupby([*CELL, "policy", "limit"], sort=False).mean().drop(columns="seed")
    for cell, table in means.groupby(CELL, sort=False):
        table = table.droplevel(CELL)
        fixed = table.loc[[(f"fixed:{size}", LIMITS[0]) for size in SIZES]].droplevel("limit")
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
    """A row for each limit and policy: mean and least share over the cells; fixed sizes under the limit that all keep."""
    rows = []
    for limit, of_limit in table.groupby("limit", sort=False):
        policies = ["size", "throughput", *([f"fixed:{size}" for size in SIZES] if limit == LIMITS[0] else [])]
        for policy in policies:
            share = of_limit[policy]
            rows.append({"limit": limit, "policy": policy, "mean share": share.mean(), "least share": share.min()})
            if policy in ("size", "throughput"):
                feasible = of_limit[of_limit["least rate"] <= limit]
                rows[-1]["highest rate"] = feasible[f"rate of {policy}"].max()
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four cells and 30 steps: whether the command works")
    parser.add_argument("--gpus", type=int, nargs="+", choices=GPUS, default=list(GPUS))
    parser.add_argument("--steps", type=int, help="of a run; 100, or 30 if quick")
    parser.add_argument("--batch_size", type=int, default=64, help="prompts of a step at 8 samples each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tradeoff", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--output", type=output_folder, help="folder; eval/results/objectives, or build/objectives if quick"
    )
    arguments = parser.parse_args()
    arguments.output = arguments.output or (ROOT / "build" if arguments.quick else RESULTS) / "objectives"
    arguments.output.mkdir(parents=True, exist_ok=True)
    settings = dict(
        zip(SETTINGS, (arguments.steps or (30 if arguments.quick else 100), arguments.batch_size, arguments.tradeoff))
    )
    file = arguments.output / "runs.csv"
    rows = pd.read_csv(file).to_dict("records") if file.exists() else []
    runs = [run for cell in cells(arguments.gpus, arguments.quick) for run in runs_of(cell, arguments.seeds)]
    keys = {(*run.cell, *run[1:], *settings.values()): run for run in runs}
    left = [run for key, run in keys.items() if key not in set(map(key_of, rows))]
    with (
        ProcessPoolExecutor(arguments.processes, initializer=os.nice, initargs=(19,)) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        measured = pool.map(measure, left, *([value] * len(left) for value in settings.values()))
        for row in progress.track(measured, total=len(left), description="simulating"):
            rows.append(row)
            pd.DataFrame(rows).to_csv(file, index=False, float_format="%.5g")
    written = pd.read_csv(file).to_dict("records")  # rounded, as a later start reads them
    of_cells = shares(pd.DataFrame(row for row in written if key_of(row) in keys))
    of_cells.to_csv(arguments.output / "cells.csv", index=False, float_format="%.4g")
    show(f"share of the best fixed size's effective samples a second, {settings['steps']} steps", of_cells.round(3))
    show("over all cells", summary(of_cells).round(3))


if __name__ == "__main__":
    main()
