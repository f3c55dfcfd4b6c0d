import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.grading.comparison import equal_values, expressions


@settings(max_examples=50)
@given(st.fractions(max_denominator=10**6), st.integers(-40, 40))
def test_numbers_are_compared_relatively(x, exponent):
    gold = rf"\frac{{{x.numerator}}}{{{x.denominator}}}\cdot 10^{{{exponent}}}"
    other = rf"\frac{{{x.numerator + 1}}}{{{x.denominator}}}\cdot 10^{{{exponent}}}"
    assert equal_values(gold, rf"10^{{{exponent}}}\cdot \frac{{{2 * x.numerator}}}{{{2 * x.denominator}}}")
    assert not equal_values(gold, other)


@pytest.mark.parametrize("text", r"3 \to 8|6 2|52_8|y''|A^T|\overline{4}5|5'|⟦cm⟧||+-5|{1,2}|x=5".split("|"))
def test_what_is_no_expression_is_not_read_as_one(text):
    assert expressions(text) == []
