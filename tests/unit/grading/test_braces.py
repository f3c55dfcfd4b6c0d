import pytest

from openrlhf_sagc.grading.braces import braced, split_at


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a,b", ["a", "b"]), ("(a,b),c", ["(a,b)", "c"]), (r"\frac{a,b}{c},d", [r"\frac{a,b}{c}", "d"]), ("a", ["a"])],
)
def test_texts_are_split_outside_of_brackets(text, parts):
    assert split_at(text, frozenset(","))[0] == parts


@pytest.mark.parametrize(
    ("text", "same"),
    [(r"\frac\pi2", r"\frac{\pi}{2}"), (r"\frac12", r"\frac{1}{2}"), (r"\frac{\sqrt3}2", r"\frac{\sqrt3}{2}")],
)
def test_fractions_get_their_braces(text, same):
    assert braced(text).replace(" ", "") == braced(same).replace(" ", "")
