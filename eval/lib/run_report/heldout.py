"""Held-out rewards of single problems, as a comparison on two cores has them: time to a reward, and steps."""

import numpy as np
import pandas as pd
from lib.policies import parse_policy
from lib.run_report.content import Section, Table, table
from lib.run_report.measured import Arm
from lib.run_report.statistics import (
    LEVEL,
    POWER,
    curves_of,
    interval,
    mean_time_of,
    of_runs,
    resample,
    sooner_than,
    speedup_of,
    time_to,
    times_as_fast,
    told_apart,
    value_at,
    with_ends,
)

FEWEST = 3  # runs of a policy from which the report says who is sooner
ENDS = 10  # steps at a run's start and end whose lengths are averaged
OTHER_TARGETS = (-0.1, -0.05, 0.05, 0.1)  # around the target
PLANNED = (3, 5, 10)  # seeds of a comparison for which the report says what it would tell apart


def frames_of(arms: list[Arm]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steps and evaluations of all runs, with `policy` and `seed`; an evaluation's `samples` are a problem's."""
    steps = [run.steps.reset_index().assign(policy=arm.name, seed=run.seed) for arm in arms for run in arm.runs]
    evaluations = [
        run.evaluations.assign(policy=arm.name, seed=run.seed, samples=run.evaluations["problem_samples"])
        for arm in arms
        for run in arm.runs
    ]
    return pd.concat(steps), pd.concat(evaluations).rename(columns={"spent": "seconds"})


def has_problems(arms: list[Arm]) -> bool:
    """Whether single problems are known of every run."""
    return all("right" in run.evaluations and len(run.evaluations) for arm in arms for run in arm.runs)


def best_of(policies: list[str]) -> list[str]:
    """The fixed sizes that the best is chosen from: those of unpatched OpenRLHF, else all, else the first arm."""
    fixed = [policy for policy in policies if _is_fixed(policy)]
    return [policy for policy in fixed if parse_policy(policy).kind == "unpatched"] or fixed or policies[:1]


def _is_fixed(name: str) -> bool:
    try:
        return parse_policy(name).is_fixed_size
    except ValueError:
        return False


def summaries(arms: list[Arm], settings: dict) -> list[dict]:
    """A row an arm.

    Args:
        arms: of one algorithm, with the rewards of single problems.
        settings: with the `target` of the held-out reward and the training `seconds` of a run.
    """
    steps, mine = frames_of(arms)
    policies = [arm.name for arm in arms]
    evaluations = {policy: mine[mine["policy"] == policy] for policy in policies}
    draws = {name: resample(frame, settings, np.random.default_rng(0)) for name, frame in evaluations.items()}
    curves = {policy: curves_of(mine, policy, settings) for policy in policies}
    mean_times = {policy: mean_time_of(curves[policy], settings["target"]) for policy in policies}
    choice = best_of(policies)
    shared = curves[choice[0]].index
    for policy in choice:
        shared = shared.intersection(curves[policy].index)
    # A size that ran with more seeds than the others is no better for them.
    fair = {policy: curves[policy].loc[shared] if len(shared) else curves[policy] for policy in choice}
    best = min(
        choice,
        key=lambda policy: (mean_time_of(fair[policy], settings["target"])["value"], draws[policy]["time"][0]),
    )
    run_seconds = steps[~steps["first"]].groupby(["seed", "policy"])["seconds"].mean().unstack()
    rows = []
    for arm in arms:
        policy = arm.name
        sooner = {
            target: sooner_than(fair[best], curves[policy], target) if best != policy else None
            for target in other_targets(settings)
        }
        own = sooner[settings["target"]]
        rows.append(
            {
                "algorithm": arm.algorithm,
                "policy": policy,
                "runs": len(arm.runs),
                "reached": int(np.isfinite(of_runs(mine, policy, settings["target"])).sum()),
                "time_to_target": draws[policy]["time"],
                "speedup": speedup_of(draws[best]["time"], draws[policy]["time"]),
                "best_fixed": best,
                "mean_time": mean_times[policy],
                "sooner": sooner,
                "told_apart": {seeds: told_apart(own, seeds) for seeds in PLANNED} if own else None,
                **{name: draws[policy][name] for name in ("reward", "solved", "passed")},
                **heldout_lengths(evaluations[policy]),
                "step_speedup": times_as_fast(run_seconds, best, policy),
                "against": {
                    other: {
                        "sooner": sooner_than(curves[other], curves[policy], settings["target"]),
                        "step": times_as_fast(run_seconds, other, policy),
                    }
                    for other in policies
                    if other != policy
                },
                **step_figures(arm),
            }
        )
    return rows


def step_figures(arm: Arm) -> dict[str, float]:
    """What an arm's steps were like: means over runs of what a run's steps behind the first have on average.

    `bound` is how many times as fast a step without any idle tail would be.
    """
    later = pd.DataFrame([run.later.mean(numeric_only=True) for run in arm.runs]).mean()
    found = {
        "steps": float(np.mean([len(run.steps) for run in arm.runs])),
        "step_seconds": later["seconds"],
        "length_first": np.mean([run.steps["length"].head(ENDS).mean() for run in arm.runs]),
        "length_last": np.mean([run.steps["length"].tail(ENDS).mean() for run in arm.runs]),
        "bound": later["seconds"] / (later["seconds"] - later["idle_tail"]),
    }
    found |= {name: later[name] for name in ("group_size", "straggler_rate", "idle_tail", "length_max")}
    later["decoding"] = later["generation"] - later["idle_tail"]
    return found | {f"s_{name}": later[name] for name in ("decoding", "idle_tail", "experience", "training", "sync")}


def heldout_lengths(evaluations: pd.DataFrame) -> dict[str, float]:
    """Mean tokens of held-out responses before training and at the end, means over seeds; NaN in older files."""
    if "tokens" not in evaluations:
        return {"heldout_before": np.nan, "heldout_after": np.nan}
    by_seed = evaluations.groupby("seed")["tokens"]
    return {"heldout_before": by_seed.first().mean(), "heldout_after": by_seed.last().mean()}


def other_targets(settings: dict) -> list[float]:
    """The target and held-out rewards around it, for which the report says who is sooner."""
    others = [settings["target"] + more for more in OTHER_TARGETS if 0 < settings["target"] + more < 1]
    return sorted([settings["target"], *(round(other, 4) for other in others)])


def section(rows: list[dict], arms: list[Arm], settings: dict) -> Section:
    """The tables of the rows that `summaries` gives, with their verdicts."""
    blocks: list = [
        f"Means over seeds [{LEVEL:.0%} intervals]; {settings['seconds']:.0f} s of training a run, counted from the "
        f"end of its first step. Limit of the straggler rate {settings['max_straggler_rate']} at max / median "
        f"{settings['straggler_ratio']}. Mean seconds to the rewards up to a target, and times sooner, have intervals "
        "of Student's t over seeds. All else has a bootstrap over seeds and held-out problems, of which a draw in "
        "which neither of two arms reaches the target is left out; with three seeds it is too narrow for its level "
        "where seeds differ much. Mean times end with a run's seconds, first crossings with its last evaluation, "
        "which is later. A dash: not reached, by a run or by the mean curve, or nothing to compare with, also where "
        "runs begin above.",
        main_table(rows, settings),
        *verdict(rows, settings["target"]),
        "Times sooner than the best fixed, with the rewards up to other targets:",
    ]
    others = rows[0]["sooner"]
    ratios = [[row["policy"], *map(with_ends, row["sooner"].values())] for row in rows]
    blocks.append(Table(["policy", *map(str, others)], ratios, "l" + "r" * len(others)))
    blocks += against_each(rows)
    _, evaluations = frames_of(arms)
    blocks += [
        "Held-out reward at the same step, and differences, paired by seed and problem:",
        by_step(evaluations, settings),
    ]
    return Section("Held-out problems", [*blocks, "Each run:", each_run(arms, settings)])


def against_each(rows: list[dict]) -> list[str | Table]:
    """A table of this project's policies against every unpatched one, and against those of its own that stand below."""
    unpatched = best_of([row["policy"] for row in rows])
    own = [row for row in rows if row["policy"] not in unpatched]
    pairs = [
        [row["policy"], other, with_ends(row["against"][other]["sooner"]), with_ends(row["against"][other]["step"])]
        for number, row in enumerate(own)
        for other in [*unpatched, *(lower["policy"] for lower in own[number + 1 :])]
    ]
    titles = ["policy", "against", "times sooner, up to the target", "a step times as fast"]
    return ["Against each other policy:", Table(titles, pairs, "llrr")] if pairs else []


def main_table(rows: list[dict], settings: dict) -> Table:
    """A row a policy."""
    found = [
        {
            "policy": row["policy"] + (" (best fixed)" if row["policy"] == row["best_fixed"] else ""),
            "runs": str(row["runs"]),
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
            "longest response": f"{row['length_max']:.0f}",
            "idle tail, s a step": f"{row['idle_tail']:.2f}",
            "a step times as fast without it": f"{row['bound']:.2f}",
            "trained length, first and last steps": f"{row['length_first']:.0f} → {row['length_last']:.0f}",
            "held-out length, before and after": (
                f"{whole_or_dash(row['heldout_before'])} → {whole_or_dash(row['heldout_after'])}"
            ),
        }
        for row in rows
    ]
    return table(found)


def by_step(mine: pd.DataFrame, settings: dict) -> Table:
    """A table of the held-out rewards at each step that all runs evaluated: whether arms learn as much from a step.

    The reference is the first policy; differences are paired by seed and problem.
    """
    policies = list(mine["policy"].unique())
    steps = set.intersection(*(set(run["step"]) for _, run in mine.groupby(["policy", "seed"])))
    rows = []
    for step in sorted(steps):
        at_step = mine[mine["step"] == step]
        base, *others = (at_step[at_step["policy"] == policy] for policy in policies)
        means = [interval(_reward_of(arm, settings), 3) for arm in (base, *others)]
        rows.append([str(int(step)), *means, *(_more_than(base, arm, settings) for arm in others)])
    titles = ["step", *policies, *(f"{policy} - {policies[0]}" for policy in policies[1:])]
    return Table(titles, rows, "r" * len(titles))


def _reward_of(evaluations: pd.DataFrame, settings: dict) -> np.ndarray:
    return resample(evaluations, settings, np.random.default_rng(0))["reward"]


def _more_than(base: pd.DataFrame, mine: pd.DataFrame, settings: dict) -> str:
    """The difference over the seeds that both have."""
    both = [one[one["seed"].isin(other["seed"])] for one, other in ((base, mine), (mine, base))]
    return "–" if both[0].empty else interval(_reward_of(both[1], settings) - _reward_of(both[0], settings), 3)


def each_run(arms: list[Arm], settings: dict) -> Table:
    """A row a run: what it reached, how fast the machine was meanwhile, and with whom it shared that, if known."""
    target, seconds, rows = settings["target"], settings["seconds"], []
    for arm in arms:
        for run in arm.runs:
            rewards_V, seconds_V = run.evaluations["reward"].to_numpy()[None], run.evaluations["spent"].to_numpy()
            rows.append(
                {
                    "policy": arm.name,
                    "seed": str(run.seed),
                    f"s to {target}": whole_or_dash(time_to(target, seconds_V, rewards_V)[0]),
                    f"held-out reward after {seconds:.0f} s": f"{value_at(seconds, seconds_V, rewards_V)[0]:.3f}",
                    "s a step": f"{run.later['seconds'].mean():.2f}",
                    "median s of training": f"{run.later['training'].median():.2f}",
                    "took turns with": str(run.later.get("turns", pd.Series(["–"])).fillna("–").iloc[0]),
                }
            )
    return table(rows)


def whole_or_dash(number: float) -> str:
    """A whole number; a dash for what is none, such as the seconds to a reward that was not reached."""
    return f"{number:.0f}" if np.isfinite(number) else "–"


def verdict(rows: list[dict], target: float) -> list[str]:
    """One sentence for each policy that `best_fixed` was not chosen from: sooner, later, or no significant difference.

    It is about the mean time to the rewards up to the target. A further one says what more seeds would tell apart.
    """
    lines = []
    mean_times = {row["policy"]: row["mean_time"]["value"] for row in rows}
    for row in rows:
        policy, best, sooner = row["policy"], row["best_fixed"], row["sooner"][target]
        if policy == best or of_same_kind(policy, best):
            continue
        if sooner["runs"] < FEWEST:
            what = f"has too few runs for a verdict ({sooner['runs']} of {FEWEST})"
        elif not np.isfinite(mean_times[policy]):
            what = f"did not reach {target} on average"
        elif not np.isfinite(mean_times[best]):
            what = f"reached {target} on average, which no fixed size did"
        elif sooner["low"] is None or sooner["low"] <= 1 <= sooner["high"]:
            what = f"against the best fixed size ({best}): no significant difference in the time to the rewards "
            what += f"up to {target}"
        elif sooner["low"] > 1:
            what = f"reached the rewards up to {target} sooner than the best fixed size ({best})"
        else:
            what = f"reached the rewards up to {target} later than the best fixed size ({best}): the fixed size wins"
        times = f"; {with_ends(sooner)} times sooner" if np.isfinite(sooner["value"]) else ""
        line = f"{policy} {what}{times}."
        if np.isfinite(row["told_apart"][PLANNED[0]]):
            told = ", ".join(f"{seeds} seeds {ratio:.2f}" for seeds, ratio in row["told_apart"].items())
            line += f" Ratios that this spread lets a comparison tell from 1, with a power of {POWER}: about {told}."
        lines.append(line)
    return lines


def of_same_kind(policy: str, best: str) -> bool:
    """Whether a policy is a fixed size of the same OpenRLHF as the best one."""
    if not (_is_fixed(policy) and _is_fixed(best)):
        return False
    return parse_policy(policy).kind == parse_policy(best).kind
