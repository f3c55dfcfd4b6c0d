"""Group control against the fixed sizes 4, 8, 16 and 32, at a constant number of samples and of prompts a step.

It trains the Countdown model ten times on the CPU stack with a learning rate of 0, so that all runs sample from the same
policy and differ by their group sizes only. A fixed size is a run that has no other candidate. It needs a folder that
train_scripts/quickstart.sh has made, and writes table.csv, table.md and group_sizes.png. Started again, it keeps the runs
that are finished.
"""

import argparse
import sys
import time
from pathlib import Path

import pandas as pd
from common.group_size_runs import SIZES, flags_of, run
from common.paths import QUICKSTART, ROOT, check_task
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
DIGITS = {"straggler rate": 3, "idle fraction": 3, "rollout s a step": 2, "s a step": 2}  # in the report


def summary(hold: str, policy: str, steps: pd.DataFrame) -> dict:
    """One row of the table: means over the steps, medians of the seconds."""
    row = {"hold": hold, "policy": policy, "steps": len(steps)}
    for column, label in COLUMNS.items():
        row[label] = steps[column].median() if column.startswith("timing/") else steps[column].mean()
    row["ms a sample"] = 1000 * row["s a step"] / row["samples a step"]
    return row


def plot(table: pd.DataFrame, limit: float, path: Path) -> None:
    labels = ["straggler rate", "idle fraction", "step maximum (tokens)", "s a step"]
    figure, axes = plt.subplots(2, len(labels), figsize=(13, 6), sharex=True, sharey="col", layout="constrained")
    for row, (hold, runs) in zip(axes, table.groupby("hold", sort=False)):
        fixed, control = runs[runs["policy"] != "sagc"], runs[runs["policy"] == "sagc"]
        for axis, label in zip(row, labels):
            axis.plot(fixed["mean group size"], fixed[label], "o-", color="gray", label="fixed size")
            axis.plot(control["mean group size"], control[label], "D", color="C3", label="group control")
            if label == "straggler rate":
                axis.axhline(limit, color="black", linestyle="--", linewidth=1, label="limit")
            axis.set_xscale("log", base=2)
            axis.set_xticks(SIZES, SIZES)
            axis.set_title(f"constant {hold}: {label}", fontsize="medium")
            axis.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    for axis in axes[-1]:
        axis.set_xlabel("mean group size")
    save(figure, path)


def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    """Every run; a row each."""
    console, rows = Console(), []
    for hold in ("samples", "prompts"):
        for policy, sizes in [*((f"fixed {size}", [size]) for size in SIZES), ("sagc", SIZES)]:
            started = time.monotonic()
            flags = flags_of(hold, sizes, arguments.steps)
            flags += ["--rollout.sagc.max_straggler_rate", str(arguments.max_straggler_rate)]
            folder = arguments.output / f"{hold}-{policy.replace(' ', '-')}"
            rows.append(summary(hold, policy, run(arguments.task.resolve(), folder.resolve(), flags)))
            console.print(f"constant {hold}, {policy}: {rows[-1]['steps']} steps, {time.monotonic() - started:.0f} s")
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument("--output", type=Path, default=ROOT / "build/group_sizes", help="folder for logs and results")
    parser.add_argument("--steps", type=int, default=60, help="steps a run, about")
    parser.add_argument("--max_straggler_rate", type=float, default=0.2)
    arguments = parser.parse_args()
    try:
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
