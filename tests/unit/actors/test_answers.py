"""The checks of answers by themselves; test_rewards.py and test_reward_server.py have them on the way of a reward."""

import pytest

from openrlhf_sagc.actors import answers
from openrlhf_sagc.actors.answers import LARGEST, Failure, describe, finite_number, logged_numbers


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


@pytest.mark.parametrize("logs", ["text", [1], {"a": 10**400}, {"a": [1, 2]}, {"a": {}}, {None: 1}, {"a": "1"}])
def test_logs_that_the_driver_cannot_log_are_refused(logs):
    with pytest.raises(Failure, match="^it returned .*extra_logs"):
        logged_numbers(logs, "it")


def test_an_error_is_described_in_one_line_without_secrets(monkeypatch):
    monkeypatch.setenv("SERVICE_API_KEY", "sk-0123456789")
    try:
        raise ValueError("sk-0123456789 was refused by\nhttps://me:word@host/path?key=sk-0123456789")
    except ValueError as error:
        line = describe(error)
    assert line.startswith("ValueError: $SERVICE_API_KEY was refused by https://host/path (test_answers.py:")


@pytest.mark.parametrize("value", [1, True, [2], [[3.0]]])
def test_right_logs_have_no_words_made_for_an_error(monkeypatch, value):
    """An answer may have 40,000 logs, and to leave secrets out of each name takes seconds."""
    made = []
    monkeypatch.setattr(answers, "without_secrets", lambda text: made.append(text) or text)
    assert len(logged_numbers({f"log {i}": value for i in range(100)}, "the reward function")) == 100
    assert not made
