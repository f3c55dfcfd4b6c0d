"""What an answer asks to be logged beside its reward: numbers under names. Nothing else of it can cost the reward."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from openrlhf_sagc.engine.answers import LARGEST, MOST_NESTED, short

LOGS = "extra_logs"  # key of an answer and of a response
LEFT_OUT = "extra_logs_left_out"  # key of a response: what of its logs is not logged, "" if nothing
MOST_NAMES = 500  # of an answer, and of a step
LONGEST_NAME = 200  # characters


def as_logs(logs: Any) -> dict:
    """The logs of an answer as a dict, as OpenRLHF wants them; what is none is a single log."""
    if logs is None:
        return {}
    try:
        return dict(logs) if isinstance(logs, Mapping) else {LOGS: logs}
    except Exception:  # of an object's own making
        return {LOGS: None}


def numbers_of(logs: dict) -> tuple[dict[str, float], str]:
    """The finite numbers among the first MOST_NAMES logs, under names that can be printed; and what is left out.

    A tensor or an array stands for its first number, as in OpenRLHF. What is left out is said in a few words, of the first
    such log alone.
    """
    numbers: dict[str, float] = {}
    left_out = ""
    for name, value in islice(logs.items(), MOST_NAMES):
        number = _number(value)
        if number is not None and _is_name(name):
            numbers[str.__str__(name)] = number  # no more than a str: a class of the user's is unknown in the driver
        elif not left_out:
            left_out = f"extra_logs[{short(name)}] is {short(value)}"
    if len(logs) > MOST_NAMES and not left_out:
        left_out = f"extra_logs has {len(logs)} names, and the first {MOST_NAMES} are looked at"
    return numbers, left_out


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _number(value: Any) -> float | None:
    try:
        if not isinstance(value, (int, float)):
            value = _single(value)
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except Exception:  # of an object's own making, or a whole number beyond all floats
        return None
    return number if abs(number) <= LARGEST else None


def _single(value: Any) -> Any:
    """What stands alone in a list, or first in a tensor or array."""
    for _ in range(MOST_NESTED):
        if getattr(value, "ndim", 0) and len(value):
            value = value.flatten()[0]
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)) or len(value) != 1:
            break
        value = value[0]
    return value
