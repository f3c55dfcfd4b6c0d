"""What reward functions, reward servers and agents answer, checked before it leaves the engine's actor.

An answer that cannot be trained raises a `Failure`, which costs its sample. Unchecked it would end the run in the driver.
"""

import math
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_sagc.redaction import without_secrets

LARGEST = 1e30  # of a reward: sums over a step and the differences of rloo stay far below float32's 3.4e38
MISSING = math.nan  # a reward that could not be fetched: OpenRLHF raises for None, which would cost the response


class Failure(Exception):
    """An error whose message says everything, in one line, without secrets."""

    def __init__(self, message: str):
        super().__init__(without_secrets(message))


def describe(error: BaseException, where: str | None = None) -> str:
    """One line: the error's type, its message, shortened, and where it was raised, by default file and line.

    Secrets are left out, see `without_secrets`.
    """
    if isinstance(error, Failure):
        return str(error)
    message = without_secrets(" ".join(str(error).split()))[:300]
    if where is None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {message} ({where})"


def is_missing(reward: Any) -> bool:
    """Whether a response has no reward: None, or `MISSING`, also after arithmetic."""
    return reward is None or isinstance(reward, float) and math.isnan(reward)


def check_scores(answer: dict, who: str, reward: str) -> None:
    """Make the reward, scores and logs of an answer finite numbers, in place.

    Args:
        answer: with the reward under the key `reward`, and `scores` and `extra_logs` or None.
        who: gave the answer.
        reward: the key, "reward" or "rewards".

    Raises:
        Failure: one of them is no such number; the line says who returned what.
    """
    answer[reward] = finite_number(answer.get(reward), who, "reward")
    if answer.get("scores") is not None:
        answer["scores"] = finite_number(answer["scores"], who, "score")
    answer["extra_logs"] = logged_numbers(answer.get("extra_logs"), who)


def finite_number(value: Any, who: str, name: str) -> float:
    """The number, at most LARGEST in size, in a scalar, tensor, array or list of one.

    Raises:
        Failure: there is none; the line says who returned what.
    """
    value = _single(value, who, name)
    if not isinstance(value, (int, float)) or not abs(value) <= LARGEST:  # NaN is not at most anything
        raise Failure(f"{who} returned {name} {_short(value)}")
    return float(value)


def logged_numbers(logs: Any, who: str) -> dict[str, float]:
    """`extra_logs` as the driver can log them: a number under each name, of a tensor the first, as in OpenRLHF.

    Raises:
        Failure: they are no dict, or there is no number under a name.
    """
    if logs is None:
        return {}
    if not isinstance(logs, dict):
        raise Failure(f"{who} returned extra_logs {_short(logs)} instead of a dict")
    return {name: _logged_number(name, value, who) for name, value in logs.items()}


def _logged_number(name: Any, value: Any, who: str) -> float:
    """The number under a name of `extra_logs`."""
    if getattr(value, "ndim", 0) and len(value):
        value = value.flatten()[0]
    number = value.tolist() if hasattr(value, "tolist") else value
    while isinstance(number, (list, tuple)) and len(number) == 1:
        number = number[0].tolist() if hasattr(number[0], "tolist") else number[0]
    if isinstance(name, str) and isinstance(number, (int, float)):
        try:
            return float(number)
        except OverflowError:
            pass
    # Only what is wrong has words made for it: they take time, and an answer may have any number of logs.
    what = f"extra_logs[{_short(name)}]"
    number = _single(number, who, what)
    if not isinstance(name, str) or not isinstance(number, (int, float)):
        raise Failure(f"{who} returned {what} {_short(number)} instead of a number under a name")
    raise Failure(f"{who} returned {what} {_short(number)}")


def check_log_probs(response: dict, needed: bool) -> None:
    """The log-probabilities of an agent's tokens are there if the training needs them, one finite number each.

    Args:
        response: of an agent; `rollout_log_probs` is set to None if it is missing.
        needed: the training corrects for the difference between vLLM and the trained model.

    Raises:
        Failure: they are not.
    """
    values = response.setdefault("rollout_log_probs", None)
    if values is None:
        if needed:
            raise Failure("the agent returned no rollout_log_probs, which the training needs")
        return
    if hasattr(values, "tolist"):
        values = response["rollout_log_probs"] = values.tolist()
    tokens = len(response["observation_tokens"])
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != tokens:
        raise Failure(f"the agent returned rollout_log_probs {_short(values)} for {tokens} tokens")
    for value in values:
        if not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
            raise Failure(f"the agent returned rollout_log_probs with {_short(value)} among them")


def _single(value: Any, who: str, name: str) -> Any:
    """What stands alone in a tensor, array or list, however deep; the value itself otherwise."""
    while True:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            return value
        if len(value) != 1:
            raise Failure(f"{who} returned {len(value)} {name}s for 1 sample")
        (value,) = value


def _short(value: Any) -> str:
    """The value in a message, without secrets."""
    try:
        return without_secrets(f"{value!r}")[:100]
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return f"an endless {type(value).__name__}"
