"""What reward functions, reward servers and agents answer, checked before it leaves the engine's actor.

An answer that cannot be trained raises a `Failure`, which costs its sample. Unchecked it would end the run in the driver.
"""

import inspect
import math
import reprlib
import traceback
from pathlib import Path
from typing import Any

from openrlhf_sagc.redaction import without_secrets

LARGEST = 1e30  # of a reward: sums over a step and the differences of rloo stay far below float32's 3.4e38
BRIEF = reprlib.Repr()  # of what may be large, in a moment
BRIEF.maxlist = BRIEF.maxtuple = BRIEF.maxset = BRIEF.maxfrozenset = BRIEF.maxdeque = BRIEF.maxdict = 40
BRIEF.maxstring = BRIEF.maxlong = BRIEF.maxother = 2000
MOST_NESTED = 9  # lists or tensors of one around a number


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


def is_missing(reward: Any) -> bool:
    """Whether a response has no reward: None, or `Missing`, also after arithmetic."""
    return reward is None or isinstance(reward, float) and math.isnan(reward)


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
    value = _single(value, who, name)
    if not isinstance(value, (int, float)) or not abs(value) <= LARGEST:  # NaN is not at most anything
        raise Failure(f"{who} returned {name} {short(value)}")
    return float(value)


def _single(value: Any, who: str, name: str) -> Any:
    """What stands alone in a tensor, array or list; the value itself otherwise."""
    for _ in range(MOST_NESTED):
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            break
        if len(value) != 1:
            raise NoReward(f"{who} returned {len(value)} {name}s for 1 sample")
        (value,) = value
    return value


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
