"""Table and page of one training run, patched or not, by its log, and of held-out results before and after it if given.

RUN is what `compare.py report` takes: OUTPUT of a launch script, a folder with event files, an export of W&B, a log.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from lib.given import json_of, reading
from lib.paths import output_folder
from lib.run_logs.read import read
from lib.run_report import waiting
from lib.run_report.measured import Arm, Measured, measure
from lib.run_report.write import plain, write_report
from lib.tables import reader_may_leave
from rich.console import Console
from rich.table import Table

from openrlhf_sagc.redaction import visible

ENDS = 10  # steps at the start and at the end of the run whose rewards are averaged
SHARES = {"heldout_reward": "reward", "heldout_solved": "solved by most"}  # of eval/evaluate.py


def summary(run: Measured, heldout: dict | None) -> dict[str, float | None]:
    """The figures of the table; None for what is not logged."""
    steps = run.steps
    figures = {"steps": len(steps)}
    if heldout:
        for when, model in zip(("before", "after"), heldout["models"]):
            figures |= {f"{name}_{when}": model["figures"][share]["value"] for name, share in SHARES.items()}
    return figures | {
        "train_reward_first": steps["reward"].head(ENDS).mean(),
        "train_reward_last": steps["reward"].tail(ENDS).mean(),
        "group_size_mean": steps["group_size"].mean(),
        "straggler_rate": steps["straggler_rate"].mean(),
        "max_straggler_rate": run.kept.get("flags", {}).get("rollout.sagc.max_straggler_rate", np.nan),
        "idle_fraction": steps["idle_fraction"].mean(),
        "seconds_per_step": run.later["seconds"].median(),
    }


def print_table(figures: dict[str, float | None], heldout: dict | None) -> None:
    """The figures that are known."""
    table = Table(title=f"{figures['steps']} training steps")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    show = lambda name, digits=3: f"{figures[name]:.{digits}f}"  # noqa: E731
    if heldout:
        samples = f"{heldout['problems']} prompts, {heldout['samples']} samples each"
        for name, label in (
            ("heldout_reward", f"reward ({samples})"),
            ("heldout_solved", "solved share (by most samples)"),
        ):
            table.add_row(f"held-out {label}", show(f"{name}_before"), show(f"{name}_after"))
    if figures["train_reward_first"] is not None:
        label = f"training reward (first and last {ENDS} steps)"
        table.add_row(label, show("train_reward_first"), show("train_reward_last"), end_section=True)
    rows = {
        "group_size_mean": ("mean group size", 1),
        "straggler_rate": ("straggler rate", 3),
        "max_straggler_rate": ("its limit", 3),
        "idle_fraction": ("idle fraction of decode slots", 3),
        "seconds_per_step": ("seconds a step (median, behind the first)", 2),
    }
    for name, (label, digits) in rows.items():
        if figures[name] is not None:
            table.add_row(label, "", show(name, digits))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder, export or log of one run")
    parser.add_argument("--heldout", type=Path, help="JSON of eval/evaluate.py: before and after the run")
    parser.add_argument("--output", type=output_folder, required=True, help="folder for report.html and report.json")
    arguments = parser.parse_args()
    try:
        with reading(arguments.run):
            run = measure(read(arguments.run), 0)
        with reading(arguments.heldout or arguments.run):
            heldout = json_of(arguments.heldout) if arguments.heldout else None
            figures = plain(summary(run, heldout))
    except ValueError as error:
        sys.exit(visible(f"eval/report.py: {error}"))
    arm = Arm(Path(arguments.run).resolve().name, [run])
    write_report([arm], arguments.output)
    (arguments.output / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    with reader_may_leave():
        print_table(figures, heldout)
        for line in waiting.lines([arm]):
            print(visible(line))
        print(arguments.output / "report.html")


if __name__ == "__main__":
    main()
