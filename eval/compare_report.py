"""Report of eval/compare.py from its steps.csv, evaluations.csv and settings.json: tables, plots, bootstrap intervals.

python eval/compare_report.py eval/results/compare
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from compare_plots import PHASES, is_fixed, plot_reward, plot_seconds, plot_steps, right_of

RESAMPLES = 2000
LEVEL = 0.95
FEWEST = 3  # runs of a policy from which the report says who is sooner
ENDS = 10  # steps at a run's start and end whose lengths are averaged
OTHER_TARGETS = (-0.1, -0.05, 0, 0.05, 0.1)  # beside the target


def time_to(target: float, seconds_E: np.ndarray, rewards_BE: np.ndarray) -> np.ndarray:
    """[B] seconds at which each curve first reaches `target`, linear between evaluations; inf where it does not.

    A curve that begins above it has the first evaluation's seconds, which are 0 in a comparison.
    """
    above_BE = rewards_BE >= target
    at_B = above_BE.argmax(axis=1)
    rows = np.arange(len(rewards_BE))
    before_B = np.maximum(at_B - 1, 0)
    low_B, high_B = rewards_BE[rows, before_B], rewards_BE[rows, at_B]
    share_B = np.where(at_B > 0, (target - low_B) / np.where(high_B > low_B, high_B - low_B, 1), 1)
    seconds_B = seconds_E[before_B] + share_B * (seconds_E[at_B] - seconds_E[before_B])
    return np.where(above_BE.any(axis=1), seconds_B, np.inf)


def value_at(seconds: float, seconds_E: np.ndarray, values_BE: np.ndarray) -> np.ndarray:
    """[B] values after `seconds`, linear between evaluations, the last one after it."""
    after = min(int(np.searchsorted(seconds_E, seconds)), len(seconds_E) - 1)
    before = max(after - 1, 0)
    span = seconds_E[after] - seconds_E[before]
    share = min((seconds - seconds_E[before]) / span, 1.0) if span and seconds > seconds_E[before] else 0.0
    return values_BE[:, before] + share * (values_BE[:, after] - values_BE[:, before])


def resample(evaluations: pd.DataFrame, settings: dict, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Bootstrap of one arm over seeds, and over problems within a seed; the first draw is the data themselves.

    Args:
        evaluations: of one arm, of all seeds.
        settings: with the `target` of the held-out reward and the training `seconds` of a run.
        generator: seeded alike for every arm, so that the draws of two arms are pairs.

    Returns:
        [RESAMPLES + 1] mean over seeds of: `time` to the target in s, `reward` and `solved` share at the same second.
    """
    seeds = evaluations["seed"].unique()
    found = {"time": [], "reward": [], "solved": []}
    for seed in seeds:
        run = evaluations[evaluations["seed"] == seed]
        right_EP = right_of(run)
        problems = right_EP.shape[1]
        weights_BP = generator.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
        weights_BP = np.vstack([np.full(problems, 1 / problems), weights_BP])
        rewards_BE, seconds_E = weights_BP @ right_EP.T, run["seconds"].to_numpy()
        found["time"].append(time_to(settings["target"], seconds_E, rewards_BE))
        found["reward"].append(value_at(settings["seconds"], seconds_E, rewards_BE))
        found["solved"].append(value_at(settings["seconds"], seconds_E, weights_BP @ (right_EP.T > 0.5)))
    drawn_BS = generator.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), RESAMPLES) / len(seeds)
    drawn_BS = np.vstack([np.full(len(seeds), 1 / len(seeds)), drawn_BS])
    mean = lambda per_seed: (drawn_BS * np.where(drawn_BS > 0, np.array(per_seed).T, 0)).sum(axis=1)  # noqa: E731
    return {name: mean(per_seed) for name, per_seed in found.items()}


def ends_of(draws: np.ndarray) -> tuple[float, float]:
    """Ends of the bootstrap's interval, of the draws that are a number; NaN where most are none."""
    drawn = draws[1:][~np.isnan(draws[1:])]
    if 2 * len(drawn) < len(draws):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return low, high


def interval(draws: np.ndarray, digits: int) -> str:
    """The data's value and the bootstrap's interval around it; a value that is not reached is a dash."""
    low, high = ends_of(draws)
    show = lambda x: f"{x:.{digits}f}" if np.isfinite(x) else "–"  # noqa: E731
    return f"{show(draws[0])} [{show(low)}, {show(high)}]"


def summaries(steps: pd.DataFrame, evaluations: pd.DataFrame, settings: dict) -> list[dict]:
    """A row an algorithm and policy."""
    rows = []
    for algorithm in evaluations["algorithm"].unique():
        mine = evaluations[evaluations["algorithm"] == algorithm]
        policies = list(mine["policy"].unique())
        draws = {
            policy: resample(mine[mine["policy"] == policy], settings, np.random.default_rng(0)) for policy in policies
        }
        fixed = [policy for policy in policies if is_fixed(policy)]
        best = min(fixed, key=lambda policy: draws[policy]["time"][0], default=None)
        for policy in policies:
            taken = steps[(steps["algorithm"] == algorithm) & (steps["policy"] == policy)]
            runs = [run for _, run in taken.groupby("seed")]
            later = pd.concat([run.iloc[1:] for run in runs])  # the first step warms vLLM up
            row = {
                "algorithm": algorithm,
                "policy": policy,
                "runs": len(runs),
                "reached": int(np.isfinite(of_runs(mine, policy, settings["target"])).sum()),
                "times": {target: of_runs(mine, policy, target).mean() for target in other_targets(settings)},
                "time_to_target": draws[policy]["time"],
                "speedup": speedup_of(draws[best]["time"], draws[policy]["time"]) if best else np.full(2, np.nan),
                "best_fixed": best,
                "reward": draws[policy]["reward"],
                "solved": draws[policy]["solved"],
                "steps": float(np.mean([len(run) for run in runs])),
                "step_seconds": later[["generation", "experience", "training", "sync"]].sum(axis=1).mean(),
                "length_first": np.mean([run["trained_length"].head(ENDS).mean() for run in runs]),
                "length_last": np.mean([run["trained_length"].tail(ENDS).mean() for run in runs]),
            }
            row["bound"] = row["step_seconds"] / (row["step_seconds"] - later["idle_tail"].mean())
            row |= {name: later[name].mean() for name in ("group_size", "straggler_rate", "idle_tail", "length_max")}
            phases = later.assign(decoding=later["generation"] - later["idle_tail"])[PHASES].mean()
            rows.append(row | {f"s_{name}": value for name, value in phases.items()})
    return rows


def speedup_of(best_B: np.ndarray, times_B: np.ndarray) -> np.ndarray:
    """[B] best / times; NaN in a draw in which neither reaches the target."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return best_B / times_B


def of_runs(evaluations: pd.DataFrame, policy: str, target: float) -> np.ndarray:
    """Seconds to a target of every run of a policy."""
    runs = [run for _, run in evaluations[evaluations["policy"] == policy].groupby("seed")]
    return np.array([time_to(target, run["seconds"].to_numpy(), right_of(run).mean(axis=1)[None])[0] for run in runs])


def other_targets(settings: dict) -> list[float]:
    return [round(settings["target"] + more, 4) for more in OTHER_TARGETS if 0 < settings["target"] + more < 1]


def markdown(rows: list[dict], settings: dict) -> str:
    target = settings["target"]
    titles = [
        "policy",
        "runs",
        f"s to {target}",
        "times as fast as the best fixed",
        "reached",
        f"held-out reward after {settings['seconds']:.0f} s",
    ]
    titles += ["solved", "steps", "mean group size", "straggler rate", "s a step", "of it idle tail"]
    titles += ["times as fast without any", "trained length, first and last steps"]
    text = [
        f"Mean over seeds [{LEVEL:.0%} bootstrap interval over seeds and held-out problems, of one seed over problems "
        f"alone]; {settings['seconds']:.0f} s of training a run, limit of the straggler rate "
        f"{settings['max_straggler_rate']} at max / median {settings['straggler_ratio']}. A dash: not reached in every "
        "run.\n"
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
                f"{row['bound']:.2f}",
                f"{row['length_first']:.0f} → {row['length_last']:.0f}",
            ]
            text.append(f"| {' | '.join(cells)} |\n")
        text.append("\n" + verdict(mine, target) + "\nMean seconds to other held-out rewards:\n\n")
        others = list(mine[0]["times"])
        text.append(f"| policy | {' | '.join(map(str, others))} |\n| --- |{' ---: |' * len(others)}\n")
        for row in mine:
            cells = [f"{time:.0f}" if np.isfinite(time) else "–" for time in row["times"].values()]
            text.append(f"| {row['policy']} | {' | '.join(cells)} |\n")
    return "".join(text)


def each_run(steps: pd.DataFrame, evaluations: pd.DataFrame, settings: dict) -> str:
    """A table with a row a run: what it reached, and how fast the machine was meanwhile."""
    target, seconds, arm = settings["target"], settings["seconds"], ["algorithm", "policy", "seed"]
    titles = [*arm, f"s to {target}", f"held-out reward after {seconds:.0f} s", "s a step", "median s of training"]
    text = [f"\n### Each run\n\n| {' | '.join(titles)} |\n| --- | --- |{' ---: |' * (len(titles) - 2)}\n"]
    for key, run in evaluations.groupby(arm, sort=False):
        rewards_E, seconds_E = right_of(run).mean(axis=1)[None], run["seconds"].to_numpy()
        taken = steps[(steps[arm] == list(key)).all(axis=1)].iloc[1:]  # the first step warms vLLM up
        time = time_to(target, seconds_E, rewards_E)[0]
        cells = [*map(str, key), f"{time:.0f}" if np.isfinite(time) else "–"]
        cells += [f"{value_at(seconds, seconds_E, rewards_E)[0]:.3f}"]
        cells += [f"{taken[['generation', 'experience', 'training', 'sync']].sum(axis=1).mean():.2f}"]
        text.append(f"| {' | '.join(cells)} | {taken['training'].median():.2f} |\n")
    return "".join(text)


def verdict(rows: list[dict], target: float) -> str:
    """One sentence for each policy that is no fixed size: sooner, later, or neither for certain."""
    lines = []
    for row in rows:
        if row["best_fixed"] is None or is_fixed(row["policy"]):
            continue
        low, high = ends_of(row["speedup"])
        if row["runs"] < FEWEST:
            what = f"has too few runs for a verdict ({row['runs']} of {FEWEST})"
        elif not np.isfinite(row["time_to_target"][0]):
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


def write_report(folder: Path) -> str:
    """Write comparison.json, REPORT.md and the plots into `folder`; returns the report's text."""
    steps, evaluations = pd.read_csv(folder / "steps.csv"), pd.read_csv(folder / "evaluations.csv")
    settings = json.loads((folder / "settings.json").read_text())
    rows = summaries(steps, evaluations, settings)
    plot_reward(evaluations, settings, folder / "reward.png")
    plot_steps(steps, settings, folder / "control.png")
    plot_seconds(rows, folder / "seconds.png")
    text = markdown(rows, settings) + each_run(steps, evaluations, settings)
    (folder / "REPORT.md").write_text(text)
    plain = [{name: of_draws(value) for name, value in row.items()} for row in rows]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "policies": plain}, indent=2) + "\n")
    return text


def of_draws(value: object) -> object:
    """JSON of a cell: bootstrap draws become the data's value and the interval, None where it is not finite."""
    if isinstance(value, dict):
        return {str(name): float(number) if np.isfinite(number) else None for name, number in value.items()}
    if isinstance(value, np.ndarray):
        numbers = (value[0], *ends_of(value))
        return dict(zip(("value", "low", "high"), (float(x) if np.isfinite(x) else None for x in numbers)))
    return value.item() if isinstance(value, np.generic) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that eval/compare.py has written")
    parser.add_argument("--target", type=float, help="another held-out reward than the comparison's")
    arguments = parser.parse_args()
    if arguments.target:
        settings = json.loads((arguments.folder / "settings.json").read_text()) | {"target": arguments.target}
        (arguments.folder / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    print(write_report(arguments.folder))
