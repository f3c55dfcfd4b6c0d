"""Report of a comparison: its tables and sentences, and the files that hold them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from common.policies import parse_policy
from common.tables import markdown
from comparison.plots import PHASES, plot_reward, plot_seconds, plot_steps
from comparison.statistics import (
    LEVEL,
    POWER,
    ends_of,
    interval,
    of_runs,
    resample,
    right_of,
    speedup_of,
    time_to,
    times_as_fast,
    told_apart,
    value_at,
)

FEWEST = 3  # runs of a policy from which the report says who is sooner
ENDS = 10  # steps at a run's start and end whose lengths are averaged
OTHER_TARGETS = (-0.1, -0.05, 0, 0.05, 0.1)  # beside the target
PLANNED = (3, 5, 10)  # seeds of a comparison for which the report says what it would tell apart
SECONDS = ["generation", "experience", "training", "sync"]  # the parts of a step


def summaries(steps: pd.DataFrame, evaluations: pd.DataFrame, settings: dict) -> list[dict]:
    """A row an algorithm and policy."""
    rows = []
    for algorithm in evaluations["algorithm"].unique():
        mine = evaluations[evaluations["algorithm"] == algorithm]
        policies = list(mine["policy"].unique())
        draws = {
            policy: resample(mine[mine["policy"] == policy], settings, np.random.default_rng(0)) for policy in policies
        }
        fixed = [policy for policy in policies if parse_policy(policy).is_fixed_size]
        fixed = [policy for policy in fixed if parse_policy(policy).kind == "unpatched"] or fixed
        best = min(fixed, key=lambda policy: [draws[policy][name][0] for name in ("time", "mean_time")], default=None)
        run_seconds = seconds_of_runs(steps[steps["algorithm"] == algorithm])
        for policy in policies:
            taken = steps[(steps["algorithm"] == algorithm) & (steps["policy"] == policy)]
            runs = [run for _, run in taken.groupby("seed")]
            sooner = speedup_of(draws[best]["mean_time"], draws[policy]["mean_time"]) if best else np.full(2, np.nan)
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
                "mean_time": draws[policy]["mean_time"],
                "sooner": sooner,
                "told_apart": {seeds: told_apart(sooner, len(runs), seeds) for seeds in PLANNED},
                "reward": draws[policy]["reward"],
                "solved": draws[policy]["solved"],
                "passed": draws[policy]["passed"],
                **heldout_lengths(mine[mine["policy"] == policy]),
                "steps": float(np.mean([len(run) for run in runs])),
                "step_seconds": later[SECONDS].sum(axis=1).mean(),
                "step_speedup": times_as_fast(run_seconds, best, policy) if best else None,
                "length_first": np.mean([run["trained_length"].head(ENDS).mean() for run in runs]),
                "length_last": np.mean([run["trained_length"].tail(ENDS).mean() for run in runs]),
            }
            row["bound"] = row["step_seconds"] / (row["step_seconds"] - later["idle_tail"].mean())
            row |= {name: later[name].mean() for name in ("group_size", "straggler_rate", "idle_tail", "length_max")}
            phases = later.assign(decoding=later["generation"] - later["idle_tail"])[PHASES].mean()
            rows.append(row | {f"s_{name}": value for name, value in phases.items()})
    return rows


def seconds_of_runs(steps: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds of a step after the first, which warms vLLM up: a row a seed, a column a policy."""
    later = steps[steps["step"] > steps.groupby(["policy", "seed"])["step"].transform("min")]
    of_steps = later.assign(seconds=later[SECONDS].sum(axis=1))
    return of_steps.groupby(["seed", "policy"])["seconds"].mean().unstack()


def ends_or_dash(found: dict | None) -> str:
    """A ratio with its interval, if it has one; a dash for the reference itself."""
    if found is None:
        return "–"
    ends = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['value']:.2f}{ends}"


def heldout_lengths(evaluations: pd.DataFrame) -> dict[str, float]:
    """Mean tokens of held-out responses before training and at the last evaluation, means over seeds; NaN in older files."""
    if "tokens" not in evaluations:
        return {"heldout_before": np.nan, "heldout_after": np.nan}
    by_seed = evaluations.groupby("seed")["tokens"]
    return {"heldout_before": by_seed.first().mean(), "heldout_after": by_seed.last().mean()}


def other_targets(settings: dict) -> list[float]:
    """Held-out rewards around the target, which the report gives the mean seconds to."""
    return [round(settings["target"] + more, 4) for more in OTHER_TARGETS if 0 < settings["target"] + more < 1]


def tables(rows: list[dict], settings: dict) -> str:
    """The tables of all algorithms, each with its verdicts."""
    text = (
        f"Mean over seeds [{LEVEL:.0%} bootstrap interval over seeds and held-out problems, of one seed over problems "
        f"alone]; {settings['seconds']:.0f} s of training a run, limit of the straggler rate "
        f"{settings['max_straggler_rate']} at max / median {settings['straggler_ratio']}. A dash: not reached in every "
        "run.\n"
    )
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        text += f"\n### {algorithm.upper()}\n\n{main_table(mine, settings)}\n{verdict(mine, settings['target'])}"
        others = mine[0]["times"]
        times = [[row["policy"], *map(whole_or_dash, row["times"].values())] for row in mine]
        text += "\nMean seconds to other held-out rewards:\n\n"
        text += markdown(["policy", *others], times, alignment="l" + "r" * len(others))
    return text


def main_table(rows: list[dict], settings: dict) -> str:
    """A row a policy."""
    table = [
        {
            "policy": row["policy"] + (" (best fixed)" if row["policy"] == row["best_fixed"] else ""),
            "runs": row["runs"],
            f"s to {settings['target']}": interval(row["time_to_target"], 0),
            "times as fast as the best fixed": interval(row["speedup"], 2),
            f"mean s to the rewards up to {settings['target']}": interval(row["mean_time"], 0),
            "times sooner than the best fixed": interval(row["sooner"], 2),
            "reached": f"{row['reached']} of {row['runs']}",
            f"held-out reward after {settings['seconds']:.0f} s": interval(row["reward"], 3),
            "solved": interval(row["solved"], 2),
            "pass@8": interval(row["passed"], 2),
            "steps": f"{row['steps']:.0f}",
            "mean group size": f"{row['group_size']:.1f}",
            "straggler rate": f"{row['straggler_rate']:.3f}",
            "s a step": f"{row['step_seconds']:.2f}",
            "a step times as fast": ends_or_dash(row["step_speedup"]),
            "of it idle tail": f"{row['idle_tail']:.2f}",
            "times as fast without any": f"{row['bound']:.2f}",
            "trained length, first and last steps": f"{row['length_first']:.0f} → {row['length_last']:.0f}",
            "held-out length, before and after": (
                f"{whole_or_dash(row['heldout_before'])} → {whole_or_dash(row['heldout_after'])}"
            ),
        }
        for row in rows
    ]
    return markdown(table[0], [row.values() for row in table], alignment="l" + "r" * (len(table[0]) - 1))


def by_step(evaluations: pd.DataFrame, settings: dict, algorithm: str) -> str:
    """A table of the held-out rewards at each step that all runs evaluated: whether arms learn as much from a step.

    The reference is the first policy; differences are paired by seed and problem.
    """
    mine = evaluations[evaluations["algorithm"] == algorithm]
    policies = list(mine["policy"].unique())
    steps = set.intersection(*(set(run["step"]) for _, run in mine.groupby(["policy", "seed"])))
    rows = []
    for step in sorted(steps):
        at_step = mine[mine["step"] == step]
        draws = [
            resample(at_step[at_step["policy"] == policy], settings, np.random.default_rng(0))["reward"]
            for policy in policies
        ]
        rows.append([step, *(interval(one, 3) for one in draws), *(interval(one - draws[0], 3) for one in draws[1:])])
    titles = ["step", *policies, *(f"{policy} - {policies[0]}" for policy in policies[1:])]
    text = "\nHeld-out reward at the same step, and differences, paired by seed and problem:\n\n"
    return text + markdown(titles, rows, alignment="r" * len(titles))


def each_run(steps: pd.DataFrame, evaluations: pd.DataFrame, settings: dict) -> str:
    """A table with a row a run: what it reached, and how fast the machine was meanwhile."""
    target, seconds, arm = settings["target"], settings["seconds"], ["algorithm", "policy", "seed"]
    titles = [*arm, f"s to {target}", f"held-out reward after {seconds:.0f} s", "s a step", "median s of training"]
    rows = []
    for key, run in evaluations.groupby(arm, sort=False):
        rewards_E, seconds_E = right_of(run).mean(axis=1)[None], run["seconds"].to_numpy()
        taken = steps[(steps[arm] == list(key)).all(axis=1)].iloc[1:]  # the first step warms vLLM up
        reward = value_at(seconds, seconds_E, rewards_E)[0]
        cells = [*key, whole_or_dash(time_to(target, seconds_E, rewards_E)[0]), f"{reward:.3f}"]
        rows.append([*cells, f"{taken[SECONDS].sum(axis=1).mean():.2f}", f"{taken['training'].median():.2f}"])
    return "\n### Each run\n\n" + markdown(titles, rows, alignment="ll" + "r" * (len(titles) - 2))


def whole_or_dash(number: float) -> str:
    """A whole number; a dash for what is none, such as the seconds to a reward that was not reached."""
    return f"{number:.0f}" if np.isfinite(number) else "–"


def verdict(rows: list[dict], target: float) -> str:
    """One sentence for each policy that `best_fixed` was not chosen from: sooner, later, or neither for certain.

    It is about the mean time to the rewards up to the target. A further one says what more seeds would tell apart.
    """
    lines = []
    mean_times = {row["policy"]: row["mean_time"][0] for row in rows}
    for row in rows:
        best = row["best_fixed"]
        if best is None or of_same_kind(row["policy"], best):
            continue
        low, high = ends_of(row["sooner"])
        if row["runs"] < FEWEST:
            what = f"has too few runs for a verdict ({row['runs']} of {FEWEST})"
        elif not np.isfinite(row["mean_time"][0]):
            what = f"did not reach {target} on average"
        elif not np.isfinite(mean_times[best]):
            what = f"reached {target} on average, which no fixed size did"
        elif low > 1:
            what = f"reached the rewards up to {target} sooner than the best fixed size ({best})"
        elif high < 1:
            what = f"reached the rewards up to {target} later than the best fixed size ({best}): the fixed size wins"
        else:
            what = f"against the best fixed size ({best}): no certain difference in the time to the rewards up to {target}"
        lines.append(f"- {row['policy']} {what}; {interval(row['sooner'], 2)} times as soon.\n")
        if np.isfinite(row["told_apart"][PLANNED[0]]):
            told = ", ".join(f"{seeds} seeds {ratio:.2f}" for seeds, ratio in row["told_apart"].items())
            lines.append(
                f"  Ratios that this spread lets a comparison tell from 1, with a power of {POWER}: {told}.\n"
            )
    return "".join(lines)


def of_same_kind(policy: str, best: str) -> bool:
    """Whether a policy is a fixed size of the same OpenRLHF as the best one."""
    one, other = parse_policy(policy), parse_policy(best)
    return one.is_fixed_size and one.kind == other.kind


def write_report(folder: Path) -> str:
    """Write comparison.json, REPORT.md and the plots into `folder`; returns the report's text."""
    steps, evaluations = pd.read_csv(folder / "steps.csv"), pd.read_csv(folder / "evaluations.csv")
    settings = json.loads((folder / "settings.json").read_text())
    rows = summaries(steps, evaluations, settings)
    plot_reward(evaluations, settings, folder / "reward.png")
    plot_steps(steps, settings, folder / "control.png")
    plot_seconds(rows, folder / "seconds.png")
    text = tables(rows, settings)
    for algorithm in evaluations["algorithm"].unique():
        text += f"\n### {algorithm.upper()} by step\n{by_step(evaluations, settings, algorithm)}"
    text += each_run(steps, evaluations, settings)
    (folder / "REPORT.md").write_text(text)
    plain = [{name: of_draws(value) for name, value in row.items()} for row in rows]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "policies": plain}, indent=2) + "\n")
    return text


def of_draws(value: object) -> object:
    """JSON of a cell: bootstrap draws become the data's value and the interval, None where it is not finite."""
    if isinstance(value, dict):
        return {
            str(name): None if number is None or not np.isfinite(number) else float(number)
            for name, number in value.items()
        }
    if isinstance(value, np.ndarray):
        numbers = (value[0], *ends_of(value))
        return dict(zip(("value", "low", "high"), (float(x) if np.isfinite(x) else None for x in numbers)))
    return value.item() if isinstance(value, np.generic) else value
