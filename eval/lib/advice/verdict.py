"""Which switch to advise, if any."""

from typing import NamedTuple

import pandas as pd
from lib.advice.calibration import Calibration

LEAST_GAIN = 0.03  # that is worth a flag
NAMED_WASTE = 0.03  # share of the tokens that is decoded in vain and said


class Verdict(NamedTuple):
    """`switch` is the name of the advised one; None if there is none. `reason` says why, in words."""

    switch: str | None
    flags: str
    reason: str


def verdict(rows: pd.DataFrame, calibration: Calibration) -> Verdict:
    """The switch with the highest lower end of its gain, if that is more than the simulator's own error.

    Of switches that this error does not tell apart from it, the one with the fewest flags.

    Args:
        rows: as `gains` has them.
        calibration: of the engine.
    """
    floor = floor_of(calibration)
    tried = rows.iloc[1:].dropna(subset="low")
    if tried.empty:
        return Verdict(None, "", "No switch could be replayed")
    best = tried.loc[tried["low"].idxmax()]
    if best["low"] > floor:
        as_good = tried[tried["low"] >= max((1 + best["low"]) / (1 + floor) - 1, floor)]
        fewest = as_good["flags"].str.count("--")
        best = as_good.loc[as_good["low"].where(fewest == fewest.min()).idxmax()]
        return Verdict(best["switch"], best["flags"], f"It gains {interval(best)}{price(best, rows.iloc[0])}")
    found = f"the best candidate is {best['switch']}, {interval(best)}"
    if best["low"] <= 0:
        return Verdict(None, "", f"No gain is significant: {found}")
    why = "too small for a flag, below" if floor == LEAST_GAIN else "within the simulator's own error,"
    return Verdict(None, "", f"The gain may be {why} {100 * floor:.0f} %: {found}")


def price(row: pd.Series, base: pd.Series) -> str:
    """What a switch that stops rollouts pays for its gain, in words; empty if it wastes hardly more than the run as it is."""
    if row["wasted_share"] < base["wasted_share"] + NAMED_WASTE:
        return ""
    return f", from steps that stop rollouts: {row['wasted_share']:.0%} of the tokens are decoded in vain"


def floor_of(calibration: Calibration) -> float:
    """The gain that a switch has to exceed."""
    return max(calibration.error, LEAST_GAIN)


def interval(row: pd.Series) -> str:
    """The gain with the ends of its interval, in %."""
    return "{:+.0f} % [{:+.0f}, {:+.0f}]".format(*(100 * row[["gain", "low", "high"]].to_numpy(float)))
