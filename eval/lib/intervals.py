"""Means over seeds with their 95 % intervals."""

import math

import pandas as pd
from scipy import stats


def half_of(values: pd.Series) -> float:
    """Half of the 95 % interval of a mean."""
    return float(stats.t.ppf(0.975, len(values) - 1) * values.sem()) if len(values) > 1 else math.nan


def interval(mean: float, half: float, multiplied: bool = False, digits: int = 2) -> str:
    """A mean with the ends of its interval, which are so far off or times as much."""
    low, high = (mean / half, mean * half) if multiplied else (mean - half, mean + half)
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
