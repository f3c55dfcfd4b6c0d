import pytest

from openrlhf_sagc.grading.nodes import Many, Value, Words
from openrlhf_sagc.grading.quantities import counted, quantities


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("C_7^2", "21"),
        ("C(7,2)", "21"),
        ("^5C_2", "10"),
        ("A_5^2", "20"),
        ("P(5,2)", "20"),
        (r"\max\{4,21\}", "21"),
        (r"\min(4,21)", "4"),
        (r"\lcm(3,7)", "21"),
        (r"\gcd(12,18)", "6"),
        ("C_7^2x", "C_7^2x"),
    ],
)
def test_counting_functions_have_their_number(text, number):
    assert counted(text) == number


@pytest.mark.parametrize("text", ["5⟦lakhs of⟧", "5⟦k⟧", "5⟦point⟧5", "⟦not⟧5", "5⟦cm⟧x", "1⟦°⟧2", "⟦cm⟧5"])
def test_words_that_are_no_unit_are_part_of_the_answer(text):
    assert isinstance(quantities(text), Words)


def test_values_have_their_units():
    assert quantities("⟦$⟧5").unit == quantities("5⟦dollars⟧").unit
    assert quantities("5⟦million dollars⟧") == Value(r"5\cdot 1000000", quantities("5⟦dollars⟧").unit)
    assert isinstance(quantities("3⟦ft⟧2⟦in⟧"), Many)
