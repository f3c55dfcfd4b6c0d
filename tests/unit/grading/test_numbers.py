from fractions import Fraction

import pytest

from openrlhf_sagc.grading.numbers import number, rounded


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", Fraction(12)),
        ("-0.5", Fraction(-1, 2)),
        (".5", Fraction(1, 2)),
        ("1e3", Fraction(1000)),
        (r"6\times10^{-2}", Fraction(6, 100)),
        ("3/4", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        ("-1 1/2", Fraction(-3, 2)),
        ("1/0", None),
        ("1 2", None),
        ("1e9999", None),
        ("x", None),
        ("", None),
    ],
)
def test_numbers_are_exact(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("0.333333", Fraction(1, 3), True),
        ("0.33333", Fraction(1, 3), False),
        ("0.333334", Fraction(1, 3), False),
        ("0.333335", Fraction(1, 3), False),
        ("4.999999", Fraction(5), False),
        ("0.000000333333", Fraction(1, 3 * 10**6), True),
    ],
)
def test_a_decimal_is_taken_for_the_endless_number_it_was_rounded_from(text, value, right):
    assert rounded(text, value) is right
