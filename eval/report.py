"""Table and plots of one training run: its TensorBoard log, and the held-out results before and after it."""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from lib.paths import output_folder
from lib.plots import PARTS, plt, save
from lib.run_logs.read import read_run
from rich.console import Console
from rich.table import Table

ENDS = 10  # steps at the start and at the end of the run whose rewards are averaged


def summary(run: pd.DataFrame, before: dict, after: dict, limit: float) -> dict[str, float]:
    """The figures of the table."""
    return {
        "steps": len(run),
        "heldout_reward_before": before["reward"]["value"],
        "heldout_reward_after": after["reward"]["value"],
        "heldout_solved_before": before["solved by most"]["value"],
        "heldout_solved_after": after["solved by most"]["value"],
        "train_reward_first": run["rollout/reward_mean"].head(ENDS).mean(),
        "train_reward_last": run["rollout/reward_mean"].tail(ENDS).mean(),
        "group_size_mean": run["sagc/group_size"].mean(),
        "straggler_rate": run["sagc/straggler_rate"].mean(),
        "max_straggler_rate": limit,
        "idle_fraction": run["rollout/idle_fraction"].mean(),
        "seconds_per_step": run["timing/step_total"].median(),
    }


def print_table(figures: dict[str, float], prompts: int, samples: int) -> None:
    """The figures; `prompts` held-out prompts had `samples` samples each."""
    table = Table(title=f"{figures['steps']} steps of GRPO with straggler-aware group control")
    for column in ("", "before", "after"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {
        f"held-out reward ({prompts} prompts, {samples} samples each)": "heldout_reward",
        "held-out solved share (by most samples)": "heldout_solved",
    }
    for label, key in rows.items():
        table.add_row(label, f"{figures[key + '_before']:.3f}", f"{figures[key + '_after']:.3f}")
    first, last = figures["train_reward_first"], figures["train_reward_last"]
    table.add_row(f"training reward (first and last {ENDS} steps)", f"{first:.3f}", f"{last:.3f}", end_section=True)
    table.add_row("mean group size", "", f"{figures['group_size_mean']:.1f}")
    rate = f"{figures['straggler_rate']:.3f} / {figures['max_straggler_rate']:.3f}"
    table.add_row("straggler rate / its limit", "", rate)
    table.add_row("idle fraction of decode slots", "", f"{figures['idle_fraction']:.3f}")
    table.add_row("seconds a step (median)", "", f"{figures['seconds_per_step']:.2f}")
    Console().print(table)


def plot(run: pd.DataFrame, limit: float, folder: Path) -> list[Path]:
    """Two PNG files: learning (reward, response length) and control (size, rate, queue); returns their paths."""
    panels = {
        "learning.png": [
            ("mean training reward", [("rollout/reward_mean", "reward")]),
            (
                "response length (tokens)",
                [("rollout/response_length_max", "longest"), ("rollout/response_length_median", "median")],
            ),
        ],
        "control.png": [
            ("group size", [("sagc/group_size", "samples per prompt")]),
            ("straggler rate", [("sagc/straggler_rate", "step"), ("sagc/straggler_rate_mean", "mean so far")]),
            ("virtual queue", [("sagc/virtual_queue", "queue")]),
        ],
    }
    paths = []
    for name, axes_of in panels.items():
        figure, axes = plt.subplots(len(axes_of), sharex=True, figsize=(8, 2.4 * len(axes_of)), layout="constrained")
        for axis, (label, lines) in zip(axes, axes_of):
            for column, legend in lines:
                axis.plot(run.index, run[column], label=legend, drawstyle="steps-mid" if "size" in column else None)
            if label == "mean training reward":
                axis.plot(run.index, run["rollout/reward_mean"].rolling(ENDS, 1).mean(), label=f"mean of {ENDS} steps")
            if label == "group size":
                axis.set_yscale("log", base=2)
                axis.yaxis.set_major_formatter("{x:.0f}")
            if label == "straggler rate":
                axis.axhline(limit, color="black", linestyle="--", linewidth=1, label="limit")
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
            # Above the lines: to look for the best place takes seconds in a long run.
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize="small")
        axes[-1].set_xlabel("step")
        paths.append(folder / name)
        save(figure, paths[-1], dpi=130)
    return paths


def plot_seconds(run: pd.DataFrame, path: Path) -> Path:
    """A PNG file with the parts of every step stacked; returns its path."""
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    seconds = run[[f"step_seconds/{name}" for name in PARTS]]
    totals = seconds.sum(axis=1)
    # An area, not a bar a step: a run may have 100,000.
    edges = [*(run.index - 0.5), run.index[-1] + 0.5]
    heights = pd.concat([seconds, seconds.tail(1)]).T.to_numpy()
    labels = [name.replace("_", " ") for name in PARTS]
    axis.stackplot(edges, heights, step="post", colors=list(PARTS.values()), labels=labels, linewidth=0)
    top = 1.1 * totals.iloc[1:].max()
    if totals.iloc[0] > top:  # vLLM and DeepSpeed warm up in it
        axis.set_ylim(0, top)
        note = f"step {run.index[0]}: {totals.iloc[0]:.0f} s"
        axis.annotate(note, (0.02, 0.94), xycoords="axes fraction", va="top", fontsize="small")
    axis.set_xlim(run.index[0] - 0.5, run.index[-1] + 0.5)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step")
    axis.set_ylabel("seconds")
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(PARTS), fontsize="small", frameon=False, columnspacing=1.2)
    save(figure, path, dpi=130)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensorboard", type=Path, required=True, help="log folder of one run")
    parser.add_argument(
        "--heldout", type=Path, required=True, help="JSON of eval/evaluate.py: before and after the run"
    )
    parser.add_argument("--max_straggler_rate", type=float, required=True, help="the run's limit")
    parser.add_argument("--output", type=output_folder, required=True, help="folder for report.json and the plots")
    arguments = parser.parse_args()
    try:
        run = read_run(arguments.tensorboard)
    except ValueError as error:
        sys.exit(f"eval/report.py: {error}")
    heldout = json.loads(arguments.heldout.read_text())
    before, after = (model["figures"] for model in heldout["models"])
    figures = summary(run, before, after, arguments.max_straggler_rate)
    print_table(figures, heldout["problems"], heldout["samples"])
    (arguments.output / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    seconds = plot_seconds(run, arguments.output / "seconds.png")
    for path in (*plot(run, arguments.max_straggler_rate, arguments.output), seconds):
        print(path)


if __name__ == "__main__":
    main()
