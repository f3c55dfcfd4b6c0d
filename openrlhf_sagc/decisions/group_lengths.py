"""Groups of rollout lengths as arrays: checked, sorted by group size, compared with their medians."""

import math
import sys
from collections.abc import Iterable, Sequence
from numbers import Real

import numpy as np


def lengths_by_size(groups: Sequence[Sequence[float]]) -> dict[int, np.ndarray]:
    """Group size -> [groups of that size, size] float64.

    Raises:
        ValueError: a group is empty, or a length is negative, NaN or infinite; the message names the first such group.
    """
    by_size: dict[int, list[Sequence[float]]] = {}
    for group in groups:
        by_size.setdefault(len(group), []).append(group)
    try:
        arrays = {size: np.asarray(rows) for size, rows in by_size.items()}
    except ValueError:
        arrays = {}
    if arrays.keys() == by_size.keys() and all(map(_is_valid, arrays.values())):
        return {size: lengths.astype(np.float64) for size, lengths in arrays.items()}
    for index, group in enumerate(groups):
        _check(group, index)
    return {size: np.array([[float(x) for x in row] for row in rows]) for size, rows in by_size.items()}


def unfinished_by_size(groups: Sequence[Sequence[float]], running: Iterable[Sequence[bool]]) -> dict[int, np.ndarray]:
    """Group size -> [groups of that size, size] bool, in the order of `lengths_by_size`.

    Raises:
        ValueError: `running` has another shape than `groups`.
    """
    rows = list(running)
    if [len(row) for row in rows] != [len(group) for group in groups]:
        raise ValueError("running must have an entry for every rollout of every group")
    by_size: dict[int, list[Sequence[bool]]] = {}
    for row in rows:
        by_size.setdefault(len(row), []).append(row)
    return {size: np.array(rows, dtype=bool) for size, rows in by_size.items()}


def medians(lengths: np.ndarray) -> np.ndarray:
    """[groups, 1]; the middle two are averaged: with the lower one, a group of two would have an event at random."""
    ordered, size = np.sort(lengths, axis=1), lengths.shape[1]
    low, high = ordered[:, (size - 1) // 2], ordered[:, size // 2]
    return (low + (high - low) / 2)[:, None]


def reaches_ratio(lengths: np.ndarray, median: np.ndarray, ratio: float) -> np.ndarray:
    """[groups, size] bool: which rollouts reach `ratio` times the median of their group; equal lengths never do."""
    with np.errstate(over="ignore"):
        return (lengths >= ratio * median) & (lengths > median)


def ratios_to(median: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[groups, size] lengths over the median of their group; 1 where both are 0."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.where(lengths == median, 1.0, lengths / median)


def is_finite(value: object, lowest: float) -> bool:
    """Whether it is a finite number of at least `lowest`."""
    return isinstance(value, Real) and lowest <= value <= sys.float_info.max  # type: ignore[operator]


def _is_valid(lengths: np.ndarray) -> bool:
    if lengths.ndim != 2 or lengths.shape[1] == 0 or lengths.dtype.kind not in "biuf":
        return False
    return bool(lengths.min() >= 0 and lengths.max() < math.inf)  # NaN fails both


def _check(group: Sequence[float], index: int) -> None:
    if not len(group):
        raise ValueError(f"group {index} has no rollouts")
    for length in group:
        if not is_finite(length, 0.0):
            raise ValueError(f"group {index} has a length of {length}; lengths must be finite and not negative")
