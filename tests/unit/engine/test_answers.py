"""The checks of answers by themselves; test_rewards.py and test_reward_server*.py have them on the way of a reward."""

import asyncio
import enum
import math
import warnings

import numpy as np
import pytest
import torch

from openrlhf_sagc.engine import answers
from openrlhf_sagc.engine.answers import (
    LARGEST,
    MOST_NAMES,
    Failure,
    Missing,
    as_logs,
    check_scores,
    describe,
    finite_number,
    kind_of,
    numbers_of,
    short,
)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 0, True, [[[1]]], (2.5,)])
def test_a_number_up_to_the_largest_is_one_of_float32(value):
    number = finite_number(value, "it", "reward")
    assert type(number) is float and abs(number) <= LARGEST


@pytest.mark.parametrize(
    "value", [1.0001 * LARGEST, [10**5000], float("-inf"), float("nan"), [], "1", None, {}, [1, 2]]
)
def test_anything_else_is_refused_in_one_short_line(value):
    with pytest.raises(Failure) as error:
        finite_number(value, "it", "reward")
    assert "reward" in str(error.value) and len(str(error.value)) < 200


def test_an_error_is_described_in_one_line_without_secrets(monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", "sk-0123456789")
    try:
        raise ValueError("sk-0123456789 was refused by\nhttps://me:word@host/path?key=sk-0123456789")
    except ValueError as error:
        line = describe(error)
    assert line.startswith("ValueError: *** was refused by *** (test_answers.py:")


def test_an_error_without_words_stands_for_its_cause():
    """As vLLM's EngineGenerateError, whose cause says what the request lacks."""
    try:
        try:
            raise ValueError("no image")
        except ValueError as cause:
            raise RuntimeError from cause
    except RuntimeError as error:
        assert describe(error).startswith("ValueError: no image (test_answers.py:")
    assert describe(asyncio.CancelledError()) == "CancelledError: "  # never raised: no place to name


@pytest.mark.parametrize("scores", [None, Missing("gone")])
def test_without_scores_the_reward_is_the_score(scores):
    answer = {"reward": [2], "scores": scores}
    check_scores(answer, "it", "reward")
    assert answer == {"reward": 2.0, "scores": 2.0}


def test_a_coroutine_is_named_and_python_does_not_warn_of_it():
    async def forgotten():
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kind_of(forgotten()) == "a coroutine that was not awaited"
    assert kind_of([1, 2]) == "a list of 2"


def test_what_is_large_is_shown_without_being_made_a_text():
    """Its whole text took seconds, in which the engine's event loop stood still."""

    shown = []

    class Item:
        def __repr__(self):
            shown.append(1)
            return "item"

    assert len(short([Item()] * 10**6)) <= 100 and len(short({"log": [Item()] * 10**6})) <= 100 and len(shown) <= 100
    assert len(short("w" * 10**7)) <= 100


class Name(str, enum.Enum):
    TURNS = "turns"


class Odd:
    """Neither its dimensions nor its words can be had."""

    @property
    def ndim(self):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError


ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value, number",
    [
        (1, 1.0),
        (True, 1.0),
        ([[3.0]], 3.0),
        (torch.tensor([2.0, 9.0]), 2.0),
        (np.ones((2, 2)), 1.0),
        (np.int8(4), 4.0),
    ],
)
def test_a_number_of_any_kind_is_logged(value, number):
    logs, left_out = numbers_of({Name.TURNS: value})
    assert logs == {"turns": number} and type(logs["turns"]) is float and not left_out
    assert [type(name) for name in logs] == [str]  # the driver knows no class of the user's


@pytest.mark.parametrize(
    "value",
    [
        "1",
        None,
        {"a": 1},
        {},
        [1, 2],
        [],
        10**400,
        1e31,
        math.nan,
        math.inf,
        1j,
        torch.ones(0),
        Odd(),
        ENDLESS,
        object,
    ],
)
def test_what_is_no_number_is_left_out_and_named(value):
    logs, left_out = numbers_of({"first": 1, "second": value, "third": value})
    assert logs == {"first": 1.0}
    assert left_out.startswith("extra_logs['second'] is ") and len(left_out) < 200


@pytest.mark.parametrize("name", [7, None, "", "x" * 201, "a\nb", "\ud800", ("a", "b")])
def test_a_name_that_no_logger_takes_is_left_out(name):
    logs, left_out = numbers_of({name: 1.0, "other/of a run": 2.0})
    assert logs == {"other/of a run": 2.0} and left_out


def test_of_40000_names_the_first_are_logged():
    logs, left_out = numbers_of({f"log {i}": i for i in range(40_000)})
    assert list(logs) == [f"log {i}" for i in range(MOST_NAMES)]
    assert left_out == f"extra_logs has 40000 names, and the first {MOST_NAMES} are looked at"
    assert numbers_of({f"log {i}": "text" for i in range(40_000)})[0] == {}


def test_right_logs_have_no_words_made_for_an_error(monkeypatch):
    """To leave secrets out of each name would take seconds."""
    made = []
    monkeypatch.setattr(answers, "without_secrets", lambda text: made.append(text) or text)
    monkeypatch.setattr(answers, "short", lambda value: made.append(value))
    assert len(numbers_of({f"log {i}": [[i]] for i in range(100)})[0]) == 100
    numbers_of({f"log {i}": "text" for i in range(100)})
    assert len(made) == 2  # a name and a value


@pytest.mark.parametrize("logs", ["text", [1, 2], torch.ones(3), 0.5])
def test_logs_without_names_are_one_log(logs):
    assert as_logs(logs).keys() == {"extra_logs"} and as_logs(None) == {}
