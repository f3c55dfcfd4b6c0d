"""The verdict on two arms in a sentence: faster, slower, or cannot tell, and what would tell."""

import numpy as np
from lib.run_report.blocks import LEAST_STEPS
from lib.run_report.statistics import POWER, told_apart, with_ends
from scipy.stats import norm

SMALLEST = 1.05  # ratio that is worth telling, where none is seen
OF_STEPS = (
    "That interval is of steps: it does not know how much runs, or the hours of a machine, differ. Three seeds or more "
    "of each, in turns, would tell."
)
MOST_SEEDS, MOST_STEPS = 100, 100_000


def verdict(mine: str, base: str, found: dict[str, float | None], steps: int, what: str = "a step") -> str:
    """One sentence.

    Args:
        mine, base: names of the arms.
        found: how many times as fast, with its interval; `runs` where that is over seeds.
        steps: behind the warm-up, of the arm that has fewer.
        what: is faster or slower.
    """
    against = f"{mine} against {base}"
    if steps < LEAST_STEPS:
        return f"{against}: cannot tell: {steps} steps after the warm-up, {LEAST_STEPS} or more would do."
    if found["value"] is None or not np.isfinite(found["value"]):
        return f"{against}: cannot tell, the seconds of a step are not known for both."
    times = f"{what} is {with_ends(found)} times as fast"
    if found["low"] is None:
        return f"{against}: cannot tell, {times}, without an interval."
    if found["low"] > 1 or found["high"] < 1:
        word = "faster" if found["low"] > 1 else "slower"
        takes = f"{times}, and takes {100 / found['value']:.0f} % of the seconds."
        if "runs" in found:
            return f"{mine} is {word} than {base}: {takes}"
        return f"In these runs {mine} was {word} than {base}: {takes} {OF_STEPS}"
    return f"{against}: cannot tell which is faster: {times}. {needed(found, steps)}"


def needed(found: dict[str, float | None], steps: int) -> str:
    """How many steps or seeds would tell the difference that is seen, or one of 5 % if that is larger."""
    size = max(abs(np.log(found["value"])), np.log(SMALLEST))
    difference = f"a difference of {100 * (np.exp(size) - 1):.0f} %"
    if "runs" in found:
        if found["runs"] < 3:
            return "Three seeds or more of each arm would say how many tell it."
        for seeds in range(found["runs"] + 1, MOST_SEEDS + 1):
            if told_apart(found, seeds) <= np.exp(size):
                return f"About {seeds} seeds of each would tell {difference} (power {POWER})."
        return f"More than {MOST_SEEDS} seeds of each would be needed to tell {difference}."
    half = np.log(found["high"] / found["low"]) / 2
    error = half / norm.ppf(0.975)
    more = steps * ((norm.ppf(0.975) + norm.ppf(POWER)) * error / size) ** 2
    if more > MOST_STEPS:
        return f"More than {MOST_STEPS} steps of each would be needed to tell {difference}."
    return f"About {max(int(np.ceil(more)), steps + 1)} steps of each would tell {difference} (power {POWER})."
