"""The study's table and plot, from the rows of steps.csv and evaluations.csv."""

from pathlib import Path

import numpy as np
import pandas as pd
from lib.plots import plt, save
from lib.run_report.statistics import LEVEL, right_of, sooner_than, times_as_fast, with_ends
from lib.tables import markdown
from scipy.stats import t

PLAIN, ASYNCHRONOUS = "plain", "asynchronous"
TIMES = 201  # of a curve
HEADINGS = {
    "two": "two GPUs",
    "four": "four GPUs",
    "drafts": "two GPUs, drafts, Route",
    "countdown": "two GPUs, drafts, Countdown",
    "pool": "an engine and a trainer, a pool",
}
BARS = {  # of the first screen: shape and arms, those that it is compared with first
    "GRPO": ("two", {"plain": "plain steps", "asynchronous": "OpenRLHF's asynchronous", "auto": "tail batching"}),
    "GRPO with DAPO's filter": ("two", {"filter": "plain steps", "auto, filter": "tail batching"}),
    "GRPO, text easy to foresee": ("drafts", {"plain": "plain steps", "auto, drafts": "tail batching, drafts"}),
    "an engine and a trainer": ("pool", {"asynchronous": "OpenRLHF's asynchronous", "pool, 4": "a pool"}),
}
TITLES = [
    "arm",
    "seeds",
    "s a step",
    "first third",
    "later",
    "generation, later",
    "times as fast as plain",
    "in the first third",
    "later",
    "reward - plain's",
    "trained length / plain's",
    "in vain %",
    "sooner at the same reward",
    "late iterations %",
]
POOL_TITLES = [
    "arm",
    "seeds",
    "s a step",
    "times as fast as asynchronous",
    "later",
    "reward - asynchronous's",
    "trained length / asynchronous's",
    "sooner at the same reward",
    "age",
    "oldest",
    "engines wait %",
    "actors wait %",
    "late iterations %",
]
SEED_TITLES = [
    "arm",
    "seed",
    "s a step",
    "training s",
    "times as fast as plain",
    "as asynchronous",
    "reward - plain's, first third",
    "later",
    "trained length / plain's, first third",
    "later",
    "last held-out reward",
]


def table(steps: pd.DataFrame, evaluations: pd.DataFrame) -> str:
    """Markdown: two tables a shape, a row an arm and a row a run.

    Ratios and differences are paired by seed, in the first table with 95 % intervals over seeds.
    """
    text = ""
    for shape, mine in steps.groupby("shape", sort=False):
        their_evaluations = evaluations[evaluations["shape"] == shape]
        for titles, rows in (
            (
                (POOL_TITLES, pools(mine, their_evaluations))
                if shape == "pool"
                else (TITLES, summaries(mine, their_evaluations))
            ),
            (SEED_TITLES, by_seed(mine, their_evaluations)),
        ):
            text += f"\n{HEADINGS[shape]}\n\n" + markdown(titles, rows, alignment="l" + "r" * (len(titles) - 1))
    return text.lstrip()


def summaries(steps: pd.DataFrame, evaluations: pd.DataFrame) -> list[list[str]]:
    """The rows of a shape's table."""
    runs, wide = runs_of(steps)
    rows = []
    for arm, mine in runs.groupby("arm", sort=False):
        means = [f"{mine[name].mean():.2f}" for name in ("all", "first", "later", "generation")]
        ratios = [with_ends(times_as_fast(wide[name], PLAIN, arm)) for name in ("all", "first", "later")]
        own, plain = wide["length"].reindex(columns=[arm, PLAIN]).dropna().to_numpy().sum(axis=0)
        length = own / plain if plain else np.nan
        rows.append(
            [arm, len(mine), *means, *ratios, difference(wide["reward"], arm, PLAIN), f"{length:.3f}"]
            + [
                f"{100 * mine['in_vain'].mean():.1f}",
                with_ends(sooner(evaluations, arm, PLAIN)),
                f"{100 * mine['late'].mean():.1f}",
            ]
        )
    return rows


def pools(steps: pd.DataFrame, evaluations: pd.DataFrame) -> list[list[str]]:
    """The rows of asynchronous training's table, beside OpenRLHF's."""
    runs, wide = runs_of(steps)
    rows = []
    for arm, mine in runs.groupby("arm", sort=False):
        own, theirs = wide["length"][[arm, ASYNCHRONOUS]].dropna().to_numpy().sum(axis=0)
        words = [arm, str(len(mine)), f"{mine['all'].mean():.2f}"]
        words += [with_ends(times_as_fast(wide[name], ASYNCHRONOUS, arm)) for name in ("all", "later")]
        words += [difference(wide["reward"], arm, ASYNCHRONOUS), f"{own / theirs:.3f}"]
        words += [with_ends(sooner(evaluations, arm, ASYNCHRONOUS))]
        words += [f"{mine['age_mean'].mean():.2f}", f"{mine['age_max'].max():.0f}"]
        words += [f"{100 * mine[name].mean():.0f}" for name in ("engines_wait_share", "actors_wait_share")]
        rows.append([word.replace("nan", "–") for word in [*words, f"{100 * mine['late'].mean():.1f}"]])
    return rows


def runs_of(steps: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """What the tables have of each run, a row a run, and each of these by seed and arm."""
    runs = pd.DataFrame(
        [run_of(run) | {"arm": arm, "seed": seed} for (arm, seed), run in steps.groupby(["arm", "seed"], sort=False)]
    )
    return runs, {
        name: runs.pivot(index="seed", columns="arm", values=name) for name in runs if name not in ("arm", "seed")
    }


def by_seed(steps: pd.DataFrame, evaluations: pd.DataFrame) -> list[list[str]]:
    """A row a run, beside plain's and asynchronous training's of its seed."""
    runs = {key: run_of(run) for key, run in steps.groupby(["arm", "seed"], sort=False)}
    ends = evaluations[evaluations["step"] == evaluations["step"].max()]  # asynchronous training does not evaluate it
    last = {key: right_of(run).mean().item() for key, run in ends.groupby(["arm", "seed"])}
    rows = []
    for (arm, seed), mine in runs.items():
        none = dict.fromkeys(mine, np.nan)
        plain, other = (runs.get((name, seed), none) for name in (PLAIN, ASYNCHRONOUS))
        numbers = [mine["all"], mine["training"], plain["all"] / mine["all"], other["all"] / mine["all"]]
        spans = ("first", "later")
        words = [f"{number:.2f}" for number in numbers]
        words += [f"{mine[f'{span} reward'] - plain[f'{span} reward']:.3f}" for span in spans]
        words += [f"{mine[f'{span} length'] / plain[f'{span} length']:.3f}" for span in spans]
        rows.append([arm, str(seed), *words, f"{last.get((arm, seed), np.nan):.3f}"])
    return [[word.replace("nan", "–") for word in row] for row in rows]


def run_of(run: pd.DataFrame) -> dict[str, float]:
    """What the table has of a run. The first step warms up and is left out."""
    third, run = len(run) // 3, run.iloc[1:]
    first, later = run.iloc[: third - 1], run.iloc[third - 1 :]
    tokens = (run["length_mean"] * run["rollouts"]).sum() + run["wasted_tokens"].sum()
    return {
        "all": run["step_seconds"].mean(),
        "first": first["step_seconds"].mean(),
        "later": later["step_seconds"].mean(),
        "generation": later["generation"].mean(),
        "reward": run["reward"].mean(),
        "length": run["trained_length"].mean(),
        "in_vain": run["wasted_tokens"].sum() / tokens,
        "late": run["late_share"].iloc[0],
        "training": run["training"].mean(),
        **run.reindex(columns=["age_mean", "engines_wait_share", "actors_wait_share"]).mean(),
        "age_max": run["age_max"].max() if "age_max" in run else np.nan,
        **{f"{span} reward": part["reward"].mean() for span, part in (("first", first), ("later", later))},
        **{f"{span} length": part["trained_length"].mean() for span, part in (("first", first), ("later", later))},
    }


def difference(wide: pd.DataFrame, arm: str, other: str) -> str:
    """Mean over seeds of an arm minus another one, with Student's interval."""
    if other not in wide or arm == other:
        return "–"
    found = (wide[arm] - wide[other]).dropna()
    if len(found) < 2:
        return f"{found.mean():.3f}"
    half = t.ppf((1 + LEVEL) / 2, len(found) - 1) * found.std() / np.sqrt(len(found))
    return f"{found.mean():.3f} [{found.mean() - half:.3f}, {found.mean() + half:.3f}]"


def curves_of(evaluations: pd.DataFrame, arm: str, seconds: float) -> pd.DataFrame:
    """Held-out reward over time: a row a seed."""
    times_T = np.linspace(0, seconds, TIMES)
    mine = evaluations[evaluations["arm"] == arm]
    rows = {seed: np.interp(times_T, run["seconds"], right_of(run).mean(axis=1)) for seed, run in mine.groupby("seed")}
    return pd.DataFrame.from_dict(rows, orient="index", columns=times_T)


def sooner(evaluations: pd.DataFrame, arm: str, other: str) -> dict[str, float | None] | None:
    """How many times sooner an arm than the other has the rewards up to the highest that both reach, as of `sooner_than`.

    They reach it without any one seed too, so that there is an interval.
    """
    if arm == other or other not in set(evaluations["arm"]):
        return None
    seconds = evaluations.loc[evaluations["arm"].isin([arm, other]), "seconds"].max()
    curves = [curves_of(evaluations, name, seconds) for name in (other, arm)]
    seeds = curves[0].index.intersection(curves[1].index)
    others = [seeds.drop(seed) for seed in seeds] if len(seeds) > 1 else [seeds]
    target = min(curve.loc[some].mean().max() for curve in curves for some in others) - 1e-6
    return sooner_than(*curves, target)


def seconds_of(steps: pd.DataFrame, shape: str, arm: str) -> float:
    """A step's mean seconds over all seeds, without the first step, which warms up."""
    return steps[(steps["shape"] == shape) & (steps["arm"] == arm) & (steps["step"] > 1)]["step_seconds"].mean()


def bars(steps: pd.DataFrame, file: Path) -> None:
    """Seconds of a step as bars: what each gain is compared with, and below it what this package takes."""
    figure, axis = plt.subplots(figsize=(9, 3.6))
    place, ticks = 0.0, []
    for title, (shape, arms) in BARS.items():
        axis.text(0, place - 0.75, title, weight="bold", va="center", fontsize=9)
        for arm, name in arms.items():
            seconds, ours = seconds_of(steps, shape, arm), arm == list(arms)[-1]
            axis.barh(place, seconds, color="#2a7f62" if ours else "#b8b8b8")
            axis.text(seconds + 0.15, place, f"{seconds:.1f} s", va="center", fontsize=9)
            ticks.append((place, name))
            place += 1
        place += 1
    axis.set_yticks(*zip(*ticks), fontsize=9)
    axis.invert_yaxis()
    axis.set(xlabel="seconds of a step, engines paced like a GPU's; green is this package", xlim=(0, 18))
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    save(figure, file)


def plot(steps: pd.DataFrame, evaluations: pd.DataFrame, file: Path) -> None:
    """Seconds of each step, and held-out rewards over the seconds, means over seeds, of the arms with most seeds."""
    steps = steps[steps["shape"] == "two"]
    seeds = steps.groupby("arm", sort=False)["seed"].nunique()
    arms = [arm for arm in seeds.index if seeds[arm] == seeds.max()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.5))
    for arm in arms:
        mine = steps[(steps["arm"] == arm) & (steps["step"] > 1)]
        mean = mine.groupby("step")["step_seconds"].mean()
        left.plot(mean.index, mean.rolling(5, min_periods=1, center=True).mean(), label=arm)
        found = evaluations[(evaluations["arm"] == arm) & (evaluations["shape"] == "two")]
        found = found.assign(reward=[right_of(found.iloc[[at]]).mean() for at in range(len(found))])
        points = found.groupby("step")[["seconds", "reward"]].mean()
        right.plot(points["seconds"], points["reward"], marker="o", label=arm)
    left.set(xlabel="step", ylabel="seconds a step (mean over seeds and 5 steps)", ylim=(0, None))
    right.set(xlabel="seconds of training", ylabel="held-out reward")
    left.legend()
    right.legend()
    figure.tight_layout()
    save(figure, file)
