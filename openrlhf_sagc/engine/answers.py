"""In an engine's actor: what reward functions, reward servers and agents answer, checked before it leaves.

An answer that cannot be trained raises a `Failure`, which costs its sample. Unchecked it would end the run in the driver.
What it asks to be logged is numbers under names. Nothing else of that can cost the reward.
"""

import inspect
import math
import reprlib
import traceback
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from openrlhf_sagc.redaction import without_secrets

LARGEST = 1e30  # of a reward: sums over a step and the differences of rloo stay far below float32's 3.4e38
BRIEF = reprlib.Repr()  # of what may be large, in a moment
BRIEF.maxlist = BRIEF.maxtuple = BRIEF.maxset = BRIEF.maxfrozenset = BRIEF.maxdeque = BRIEF.maxdict = 40
BRIEF.maxstring = BRIEF.maxlong = BRIEF.maxother = 2000
MOST_NESTED = 9  # lists or tensors of one around a number
LOGS = "extra_logs"  # key of an answer and of a response
LEFT_OUT = "extra_logs_left_out"  # key of a response: what of its logs is not logged, "" if nothing
MOST_NAMES = 500  # of an answer's logs, and of a step's
LONGEST_NAME = 200  # characters


class Failure(Exception):
    """An error whose message says everything, in one line, without secrets."""

    def __init__(self, message: str):
        super().__init__(without_secrets(message))


class NoReward(Failure):
    """An answer that can be no reward, whatever stands in it: asked again, who gave it would say the same."""


class Missing(float):
    """A reward that could not be fetched, and why; NaN, since for None OpenRLHF raises, which would cost the response."""

    failure: str

    def __new__(cls, failure: str) -> "Missing":
        missing = super().__new__(cls, math.nan)
        missing.failure = failure
        return missing


def describe(error: BaseException, where: str | None = None) -> str:
    """One line: the error's type, its message, shortened, and where it was raised, by default file and line.

    An error without a message stands for its cause. Secrets are left out, see `without_secrets`.
    """
    message = _message(error)
    if not message and error.__cause__ is not None:
        error = error.__cause__
        message = _message(error)
    if isinstance(error, Failure):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if where is None and frames:
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    line = f"{type(error).__name__}: {without_secrets(message)[:300]}"
    return f"{line} ({where})" if where else line


def _message(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except Exception:  # of an error's own making
        return "an error whose message cannot be made"


def check_scores(answer: dict, who: str, reward: str) -> None:
    """Make the reward of an answer and its `scores` finite numbers, in place; the scores are the reward if there are none.

    Args:
        answer: with the reward under the key `reward`, and `scores` or None.
        who: gave the answer.
        reward: the key, "reward" or "rewards".

    Raises:
        Failure: one of them is no such number; the line says who returned what.
    """
    answer[reward] = finite_number(answer.get(reward), who, "reward")
    scores = answer.get("scores")
    has_scores = scores is not None and not isinstance(scores, Missing)
    answer["scores"] = finite_number(scores, who, "score") if has_scores else answer[reward]


def finite_number(value: Any, who: str, name: str) -> float:
    """The number, at most LARGEST in size, in a scalar, tensor, array or list of one.

    Raises:
        Failure: there is none; the line says who returned what.
    """
    value = _single(value)
    if isinstance(value, (list, tuple)) and len(value) != 1:
        raise NoReward(f"{who} returned {len(value)} {name}s for 1 sample")
    if not isinstance(value, (int, float)) or not abs(value) <= LARGEST:  # NaN is not at most anything
        raise Failure(f"{who} returned {name} {short(value)}")
    return float(value)


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
        is_name = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()
        if number is not None and is_name:
            numbers[str.__str__(name)] = number  # no more than a str: a class of the user's is unknown in the driver
        elif not left_out:
            left_out = f"extra_logs[{short(name)}] is {short(value)}"
    if len(logs) > MOST_NAMES and not left_out:
        left_out = f"extra_logs has {len(logs)} names, and the first {MOST_NAMES} are looked at"
    return numbers, left_out


def _number(value: Any) -> float | None:
    """The finite number that a log is; None if it is none."""
    try:
        value = _single(value, is_first=True)
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except Exception:  # of an object's own making, or a whole number beyond all floats
        return None
    return number if abs(number) <= LARGEST else None


def _single(value: Any, is_first: bool = False) -> Any:
    """What stands alone in lists, tensors or arrays, or first in one of these two; else the list or the value itself."""
    for _ in range(MOST_NESTED):
        if is_first and getattr(value, "ndim", False) and len(value):
            value = value.flatten()[0]
        value = plain(value)
        if not isinstance(value, (list, tuple)) or len(value) != 1:
            break
        (value,) = value
    return value


def plain(value: Any) -> Any:
    """The numbers of a tensor or an array; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def kind_of(value: Any) -> str:
    """What a value is, in a message."""
    if inspect.iscoroutine(value):
        value.close()  # or Python warns of it
        return "a coroutine that was not awaited"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def short(value: Any) -> str:
    """The value in a message, without secrets."""
    try:
        return without_secrets(BRIEF.repr(value))[:100]
    except Exception:  # of an object's own making; and Python prints no integer of more than 4,300 digits
        return f"an endless {type(value).__name__}" if isinstance(value, int) else f"a {type(value).__name__}"
