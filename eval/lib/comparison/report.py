"""Report of a comparison: its tables and sentences, and the files that hold them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.plots import PHASES, plot_reward, plot_seconds, plot_steps
from lib.comparison.statistics import (
    LEVEL,
    POWER,
    curves_of,
    ends_of,
    interval,
    mean_time_of,
    of_runs,
    resample,
    right_of,
    sooner_than,
    speedup_of,
    time_to,
    times_as_fast,
    told_apart,
    value_at,
    with_ends,
)
from lib.policies import parse_policy
from lib.tables import markdown

FEWEST = 3  # runs of a policy from which the report says who is sooner
ENDS = 10  # steps at a run's start and end whose lengths are averaged
OTHER_TARGETS = (-0.1, -0.05, 0.05, 0.1)  # around the target
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
        curves = {policy: curves_of(mine, policy, settings) for policy in policies}
        mean_times = {policy: mean_time_of(curves[policy], settings["target"]) for policy in policies}
        fixed = [policy for policy in policies if parse_policy(policy).is_fixed_size]
        fixed = [policy for policy in fixed if parse_policy(policy).kind == "unpatched"] or fixed
        best = min(fixed, key=lambda policy: (mean_times[policy]["value"], draws[policy]["time"][0]), default=None)
        run_seconds = seconds_of_runs(steps[steps["algorithm"] == algorithm])
        for policy in policies:
            taken = steps[(steps["algorithm"] == algorithm) & (steps["policy"] == policy)]
            runs = [run for _, run in taken.groupby("seed")]
            sooner = {
                target: sooner_than(curves[best], curves[policy], target) if best not in (None, policy) else None
                for target in other_targets(settings)
            }
            own = sooner[settings["target"]]
            row = {
                "algorithm": algorithm,
                "policy": policy,
                "runs": len(runs),
                "reached": int(np.isfinite(of_runs(mine, policy, settings["target"])).sum()),
                "time_to_target": draws[policy]["time"],
                "speedup": speedup_of(draws[best]["time"], draws[policy]["time"]) if best else np.full(2, np.nan),
                "best_fixed": best,
                "mean_time": mean_times[policy],
                "sooner": sooner,
                "told_apart": {seeds: told_apart(own, seeds) for seeds in PLANNED} if own else None,
                "reward": draws[policy]["reward"],
                "solved": draws[policy]["solved"],
                "passed": draws[policy]["passed"],
                **heldout_lengths(mine[mine["policy"] == policy]),
                "step_speedup": times_as_fast(run_seconds, best, policy) if best else None,
                "against": {
                    other: {
                        "sooner": sooner_than(curves[other], curves[policy], settings["target"]),
                        "step": times_as_fast(run_seconds, other, policy),
                    }
                    for other in policies
                    if other != policy
                },
                **step_figures(runs),
            }
            rows.append(row)
    return rows


def step_figures(runs: list[pd.DataFrame]) -> dict[str, float]:
    """What the steps of a policy were like: means over runs of what a run's steps after the first have on average.

    The first step warms vLLM up. `bound` is how many times as fast a step without any idle tail would be.
    """
    later = pd.DataFrame([run.iloc[1:].mean(numeric_only=True) for run in runs]).mean()
    seconds = later[SECONDS].sum(skipna=False)
    found = {
        "steps": float(np.mean([len(run) for run in runs])),
        "step_seconds": seconds,
        "length_first": np.mean([run["trained_length"].head(ENDS).mean() for run in runs]),
        "length_last": np.mean([run["trained_length"].tail(ENDS).mean() for run in runs]),
        "bound": seconds / (seconds - later["idle_tail"]),
    }
    found |= {name: later[name] for name in ("group_size", "straggler_rate", "idle_tail", "length_max")}
    later["decoding"] = later["generation"] - later["idle_tail"]
    return found | {f"s_{name}": later[name] for name in PHASES}


def seconds_of_runs(steps: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds of a step after the first, which warms vLLM up: a row a seed, a column a policy."""
    later = steps[steps["step"] > steps.groupby(["policy", "seed"])["step"].transform("min")]
    of_steps = later.assign(seconds=later[SECONDS].sum(axis=1))
    return of_steps.groupby(["seed", "policy"])["seconds"].mean().unstack()


def heldout_lengths(evaluations: pd.DataFrame) -> dict[str, float]:
    """Mean tokens of held-out responses before training and at the last evaluation, means over seeds; NaN in older files."""
    if "tokens" not in evaluations:
        return {"heldout_before": np.nan, "heldout_after": np.nan}
    by_seed = evaluations.groupby("seed")["tokens"]
    return {"heldout_before": by_seed.first().mean(), "heldout_after": by_seed.last().mean()}


def other_targets(settings: dict) -> list[float]:
    """The target and held-out rewards around it, for which the report says who is sooner."""
    others = [settings["target"] + more for more in OTHER_TARGETS if 0 < settings["target"] + more < 1]
    return sorted([settings["target"], *(round(other, 4) for other in others)])


def tables(rows: list[dict], settings: dict) -> str:
    """The tables of all algorithms, each with its verdicts."""
    text = (
        f"Means over seeds [{LEVEL:.0%} intervals]; {settings['seconds']:.0f} s of training a run, counted from the end of its "
        f"first step. Limit of the straggler rate {settings['max_straggler_rate']} at max / median "
        f"{settings['straggler_ratio']}. Mean seconds to the rewards up to a target, times sooner and how many times as fast a step "
        "is have intervals of Student's t over seeds. All else has a bootstrap over seeds and held-out problems, of which a draw "
        "in which neither of two arms reaches the target is left out; with three seeds it is too narrow for its level where "
        "seeds differ much. Mean times end with a run's seconds, first crossings with its last evaluation, which is later. A dash: "
        "not reached, by a run or by the mean curve, or nothing to compare with, also where runs begin above.\n"
    )
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        text += f"\n### {algorithm.upper()}\n\n{main_table(mine, settings)}\n{verdict(mine, settings['target'])}"
        others = mine[0]["sooner"]
        ratios = [[row["policy"], *map(with_ends, row["sooner"].values())] for row in mine]
        text += "\nTimes sooner than the best fixed, with the rewards up to other targets:\n\n"
        text += markdown(["policy", *others], ratios, alignment="l" + "r" * len(others)) + against_each(mine)
    return text


def against_each(rows: list[dict]) -> str:
    """A table of this project's policies against every unpatched one, and against those of its own that stand below."""
    unpatched = [row["policy"] for row in rows if parse_policy(row["policy"]).kind == "unpatched"]
    own = [row for row in rows if row["policy"] not in unpatched]
    table = [
        [row["policy"], other, with_ends(row["against"][other]["sooner"]), with_ends(row["against"][other]["step"])]
        for number, row in enumerate(own)
        for other in [*unpatched, *(lower["policy"] for lower in own[number + 1 :])]
    ]
    titles = ["policy", "against", "times sooner, up to the target", "a step times as fast"]
    return "\nAgainst each other policy:\n\n" + markdown(titles, table, alignment="llrr") if table else ""


def main_table(rows: list[dict], settings: dict) -> str:
    """A row a policy."""
    table = [
        {
            "policy": row["policy"] + (" (best fixed)" if row["policy"] == row["best_fixed"] else ""),
            "runs": row["runs"],
            f"s to {settings['target']}": interval(row["time_to_target"], 0),
            "times as fast as the best fixed": interval(row["speedup"], 2),
            f"mean s to the rewards up to {settings['target']}": with_ends(row["mean_time"], 0),
            "times sooner than the best fixed": with_ends(row["sooner"][settings["target"]]),
            "reached": f"{row['reached']} of {row['runs']}",
            f"held-out reward after {settings['seconds']:.0f} s": interval(row["reward"], 3),
            "solved": interval(row["solved"], 2),
            "pass@8": interval(row["passed"], 2),
            "steps": f"{row['steps']:.0f}",
            "mean group size": f"{row['group_size']:.1f}",
            "straggler rate": f"{row['straggler_rate']:.3f}",
            "s a step": f"{row['step_seconds']:.2f}",
            "a step times as fast": with_ends(row["step_speedup"]),
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
    """A table with a row a run: what it reached, how fast the machine was meanwhile, and with whom it shared that, if known."""
    target, seconds, arm = settings["target"], settings["seconds"], ["algorithm", "policy", "seed"]
    titles = [*arm, f"s to {target}", f"held-out reward after {seconds:.0f} s", "s a step", "median s of training"]
    rows = []
    for key, run in evaluations.groupby(arm, sort=False):
        rewards_V, seconds_V = right_of(run).mean(axis=1)[None], run["seconds"].to_numpy()
        taken = steps[(steps[arm] == list(key)).all(axis=1)].iloc[1:]  # the first step warms vLLM up
        reward = value_at(seconds, seconds_V, rewards_V)[0]
        cells = [*key, whole_or_dash(time_to(target, seconds_V, rewards_V)[0]), f"{reward:.3f}"]
        cells += [f"{taken[SECONDS].sum(axis=1).mean():.2f}", f"{taken['training'].median():.2f}"]
        rows.append(cells + taken.get("turns", pd.Series()).fillna("–").head(1).tolist())
    titles += ["took turns with"][: len(rows[0]) - len(titles)]
    return "\n### Each run\n\n" + markdown(titles, rows, alignment="ll" + "r" * (len(titles) - 2))


def whole_or_dash(number: float) -> str:
    """A whole number; a dash for what is none, such as the seconds to a reward that was not reached."""
    return f"{number:.0f}" if np.isfinite(number) else "–"


def verdict(rows: list[dict], target: float) -> str:
    """One sentence for each policy that `best_fixed` was not chosen from: sooner, later, or no significant difference.

    It is about the mean time to the rewards up to the target. A further one says what more seeds would tell apart.
    """
    lines = []
    mean_times = {row["policy"]: row["mean_time"]["value"] for row in rows}
    for row in rows:
        policy, best, sooner = row["policy"], row["best_fixed"], row["sooner"][target]
        if best is None or of_same_kind(policy, best):
            continue
        if sooner["runs"] < FEWEST:
            what = f"has too few runs for a verdict ({sooner['runs']} of {FEWEST})"
        elif not np.isfinite(mean_times[policy]):
            what = f"did not reach {target} on average"
        elif not np.isfinite(mean_times[best]):
            what = f"reached {target} on average, which no fixed size did"
        elif sooner["low"] is None or sooner["low"] <= 1 <= sooner["high"]:
            what = f"against the best fixed size ({best}): no significant difference in the time to the rewards up to {target}"
        elif sooner["low"] > 1:
            what = f"reached the rewards up to {target} sooner than the best fixed size ({best})"
        else:
            what = f"reached the rewards up to {target} later than the best fixed size ({best}): the fixed size wins"
        times = f"; {with_ends(sooner)} times sooner" if np.isfinite(sooner["value"]) else ""
        lines.append(f"- {policy} {what}{times}.\n")
        if np.isfinite(row["told_apart"][PLANNED[0]]):
            told = ", ".join(f"{seeds} seeds {ratio:.2f}" for seeds, ratio in row["told_apart"].items())
            lines.append(
                f"  Ratios that this spread lets a comparison tell from 1, with a power of {POWER}: about {told}.\n"
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
    policies = [plain(row) for row in rows]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "policies": policies}, indent=2) + "\n")
    return text


def plain(value: object) -> object:
    """JSON of a cell: bootstrap draws become the data's value and the interval, None where a number is not finite."""
    if isinstance(value, dict):
        return {str(name): plain(number) for name, number in value.items()}
    if isinstance(value, np.ndarray):
        return dict(zip(("value", "low", "high"), map(plain, (value[0], *ends_of(value)))))
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value
