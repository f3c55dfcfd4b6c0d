"""Errors of others in one line."""

from openrlhf_sagc.config.causes import cause, short


def test_the_innermost_cause_is_told():
    try:
        try:
            raise ValueError("a comma\n is missing")
        except ValueError as inner:
            raise RuntimeError("An error occurred") from inner
    except RuntimeError as outer:
        assert cause(outer) == "ValueError: a comma is missing"
    assert cause(StopIteration()) == "StopIteration"


def test_a_circle_of_causes_ends():
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert cause(first) == "ValueError: 2"


def test_a_long_text_is_cut_and_can_be_printed():
    line = short("a\x1b[31m\n" + 1000 * "b", 20)
    assert line.isprintable() and len(line) == 21 and line.endswith("…")
