"""The checks of answers by themselves; test_rewards.py and test_reward_server*.py have them on the way of a reward."""

import asyncio
import warnings

import pytest

from openrlhf_sagc.engine.answers import (
    LARGEST,
    Failure,
    Missing,
    check_scores,
    describe,
    finite_number,
    kind_of,
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
