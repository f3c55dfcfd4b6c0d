"""What each flag of group control does: straggler rate, group size, its changes and seconds, one flag varied at a time.

Every run is simulated (lib/simulation), on two kinds of lengths and with either quantity held at every group size. It
writes defaults.csv, a row a run, and defaults.png.
"""

import itertools
from pathlib import Path

import pandas as pd
from lib.paths import ENGINES, STUDIES, study_flags
from lib.plots import plt, save
from lib.simulation.lengths import LogNormal, Trace
from lib.simulation.runs import started
from rich.progress import track

DEFAULTS = {"max_straggler_rate": 0.2, "straggler_ratio": 2.5, "tradeoff": 2.0, "discount": 0.98}
VALUES = {
    "max_straggler_rate": (0.05, 0.1, 0.2, 0.3, 0.4, 0.6),
    "straggler_ratio": (1.75, 2.0, 2.5, 3.0, 4.0),
    "tradeoff": (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    "discount": (0.8, 0.9, 0.95, 0.98, 0.99, 1.0),
}
FIRST, STEPS, SEEDS = 50, 400, (0, 1, 2)
COUNTDOWN = {"gpus": 1, "engine": ENGINES / "cpu-2-cores.json", "batch_size": 16, "prompt_tokens": 20}
REASONING = {"gpus": 64, "engine": ENGINES / "h100-7b.json", "batch_size": 64}
SETTINGS = {
    "countdown": (lambda: Trace(STUDIES / "simulate/countdown.csv"), COUNTDOWN),
    "reasoning": (lambda: LogNormal(median=955, between=1.3, within=0.48, cap=16384), REASONING),
}
PANELS = {
    "straggler_rate_first": f"straggler rate, first {FIRST} steps",
    "straggler_rate": f"straggler rate, {STEPS} steps",
    "group_size": "mean group size",
    "changes": "changes of size a step",
    "seconds": "s a step",
}


def measure(lengths: str, hold: str, flags: dict[str, float], seed: int) -> dict[str, float]:
    """One run: means over its steps."""
    source, setting = SETTINGS[lengths]
    run = started("sagc", source=source(), hold=hold, objective="size", seed=seed, **setting, **flags)
    steps = pd.DataFrame([run.step() for _ in range(STEPS)])
    return {
        "straggler_rate_first": steps["straggler_rate"][:FIRST].mean(),
        "straggler_rate": steps["straggler_rate"].mean(),
        "group_size": steps["group_size"].mean(),
        "changes": (steps["group_size"].diff().iloc[1:] != 0).mean(),
        "seconds": steps["seconds"].mean(),
    }


def sweep() -> pd.DataFrame:
    """A row for each setting, hold, flag and value: means over the seeds."""
    flags = [(flag, value) for flag, values in VALUES.items() for value in values]
    rows = []
    for lengths, hold, (flag, value) in track([*itertools.product(SETTINGS, ("samples", "prompts"), flags)]):
        measured = [measure(lengths, hold, {**DEFAULTS, flag: value}, seed) for seed in SEEDS]
        row = {"lengths": lengths, "hold": hold, "flag": flag, "value": value}
        rows.append(row | pd.DataFrame(measured).mean().to_dict())
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame, path: Path) -> None:
    """A row a flag, a panel a figure; a line for each of lengths and hold, a grey line at the default."""
    size = (3 * len(PANELS), 0.4 + 2.5 * len(VALUES))
    figure, axes = plt.subplots(len(VALUES), len(PANELS), figsize=size, squeeze=False, layout="constrained")
    for line, (flag, of_flag) in zip(axes, rows.groupby("flag", sort=False)):
        for axis, (panel, label) in zip(line, PANELS.items()):
            for (name, hold), run in of_flag.groupby(["lengths", "hold"], sort=False):
                scale = run[panel][run["value"] == DEFAULTS[flag]].item() if panel == "seconds" else 1
                color, style = "C0" if name == "countdown" else "C3", "-" if hold == "samples" else "--"
                axis.plot(run["value"], run[panel] / scale, style, color=color, marker=".", label=f"{name}, {hold}")
            if panel.startswith("straggler_rate"):
                ends = VALUES[flag] if flag == "max_straggler_rate" else axis.get_xlim()
                limits = VALUES[flag] if flag == "max_straggler_rate" else [DEFAULTS["max_straggler_rate"]] * 2
                axis.plot(ends, limits, color="black", linestyle=":", linewidth=1)
            axis.axvline(DEFAULTS[flag], color="0.8", zorder=0)
            axis.set_xscale("log" if flag == "tradeoff" else "linear")
            axis.set_xlabel(flag, fontsize="small")
            axis.set_title(label + (", over the default's" if panel == "seconds" else ""), fontsize="small")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    save(figure, path, dpi=100)


def main() -> None:
    arguments = study_flags(__doc__, Path(__file__).parent).parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = sweep()
    rows.to_csv(arguments.output / "defaults.csv", index=False, float_format="%.4g")
    plot(rows, arguments.output / "defaults.png")
    print(rows.to_string(index=False, float_format=lambda number: f"{number:.3g}"))
