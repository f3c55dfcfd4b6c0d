"""Logs beside a reward: numbers are kept, the rest is named, and 40,000 of them take no time."""

import enum
import math

import numpy as np
import pytest
import torch

from openrlhf_sagc.engine import answers, extra_logs
from openrlhf_sagc.engine.extra_logs import MOST_NAMES, as_logs, numbers_of


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
    monkeypatch.setattr(extra_logs, "short", lambda value: made.append(value))
    assert len(numbers_of({f"log {i}": [[i]] for i in range(100)})[0]) == 100
    numbers_of({f"log {i}": "text" for i in range(100)})
    assert len(made) == 2  # a name and a value


@pytest.mark.parametrize("logs", ["text", [1, 2], torch.ones(3), 0.5])
def test_logs_without_names_are_one_log(logs):
    assert as_logs(logs).keys() == {"extra_logs"} and as_logs(None) == {}
