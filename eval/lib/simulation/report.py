"""Table and plot of simulated runs."""

from pathlib import Path

import numpy as np
import pandas as pd
from lib.plots import plt, save
from matplotlib.ticker import LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

PANELS = {
    "seconds": "s a step",
    "idle_fraction": "idle fraction",
    "straggler_rate": "straggler rate",
    "prompts_an_hour": "prompts an hour",
    "group_size": "mean group size",
}
LOGARITHMIC = ("seconds", "prompts_an_hour", "group_size")
# Line and filling of markers with (+tail, +lengths).
STYLES = {
    (False, False): ("-", "full"),
    (True, False): (":", "left"),
    (False, True): ("--", "none"),
    (True, True): ("-.", "right"),
}


SHARES = {
    f"{name}_tenth_{of}": f"{name} tenth: {of}" for name in ("longest", "shortest") for of in ("tokens", "update")
}


def print_table(rows: pd.DataFrame) -> None:
    """The figures of each run, then what the prompts with the longest and the shortest responses have of the update."""
    columns = {
        "gpus": "GPUs",
        "policy": "policy",
        "group_size": "mean group size",
        "seconds": "s a step",
        "generation_seconds": "generation s",
        "idle_fraction": "idle fraction",
        "long_round": "long rounds",
        "sorted_round": "sorted",
        "wasted_share": "tokens wasted",
        "trained_length_ratio": "length ratio",
        "straggler_rate": "straggler rate",
        "prompts_an_hour": "prompts an hour",
        "samples_an_hour": "samples an hour",
        "preemptions": "preemptions",
    }
    _print(rows, columns, f"{rows['steps'].iloc[0]} simulated steps, means")
    _print(rows, {"gpus": "GPUs", "policy": "policy", **SHARES}, "shares of the last 100 steps' tokens and updates")


def _print(rows: pd.DataFrame, columns: dict[str, str], title: str) -> None:
    table = Table(title=title)
    for label in columns.values():
        name = label == "policy"
        table.add_column(label, justify="left" if name else "right", no_wrap=name)
    ends = rows["gpus"].ne(rows["gpus"].shift(-1))
    for row, end in zip(rows[list(columns)].itertuples(index=False), ends):
        cells = (f"{cell:,.0f}" if cell >= 1000 else f"{cell:.3g}" for cell in row if not isinstance(cell, str))
        table.add_row(str(row.gpus), row.policy, *list(cells)[1:], end_section=end)
    Console(width=150).print(table)


def plot(rows: pd.DataFrame, limit: float, path: Path) -> None:
    """A row a hold, a panel a figure: against the number of GPUs, or the mean group size where there is one number."""
    x, label_of_x = ("gpus", "GPUs") if rows["gpus"].nunique() > 1 else ("group_size", "mean group size")
    names = rows["policy"].str.split("@", expand=True).set_axis(["kind", "hold"], axis=1)
    holds, kinds = names["hold"].unique(), names["kind"].unique()
    panels = {name: label for name, label in PANELS.items() if name != x}
    size = (3 * len(panels), 0.8 + 2.9 * len(holds))
    figure, axes = plt.subplots(len(holds), len(panels), figsize=size, squeeze=False, layout="constrained")
    shades = dict(zip(kinds, plt.cm.viridis(np.linspace(0, 0.85, len(kinds)))))
    for line, hold in zip(axes, holds):
        for axis, (name, label) in zip(line, panels.items()):
            for kind, run in rows[names["hold"] == hold].groupby(names["kind"], sort=False):
                color, marker = ("C3", "D") if kind.startswith("sagc") else (shades[kind], "o")
                style, fill = STYLES["+tail" in kind, "+lengths" in kind]
                look = {"marker": marker, "markersize": 5, "fillstyle": fill, "color": color}
                axis.plot(run[x], run[name], style, label=kind, **look)
            if name == "straggler_rate":
                axis.axhline(limit, color="black", linestyle="--", linewidth=1)
            axis.set_xscale("log", base=2)
            if x == "gpus":
                axis.set_xticks(rows[x].unique())
            axis.xaxis.set_major_formatter("{x:.0f}")
            if name in LOGARITHMIC:
                axis.set_yscale("log", base=2 if name == "group_size" else 10)
                subs = (1,) if name == "group_size" else (1, 2, 5)
                axis.yaxis.set_major_locator(LogLocator(2 if name == "group_size" else 10, subs))
                axis.yaxis.set_major_formatter("{x:,.0f}")
                axis.yaxis.set_minor_formatter(NullFormatter())
            axis.tick_params(labelsize="small")
            axis.set_title(f"constant {hold}: {label}", fontsize="small")
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel(label_of_x)
    handles = {label: handle for line in axes for handle, label in zip(*line[0].get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize="small")
    save(figure, path)
