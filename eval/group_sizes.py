"""Group control against the fixed sizes 4, 8, 16 and 32, at a constant number of samples and of prompts a step.

Trains the Countdown model ten times on the CPU stack with a learning rate of 0, so that all runs sample from the same
policy and differ by their group sizes only. A fixed size is a run whose only candidate it is. Needs a folder that
train_scripts/quickstart.sh has made. Writes table.csv, table.md and group_sizes.png. Started again, it keeps the runs
that are finished.
"""

import argparse
import subprocess
import time
from pathlib import Path

import matplotlib
import pandas as pd
from report import read_run
from rich.console import Console

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]
SIZES = [4, 8, 16, 32]
SAMPLES, PROMPTS = 64, 4  # of a step, where they are held; few enough that a step is as long as its longest rollout
WARM_UP = 5  # first steps, which are left out
COLUMNS = {
    "sagc/group_size": "mean group size",
    "sagc/straggler_rate": "straggler rate",
    "rollout/num_samples": "samples a step",
    "rollout/response_length_max": "step maximum (tokens)",
    "rollout/idle_fraction": "idle fraction",
    "timing/generation": "rollout s a step",
    "timing/step_total": "s a step",
}


def flags_of(hold: str, sizes: list[int], steps: int) -> list[str]:
    """Flags of one run, which takes about `steps` steps."""
    n = 8 if len(sizes) > 1 else sizes[0]
    batch_size = SAMPLES // n if hold == "samples" else PROMPTS
    usual_prompts = SAMPLES / (6 if len(sizes) > 1 else n) if hold == "samples" else PROMPTS
    settings = {
        "rollout.sagc.hold": hold,
        "rollout.sagc.group_sizes": sizes,
        "rollout.batch_size": batch_size,
        "rollout.n_samples_per_prompt": n,
        "train.batch_size": batch_size * n,
        "train.micro_batch_size": min(batch_size * n, 32),
        "rollout.micro_batch_size": min(batch_size * n, 32),
        "data.max_samples": round((steps + WARM_UP) * usual_prompts),
        "actor.adam.lr": 0,
    }
    words = ["--rollout.sagc.enable"]
    for flag, value in settings.items():
        words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def run(task: Path, output: Path, flags: list[str]) -> pd.DataFrame:
    """Train once, unless it has been done; the scalars of its steps without the warm-up."""
    output.mkdir(parents=True, exist_ok=True)
    done = output / "done"  # holds what the run was made with
    made_with = " ".join([str(task.resolve()), *flags])
    if not done.exists() or done.read_text() != made_with:
        done.unlink(missing_ok=True)
        with (output / "train.log").open("w") as log:
            command = ["bash", ROOT / "train_scripts/countdown/train.sh", "cpu-patched", task, output, *flags]
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        if code:
            raise SystemExit(f"eval/group_sizes.py: a run failed with exit code {code}, see {output / 'train.log'}")
        done.write_text(made_with)
    return read_run(output / "tensorboard" / "run").iloc[WARM_UP:]


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
    figure.savefig(path, dpi=110)
    plt.close(figure)


def markdown(table: pd.DataFrame) -> str:
    digits = {"straggler rate": 3, "idle fraction": 3, "rollout s a step": 2, "s a step": 2}
    rows = [
        [str(x) if isinstance(x, (str, int)) else f"{x:.{digits.get(c, 1)}f}" for c, x in row.items()]
        for _, row in table.iterrows()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [list(table.columns), ["---"] * len(table.columns), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", type=Path, default=ROOT / "build/quickstart/seed-0", help="warm-started task folder")
    parser.add_argument("--output", type=Path, default=ROOT / "build/group_sizes", help="folder for logs and results")
    parser.add_argument("--steps", type=int, default=60, help="steps a run, about")
    parser.add_argument("--max_straggler_rate", type=float, default=0.2)
    arguments = parser.parse_args()
    if not (arguments.task / "model").is_dir():
        raise SystemExit(
            f"eval/group_sizes.py: --task {arguments.task} holds no model: run train_scripts/quickstart.sh"
        )
    console, rows = Console(), []
    for hold in ("samples", "prompts"):
        for policy, sizes in [*((f"fixed {size}", [size]) for size in SIZES), ("sagc", SIZES)]:
            started = time.monotonic()
            flags = flags_of(hold, sizes, arguments.steps)
            flags += ["--rollout.sagc.max_straggler_rate", str(arguments.max_straggler_rate)]
            folder = arguments.output / f"{hold}-{policy.replace(' ', '-')}"
            rows.append(summary(hold, policy, run(arguments.task.resolve(), folder.resolve(), flags)))
            console.print(f"constant {hold}, {policy}: {rows[-1]['steps']} steps, {time.monotonic() - started:.0f} s")
    table = pd.DataFrame(rows)
    table.to_csv(arguments.output / "table.csv", index=False, float_format="%.4f")
    (arguments.output / "table.md").write_text(markdown(table))
    plot(table, arguments.max_straggler_rate, arguments.output / "group_sizes.png")
    print((arguments.output / "table.md").read_text())


if __name__ == "__main__":
    main()
