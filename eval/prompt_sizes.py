"""A group size for each prompt, from what its earlier groups showed, against one size for all; simulated training.

The policies are a fixed size, group control with the objective throughput and no limit, and sizes by prompt. These have a
given mean and come from the success rate that a prompt's earlier groups showed ("rate"), from their length ("length"), from
both ("rate and length"), or from the true ones ("oracle"). Prompts come in the same order for all policies. A run is simulated
from its first step on, so that learning counts. Each is measured in two ways, for advantages that are not divided by the
group's standard deviation ("plain") and for those that are ("standardised"); the results' README.md says how.

It writes runs.csv, a row a run, table.csv, a row a cell and policy, and prints the table. Started again, it leaves out the
runs that runs.csv has: delete the file after a change of the code.
"""

import argparse
import itertools
import math

import numpy as np
import pandas as pd
from common.paths import ENGINES, RESULTS, ROOT, output_folder
from common.policies import parse_policy
from common.tables import show
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from simulation.costs import CostModel
from simulation.flags import default_arguments, training_arguments
from simulation.prompt_sizes import (
    SIZES,
    Learned,
    Oracle,
    SizesByPrompt,
    chance_of_signal,
    effective_samples,
    noise,
)
from simulation.training import SimulatedTraining
from simulation.workloads import WORKLOADS, WorkloadSource

from openrlhf_sagc.policies import build_planner

FIXED = [f"fixed:{size}" for size in SIZES]
BY_PROMPT = ("rate", "length", "rate and length", "oracle")
POLICIES = [*FIXED, "throughput", *BY_PROMPT]
MEASURES = ("plain", "standardised")
CELL = ["gpus", "workload", "filter"]
SETTINGS = ["steps", "batch_size", "mean_size"]
KEY = [*CELL, "policy", "seed", *SETTINGS]
STUDENT_95 = {
    2: 12.71,
    3: 4.303,
    4: 3.182,
    5: 2.776,
}  # half width of an interval of so many values, in standard errors


def training_of(run: dict) -> tuple[SimulatedTraining, WorkloadSource]:
    """A run that has not begun, and its source.

    Args:
        run: the values of KEY.
    """
    policy, samples = run["policy"], run["batch_size"] * 8
    first = int(policy.removeprefix("fixed:")) if policy in FIXED else run["mean_size"]
    arguments = default_arguments(
        batch_size=samples // first,
        n_samples_per_prompt=first,
        group_sizes=list(SIZES),
        hold="samples",
        dynamic_sampling=run["filter"],
        max_gen_batches=1000,
        max_straggler_rate=0.95,
        objective="throughput" if policy == "throughput" else "size",
    )
    workload, seed, gpus = WORKLOADS[run["workload"]], run["seed"], run["gpus"]
    source = WorkloadSource(workload, seed, order=np.random.default_rng([seed, 1]))
    word = "sagc" if policy == "throughput" else f"fixed:{first}"
    planner = build_planner(training_arguments(parse_policy(word), arguments), num_engines=gpus)
    if policy in BY_PROMPT:
        learned = Learned(by_rate="rate" in policy, by_length="length" in policy)
        knowledge = Oracle(source) if policy == "oracle" else learned
        policies = planner.controller, planner.sampler, planner.batcher
        planner = SizesByPrompt(*policies, knowledge=knowledge, samples=samples, num_engines=gpus)
    costs = CostModel.load(ENGINES / "h100-7b.json")
    training = SimulatedTraining(planner, source, costs, gpus=gpus, prompt_tokens=256, seed=seed)  # type: ignore[arg-type]
    return training, source


def measure(run: dict) -> dict:
    """The run with its effective samples a second, by each measure, and means over its steps."""
    training, source = training_of(run)
    rows = []
    for number in range(run["steps"]):
        source.progress = number / run["steps"]
        step = training.step()
        rates_P = source.success_rates([group.prompt.label for group in training.judged])
        sizes_P = np.array([group.size for group in training.judged])
        chance_P = chance_of_signal(rates_P, sizes_P)
        plain = effective_samples(noise(rates_P), sizes_P)
        standardised = effective_samples(chance_P, sizes_P, chance_P.sum())
        rows.append({**step, "plain": plain, "standardised": standardised, "judged": int(sizes_P.sum())})
    table = pd.DataFrame(rows)
    per_second = {name: table[name].sum() / table["seconds"].sum() for name in MEASURES}
    means = table[["straggler_rate", "seconds", "samples", "judged"]].mean().to_dict()
    return {**run, **per_second, **means}


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each cell and policy: its effective samples a second over those of the best fixed size, by each measure.

    The best fixed size is that of the mean over the seeds. A share is the mean of the seeds' shares, with the half width of
    its 95 % interval, which is missing for a single seed.
    """
    rows = []
    for cell, table in runs.groupby(CELL, sort=False):
        figures = {name: table.pivot(index="seed", columns="policy", values=name) for name in MEASURES}
        best = {name: figures[name][FIXED].mean().idxmax() for name in MEASURES}
        for policy in POLICIES:
            of_policy = table[table["policy"] == policy]
            row = {**dict(zip(CELL, cell)), "policy": policy}
            for name in MEASURES:
                shares = figures[name][policy] / figures[name][best[name]]
                width = STUDENT_95.get(len(shares), math.nan) * shares.std() / math.sqrt(len(shares))
                row |= {
                    f"best {name}": int(best[name].removeprefix("fixed:")),
                    name: shares.mean(),
                    f"{name} ±": width,
                }
                row[f"{name} a second"] = of_policy[name].mean()
            means = of_policy[["straggler_rate", "seconds", "samples", "judged"]].mean()
            rows.append({**row, **means.to_dict()})
    return pd.DataFrame(rows)


def overview(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A row for each cell: the best fixed size by a measure, the shares of the others, and two straggler rates."""
    rows = []
    for cell, of_cell in table.groupby(CELL, sort=False):
        of_cell = of_cell.set_index("policy")
        best, rates = of_cell[f"best {measure}"].iloc[0], of_cell["straggler_rate"]
        row = {**dict(zip(CELL, cell)), "best": best, **of_cell[measure][["throughput", *BY_PROMPT]]}
        row["±"] = of_cell[f"{measure} ±"]["rate and length"]
        rows.append({**row, "rate of best": rates[f"fixed:{best}"], "rate of both": rates["rate and length"]})
    return pd.DataFrame(rows).rename(columns={"rate and length": "both"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="two cells, one seed and 10 steps: whether the command works"
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 64, 1024])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["mid", "learning", "hard"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="up to 5 for an interval")
    parser.add_argument("--steps", type=int, default=100, help="of a run")
    parser.add_argument("--batch_size", type=int, default=128, help="prompts of a step at 8 samples each")
    parser.add_argument("--mean_size", type=int, choices=SIZES, default=16, help="of the sizes by prompt")
    parser.add_argument(
        "--output", type=output_folder, help="folder; eval/results/prompt_sizes, or build/prompt_sizes if quick"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.gpus, arguments.workloads, arguments.seeds, arguments.steps = [64], ["hard"], arguments.seeds[:1], 10
    output = arguments.output or (ROOT / "build" if arguments.quick else RESULTS) / "prompt_sizes"
    output.mkdir(parents=True, exist_ok=True)
    file = output / "runs.csv"
    rows = pd.read_csv(file).to_dict("records") if file.exists() else []
    settings = [getattr(arguments, name) for name in SETTINGS]
    cells = itertools.product(arguments.seeds, (False, True), arguments.workloads, arguments.gpus, POLICIES)
    runs = [
        dict(zip(KEY, (gpus, workload, filtering, policy, seed, *settings)))
        for seed, filtering, workload, gpus, policy in cells
    ]
    done = [{name: row[name] for name in KEY} for row in rows]
    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for run in progress.track([run for run in runs if run not in done]):
            rows.append(measure(run))
            pd.DataFrame(rows).to_csv(file, index=False, float_format="%.5g")
    written = pd.read_csv(file).to_dict("records")  # rounded, as a later start reads them
    table = compared(pd.DataFrame([row for row in written if {name: row[name] for name in KEY} in runs]))
    table.to_csv(output / "table.csv", index=False, float_format="%.4g")
    for name in MEASURES:
        show(f"{name}: share of the best fixed size's effective samples a second", overview(table, name).round(3))


if __name__ == "__main__":
    main()
