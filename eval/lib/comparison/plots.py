"""Plots of a comparison: reward over seconds, control over steps, where the seconds go."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.statistics import right_of
from lib.plots import plt, save
from lib.policies import parse_policy

PHASES = ["decoding", "idle_tail", "experience", "training", "sync"]
EVENLY = 100  # points of a curve over training seconds


def colors_of(policies: list[str]) -> dict[str, object]:
    """Shades of grey for fixed sizes, those of unpatched OpenRLHF alone if there are any, and colours for the others."""
    fixed = [policy for policy in policies if parse_policy(policy).is_fixed_size]
    fixed = [policy for policy in fixed if parse_policy(policy).kind == "unpatched"] or fixed
    shades = dict(zip(fixed, plt.cm.Greys(np.linspace(0.85, 0.35, max(len(fixed), 1)))))
    others = [policy for policy in policies if policy not in shades]
    return shades | dict(zip(others, itertools.cycle(["C3", "C0", "C2", "C1", "C4", "C5", "C6", "C8", "C9"])))


def plot_reward(evaluations: pd.DataFrame, settings: dict, path: Path) -> None:
    """Held-out reward over training seconds: mean over seeds, band from the lowest to the highest run."""
    algorithms = list(evaluations["algorithm"].unique())
    figure, axes = plt.subplots(1, len(algorithms), figsize=(6.5 * len(algorithms), 4.5), sharey=True, squeeze=False)
    for axis, algorithm in zip(axes[0], algorithms):
        mine = evaluations[evaluations["algorithm"] == algorithm]
        for policy, color in colors_of(list(mine["policy"].unique())).items():
            runs = [run for _, run in mine[mine["policy"] == policy].groupby("seed")]
            grid = np.linspace(max(r["seconds"].min() for r in runs), min(r["seconds"].max() for r in runs), EVENLY)
            curves = np.array([np.interp(grid, run["seconds"], right_of(run).mean(axis=1)) for run in runs])
            axis.plot(grid, curves.mean(axis=0), color=color, label=policy)
            axis.fill_between(grid, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.15, linewidth=0)
        axis.axhline(settings["target"], color="black", linestyle="--", linewidth=1, label="target")
        axis.set_title(f"{algorithm.upper()}: held-out reward")
        axis.set_xlabel("seconds of training")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.tight_layout()
    save(figure, path)


def plot_steps(steps: pd.DataFrame, settings: dict, path: Path) -> None:
    """Straggler rate so far against the limit, group size, virtual queue and response length over steps, by seed."""
    panels = {"straggler rate so far": "rate", "group size": "group_size", "virtual queue": "virtual_queue"}
    panels |= {"mean trained response (tokens)": "trained_length"}
    steps = steps.assign(rate=steps.groupby(["seed", "algorithm", "policy"])["straggler_rate"].transform(so_far))
    algorithms = list(steps["algorithm"].unique())
    figure, axes = plt.subplots(len(panels), len(algorithms), figsize=(6.5 * len(algorithms), 10), squeeze=False)
    for column, algorithm in zip(axes.T, algorithms):
        mine = steps[steps["algorithm"] == algorithm]
        for policy, color in colors_of(list(mine["policy"].unique())).items():
            for number, (_, run) in enumerate(mine[mine["policy"] == policy].groupby("seed")):
                for axis, name in zip(column, panels.values()):
                    line = run[name].rolling(5, 1).mean() if name == "trained_length" else run[name]
                    axis.plot(run["step"], line, color=color, alpha=0.8, label=policy if not number else None)
        column[0].axhline(settings["max_straggler_rate"], color="black", linestyle="--", linewidth=1, label="limit")
        column[0].legend(fontsize="small", ncol=2)
        column[1].set_yscale("log", base=2)
        column[1].yaxis.set_major_formatter("{x:.0f}")
        for axis, title in zip(column, panels):
            axis.set_title(f"{algorithm.upper()}: {title}", fontsize="medium")
            axis.grid(alpha=0.3)
        column[-1].set_xlabel("step")
    figure.tight_layout()
    save(figure, path, dpi=100)


def so_far(rates: pd.Series) -> pd.Series:
    """Mean of all rates up to each."""
    return rates.expanding().mean()


def plot_seconds(rows: list[dict], path: Path) -> None:
    """Where the seconds of a step go."""
    figure, axis = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.2), layout="constrained")
    names = [f"{row['algorithm'].upper()} {row['policy']}" for row in rows]
    left = np.zeros(len(rows))
    for phase, color in zip(PHASES, ["C0", "C3", "C2", "C1", "C7"]):
        widths = np.array([row[f"s_{phase}"] for row in rows])
        axis.barh(names, widths, left=left, color=color, label=phase.replace("_", " "))
        left += widths
    axis.invert_yaxis()
    axis.set_xlabel("seconds a step (idle tail: a finished rollout waits for the step's last one, on average)")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    save(figure, path)
