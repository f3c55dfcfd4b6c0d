"""Group control against the fixed sizes 4, 8, 16 and 32, at a constant number of samples or of prompts a step.

It trains the Countdown model on the CPU stack with a learning rate of 0, so that all runs sample from the same policy and
differ by their group sizes only. A fixed size is a run that has no other candidate; control is there with each objective
at the limit, and with the objective throughput where the limit is out of the way. The repetitions take turns. N samples in
groups of G count as N (G - 1) / G effective ones. It needs a folder that train_scripts/quickstart.sh has made, and writes
table.csv, table.md and group_sizes.png. Started again, it keeps the runs that are finished.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import pandas as pd
from common.group_size_runs import SIZES, flags_of, run
from common.paths import QUICKSTART, ROOT, check_task, output_folder
from common.plots import plt, save
from common.tables import markdown, rounded
from rich.console import Console

COLUMNS = {
    "sagc/group_size": "mean group size",
    "sagc/straggler_rate": "straggler rate",
    "rollout/num_samples": "samples a step",
    "rollout/response_length_max": "step maximum (tokens)",
    "rollout/idle_fraction": "idle fraction",
    "timing/generation": "rollout s a step",
    "timing/step_total": "s a step",
}
EFFECTIVE = "effective samples a second"
DIGITS = {"straggler rate": 3, "idle fraction": 3, "rollout s a step": 2, "s a step": 2, "share of the best": 3}
NO_LIMIT = 0.95
FREE = f"throughput, limit {NO_LIMIT:g}"
HOLDS = ("samples", "prompts")


def summary(hold: str, policy: str, runs: list[pd.DataFrame]) -> dict:
    """One row of the table: means over the steps of all repetitions, medians of the seconds."""
    steps = pd.concat(runs)
    row = {"hold": hold, "policy": policy, "runs": len(runs), "steps": len(steps)}
    for column, label in COLUMNS.items():
        row[label] = steps[column].median() if column.startswith("timing/") else steps[column].mean()
    effective = steps["rollout/num_samples"] * (1 - 1 / steps["sagc/group_size"])
    return row | {EFFECTIVE: effective.sum() / steps["timing/step_total"].sum()}


def arms(limit: float) -> dict[str, tuple[list[int], list[str]]]:
    """Group sizes and flags of every policy."""
    found = {f"fixed {size}": ([size], []) for size in SIZES}
    for objective, most in (("throughput", NO_LIMIT), ("throughput", limit), ("size", limit)):
        flags = ["--rollout.sagc.objective", objective, "--rollout.sagc.max_straggler_rate", str(most)]
        found[f"{objective}, limit {most:g}"] = SIZES, flags
    return found


def with_shares(table: pd.DataFrame, limit: float) -> pd.DataFrame:
    """The table with each policy's effective samples a second over those of the best fixed size that meets its limit.

    Fixed sizes have none, and are compared with the best of all. The smallest stands in where none meets the limit.
    """
    shares = []
    for _, row in table.iterrows():
        fixed = table[(table["hold"] == row["hold"]) & table["policy"].str.startswith("fixed")]
        if row["policy"].endswith(f"limit {limit:g}"):
            fixed = fixed[fixed["straggler rate"] <= limit] if (fixed["straggler rate"] <= limit).any() else fixed[:1]
        shares.append(row[EFFECTIVE] / fixed[EFFECTIVE].max())
    return table.assign(**{"share of the best": shares})


def plot(table: pd.DataFrame, limit: float, path: Path) -> None:
    labels = ["straggler rate", "step maximum (tokens)", "s a step", EFFECTIVE]
    holds = table["hold"].nunique()
    figure, axes = plt.subplots(
        holds, len(labels), figsize=(13, 3 * holds), sharex=True, sharey="col", layout="constrained", squeeze=False
    )
    for row, (hold, runs) in zip(axes, table.groupby("hold", sort=False)):
        is_fixed = runs["policy"].str.startswith("fixed")
        fixed = runs[is_fixed]
        for axis, label in zip(row, labels):
            axis.plot(fixed["mean group size"], fixed[label], "o-", color="gray", label="fixed size")
            for color, (_, control) in zip(("C3", "C1", "C0"), runs[~is_fixed].iterrows()):
                axis.plot(control["mean group size"], control[label], "D", color=color, label=control["policy"])
            if label == "straggler rate":
                axis.axhline(limit, color="black", linestyle="--", linewidth=1, label="limit")
            axis.set_xscale("log", base=2)
            axis.set_xticks(SIZES, SIZES)
            axis.set_title(f"constant {hold}: {label}", fontsize="small")
            axis.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    for axis in axes[-1]:
        axis.set_xlabel("mean group size")
    save(figure, path)


def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    """Every run, a row for each hold and policy."""
    console, runs = Console(), {}
    policies = arms(arguments.max_straggler_rate)
    cases = [(hold, policy) for hold in arguments.holds for policy in policies]
    total = len(cases) * arguments.repetitions
    begun = time.monotonic()
    for number, (repetition, (hold, policy)) in enumerate(itertools.product(range(arguments.repetitions), cases), 1):
        sizes, flags = policies[policy]
        folder = arguments.output / f"{hold}-{policy.replace(' ', '-').replace(',', '')}-{repetition}"
        usual_size = 16 if policy == FREE else 6  # a run may have up to twice the steps
        flags = [*flags_of(hold, sizes, arguments.steps, usual_size), *flags, "--train.seed", str(repetition)]
        steps = run(arguments.task.resolve(), folder.resolve(), flags).iloc[: arguments.steps]
        runs.setdefault((hold, policy), []).append(steps)
        left = (time.monotonic() - begun) / number * (total - number) / 60
        console.print(f"constant {hold}, {policy}, repetition {repetition}: {len(steps)} steps; {left:.0f} min left")
    return with_shares(pd.DataFrame([summary(*case, of) for case, of in runs.items()]), arguments.max_straggler_rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument(
        "--output", type=output_folder, default=ROOT / "build/group_sizes", help="folder for logs and results"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps a run, about")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--holds", nargs="+", choices=HOLDS, default=list(HOLDS))
    parser.add_argument("--max_straggler_rate", type=float, default=0.2)
    arguments = parser.parse_args()
    try:
        if arguments.max_straggler_rate >= NO_LIMIT:
            raise ValueError(f"--max_straggler_rate must be below {NO_LIMIT}, got {arguments.max_straggler_rate}")
        check_task(arguments.task)
        table = measure(arguments)
    except ValueError as error:
        sys.exit(f"eval/group_sizes.py: {error}")
    table.to_csv(arguments.output / "table.csv", index=False, float_format="%.4f")
    text = markdown(table, rounded(table, DIGITS, other_digits=1))
    (arguments.output / "table.md").write_text(text)
    plot(table, arguments.max_straggler_rate, arguments.output / "group_sizes.png")
    print(text)


if __name__ == "__main__":
    main()
