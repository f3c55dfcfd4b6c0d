"""What a comparison on the real stack says of each method against plain steps, at equal steps, by seed."""

import pandas as pd
from lib.intervals import half_of, interval
from lib.run_report.measured import PARTS
from lib.run_report.statistics import times_as_fast, with_ends


def against_plain(steps: pd.DataFrame, plain: str, first_episode: int) -> pd.DataFrame:
    """A row an arm, over the steps that all runs have.

    Args:
        steps: of a comparison, a row each, as eval/compare.py writes them.
        plain: the arm whose steps are plain.
        first_episode: its steps, in which no prompt has a history.

    Returns:
        Mean reward, and seconds of a step after the first episode; with 95 % intervals over the seeds: the reward minus that of plain
        steps, the length of what is trained in % of theirs, and how many times as fast a step and its generation are. The
        tokens wasted are a share of those decoded.
    """
    common = int(steps.groupby(["seed", "policy"]).size().min())
    steps = steps[steps["step"] <= common].assign(all_parts=steps[[*PARTS]].sum(axis=1))
    later = steps[steps["step"] > first_episode]
    base = means_of(steps, plain)
    rows = []
    for arm in steps["policy"].unique():
        own = means_of(steps, arm)
        wasted = own["wasted_tokens"] / (own["wasted_tokens"] + own["trained"] * own["trained_length"])
        row = {"arm": arm, "seeds": len(own), "steps": common, "reward": f"{own['reward'].mean():.3f}"}
        row |= {
            "s a step": f"{means_of(later, arm)['all_parts'].mean():.2f}",
            "tokens wasted, %": f"{100 * wasted.mean():.1f}",
        }
        if arm != plain:
            reward = own["reward"] - base["reward"]
            length = 100 * (own["trained_length"] / base["trained_length"] - 1)
            row |= {"reward minus plain": interval(reward.mean(), half_of(reward), digits=3)}
            row |= {"length, %": interval(length.mean(), half_of(length))}
            row |= {"step, times as fast": faster(steps, plain, arm, "all_parts")}
            row |= {"after the first episode": faster(later, plain, arm, "all_parts")}
            row |= {"generation after it": faster(later, plain, arm, "generation")}
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def means_of(steps: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Means of an arm's steps, a row a seed."""
    return steps[steps["policy"] == arm].groupby("seed").mean(numeric_only=True)


def faster(steps: pd.DataFrame, plain: str, arm: str, part: str) -> str:
    """How many times as fast the arm is in these seconds."""
    seconds = steps.pivot_table(index="seed", columns="policy", values=part)
    return with_ends(times_as_fast(seconds, plain, arm))
