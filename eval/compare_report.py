"""Report of eval/compare.py from its steps.csv, evaluations.csv and settings.json: tables, plots, bootstrap intervals.

python eval/compare_report.py eval/results/compare
"""

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESAMPLES = 2000
LEVEL = 0.95
PHASES = ["decoding", "idle_tail", "experience", "training", "sync"]
EVENLY = 100  # points of a curve over training seconds


def right_of(evaluations: pd.DataFrame) -> np.ndarray:
    """[E, P] share of right answers of each problem at each evaluation of one run."""
    return np.array([line.split() for line in evaluations["right"]], float) / evaluations["samples"].iloc[0]


def time_to(target: float, seconds_E: np.ndarray, rewards_BE: np.ndarray) -> np.ndarray:
    """[B] seconds at which each curve first reaches `target`, linear between evaluations; inf where it does not.

    A curve that begins above it has the first evaluation's seconds.
    """
    above_BE = rewards_BE >= target
    at_B = above_BE.argmax(axis=1)
    rows = np.arange(len(rewards_BE))
    before_B = np.maximum(at_B - 1, 0)
    low_B, high_B = rewards_BE[rows, before_B], rewards_BE[rows, at_B]
    share_B = np.where(at_B > 0, (target - low_B) / np.where(high_B > low_B, high_B - low_B, 1), 1)
    seconds_B = seconds_E[before_B] + share_B * (seconds_E[at_B] - seconds_E[before_B])
    return np.where(above_BE.any(axis=1), seconds_B, np.inf)


def resample(evaluations: pd.DataFrame, target: float, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Bootstrap of one arm over seeds, and over problems within a seed; the first draw is the data themselves.

    Args:
        evaluations: of one arm, of all seeds.
        target: held-out reward.
        generator: seeded alike for every arm, so that the draws of two arms are pairs.

    Returns:
        [RESAMPLES + 1] mean over seeds of: `time` to the target in s, `reward` and `solved` share at the last evaluation.
    """
    seeds = evaluations["seed"].unique()
    found = {"time": [], "reward": [], "solved": []}
    for seed in seeds:
        run = evaluations[evaluations["seed"] == seed]
        right_EP = right_of(run)
        problems = right_EP.shape[1]
        weights_BP = generator.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
        weights_BP = np.vstack([np.full(problems, 1 / problems), weights_BP])
        found["time"].append(time_to(target, run["seconds"].to_numpy(), weights_BP @ right_EP.T))
        found["reward"].append(weights_BP @ right_EP[-1])
        found["solved"].append(weights_BP @ (right_EP[-1] > 0.5))
    drawn_BS = generator.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), RESAMPLES) / len(seeds)
    drawn_BS = np.vstack([np.full(len(seeds), 1 / len(seeds)), drawn_BS])
    mean = lambda per_seed: (drawn_BS * np.where(drawn_BS > 0, np.array(per_seed).T, 0)).sum(axis=1)  # noqa: E731
    return {name: mean(per_seed) for name, per_seed in found.items()}


def interval(draws: np.ndarray, digits: int) -> str:
    """The data's value and the bootstrap's interval around it; a value that is not reached is a dash."""
    low, high = np.quantile(draws[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    show = lambda x: f"{x:.{digits}f}" if np.isfinite(x) else "–"  # noqa: E731
    return f"{show(draws[0])} [{show(low)}, {show(high)}]"


def summaries(steps: pd.DataFrame, evaluations: pd.DataFrame, settings: dict) -> list[dict]:
    """A row an algorithm and policy."""
    rows = []
    for algorithm in evaluations["algorithm"].unique():
        mine = evaluations[evaluations["algorithm"] == algorithm]
        policies = list(mine["policy"].unique())
        draws = {
            policy: resample(mine[mine["policy"] == policy], settings["target"], np.random.default_rng(0))
            for policy in policies
        }
        fixed = [policy for policy in policies if not policy.startswith("sagc")]
        best = min(fixed, key=lambda policy: draws[policy]["time"][0], default=None)
        for policy in policies:
            taken = steps[(steps["algorithm"] == algorithm) & (steps["policy"] == policy)]
            runs = [run for _, run in taken.groupby("seed")]
            later = pd.concat([run.iloc[1:] for run in runs])  # the first step warms vLLM up
            row = {
                "algorithm": algorithm,
                "policy": policy,
                "runs": len(runs),
                "reached": int(
                    np.isfinite([once(mine, policy, run, settings) for run in taken["seed"].unique()]).sum()
                ),
                "time_to_target": draws[policy]["time"],
                "speedup": speedup_of(draws[best]["time"], draws[policy]["time"]) if best else np.full(2, np.nan),
                "best_fixed": best,
                "reward": draws[policy]["reward"],
                "solved": draws[policy]["solved"],
                "steps": float(np.mean([len(run) for run in runs])),
                "step_seconds": later[["generation", "experience", "training", "sync"]].sum(axis=1).mean(),
                "length_first": np.mean([run["length_mean"].head(5).mean() for run in runs]),
                "length_last": np.mean([run["length_mean"].tail(5).mean() for run in runs]),
            }
            row |= {name: later[name].mean() for name in ("group_size", "straggler_rate", "idle_tail", "length_max")}
            phases = later.assign(decoding=later["generation"] - later["idle_tail"])[PHASES].mean()
            rows.append(row | {f"s_{name}": value for name, value in phases.items()})
    return rows


def speedup_of(best_B: np.ndarray, times_B: np.ndarray) -> np.ndarray:
    """best / times; a draw in which neither reaches the target is a tie, and the data themselves give NaN then."""
    with np.errstate(invalid="ignore"):
        ratios_B = best_B / times_B
    return np.concatenate([ratios_B[:1], np.where(np.isnan(ratios_B[1:]), 1.0, ratios_B[1:])])


def once(evaluations: pd.DataFrame, policy: str, seed: int, settings: dict) -> float:
    """Seconds to the target of one run."""
    run = evaluations[(evaluations["policy"] == policy) & (evaluations["seed"] == seed)]
    return time_to(settings["target"], run["seconds"].to_numpy(), right_of(run).mean(axis=1)[None])[0]


def markdown(rows: list[dict], settings: dict) -> str:
    target = settings["target"]
    titles = [
        "policy",
        "runs",
        f"s to {target}",
        "times as fast as the best fixed",
        "reached",
        "held-out reward at the end",
    ]
    titles += ["solved", "steps", "mean group size", "straggler rate", "s a step", "of it idle tail", "mean length"]
    text = [
        f"Mean over seeds [{LEVEL:.0%} bootstrap interval over seeds and held-out problems]; {settings['seconds']:.0f} s of "
        f"training a run, limit of the straggler rate {settings['max_straggler_rate']} at max / median "
        f"{settings['straggler_ratio']}. A dash: not reached in every run.\n"
    ]
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        text += [f"\n### {algorithm.upper()}\n\n| {' | '.join(titles)} |\n| --- |{' ---: |' * (len(titles) - 1)}\n"]
        for row in mine:
            cells = [
                row["policy"] + (" (best fixed)" if row["policy"] == row["best_fixed"] else ""),
                str(row["runs"]),
                interval(row["time_to_target"], 0),
                interval(row["speedup"], 2),
                f"{row['reached']} of {row['runs']}",
                interval(row["reward"], 3),
                interval(row["solved"], 2),
                f"{row['steps']:.0f}",
                f"{row['group_size']:.1f}",
                f"{row['straggler_rate']:.3f}",
                f"{row['step_seconds']:.2f}",
                f"{row['idle_tail']:.2f}",
                f"{row['length_first']:.0f} → {row['length_last']:.0f}",
            ]
            text.append(f"| {' | '.join(cells)} |\n")
        text.append("\n" + verdict(mine, target) + "\n")
    return "".join(text)


def verdict(rows: list[dict], target: float) -> str:
    """One sentence for each policy with control: sooner, later, or neither for certain."""
    lines = []
    for row in rows:
        if row["best_fixed"] is None or not row["policy"].startswith("sagc"):
            continue
        low, high = np.quantile(row["speedup"][1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        if not np.isfinite(row["time_to_target"][0]):
            what = f"did not reach {target} in every run"
        elif not np.isfinite(row["speedup"][0]):
            what = f"reached {target} in every run, which no fixed size did"
        elif low > 1:
            what = f"reached {target} sooner than the best fixed size ({row['best_fixed']})"
        elif high < 1:
            what = f"reached {target} later than the best fixed size ({row['best_fixed']}): the fixed size wins"
        else:
            what = f"against the best fixed size ({row['best_fixed']}): no certain difference in the time to {target}"
        lines.append(f"- {row['policy']} {what}; {interval(row['speedup'], 2)} times as fast.\n")
    return "".join(lines)


def colors_of(policies: list[str]) -> dict[str, object]:
    """Shades of grey for fixed sizes, colours for control."""
    fixed = [policy for policy in policies if not policy.startswith("sagc")]
    shades = dict(zip(fixed, plt.cm.Greys(np.linspace(0.35, 0.85, max(len(fixed), 1)))))
    return shades | dict(zip([policy for policy in policies if policy not in shades], ["C3", "C0", "C2", "C1"]))


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
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_steps(steps: pd.DataFrame, settings: dict, path: Path) -> None:
    """Straggler rate so far against the limit, group size, virtual queue and response length over steps, by seed."""
    panels = {"straggler rate so far": "rate", "group size": "group_size", "virtual queue": "virtual_queue"}
    panels |= {"mean response length (tokens)": "length_mean"}
    steps = steps.assign(rate=steps.groupby(["seed", "algorithm", "policy"])["straggler_rate"].transform(so_far))
    algorithms = list(steps["algorithm"].unique())
    figure, axes = plt.subplots(len(panels), len(algorithms), figsize=(6.5 * len(algorithms), 10), squeeze=False)
    for column, algorithm in zip(axes.T, algorithms):
        mine = steps[steps["algorithm"] == algorithm]
        for policy, color in colors_of(list(mine["policy"].unique())).items():
            for number, (_, run) in enumerate(mine[mine["policy"] == policy].groupby("seed")):
                for axis, name in zip(column, panels.values()):
                    line = run[name].rolling(5, 1).mean() if name == "length_mean" else run[name]
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
    figure.savefig(path, dpi=100)
    plt.close(figure)


def so_far(rates: pd.Series) -> pd.Series:
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
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_report(folder: Path) -> str:
    """Write comparison.json, REPORT.md and the plots into `folder`; returns the report's text."""
    steps, evaluations = pd.read_csv(folder / "steps.csv"), pd.read_csv(folder / "evaluations.csv")
    settings = json.loads((folder / "settings.json").read_text())
    rows = summaries(steps, evaluations, settings)
    plot_reward(evaluations, settings, folder / "reward.png")
    plot_steps(steps, settings, folder / "control.png")
    plot_seconds(rows, folder / "seconds.png")
    text = markdown(rows, settings)
    (folder / "REPORT.md").write_text(text)
    plain = [{name: of_draws(value) for name, value in row.items()} for row in rows]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "policies": plain}, indent=2) + "\n")
    return text


def of_draws(value: object) -> object:
    """JSON of a cell: bootstrap draws become the data's value and the interval, None where it is not finite."""
    if isinstance(value, np.ndarray):
        ends = np.quantile(value[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        return dict(zip(("value", "low", "high"), (float(x) if np.isfinite(x) else None for x in (value[0], *ends))))
    return value.item() if isinstance(value, np.generic) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that eval/compare.py has written")
    print(write_report(parser.parse_args().folder))
