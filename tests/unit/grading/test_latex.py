import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.braces import split_at
from openrlhf_sagc.grading.latex import cleaned


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("7,350", "7350"),
        (r"11,\! 111,\! 100", "11111100"),
        ("1{,}000", "1000"),
        ("0{,}75", "0.75"),
        ("24 500", "24500"),
        (r"3\,600\,000", "3600000"),
        ("2 450,5", "2450.5"),
        ("1.234,5", "1234.5"),
        ("1.234.567", "1234567"),
        ("1.000", "1.000"),
        (r"6\,2", "6 2"),
        ("125 00", "125 00"),
        (r"7,\ 350", "7,350"),
        ("(1,234)", "(1,234)"),  # a point
        (r"0.\overline{4}", r"\frac{4}{9}"),
        (r"2.1\overline{6}", r"\frac{13}{6}"),
        (r"0.333\ldots", r"\frac{1}{3}"),
        ("0.(27)", r"\frac{3}{11}"),
        (r"\frac 59", r"\frac{5}{9}"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ("½", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"\text{3 hours}", "3⟦hours⟧"),
        (r"3\text{ hours}", "3⟦hours⟧"),
        ("3 hours", "3⟦hours⟧"),
        (r"31\,\frac{\text{km}}{\text{h}}", "31⟦km/h⟧"),
        (r"8\,\mathrm{m}\,\mathrm{s}^{-1}", "8⟦m s^-1⟧"),
        (r"6\,\mathrm{kg\cdot m/s^2}", "6⟦kg m/s^2⟧"),
        (r"{7 \choose 3}", r"\binom{7}{3}"),
        (r"6\mathrm{i}", "6i"),
        (r"6\mathrm{m}", "6⟦m⟧"),
        (r"6\mathbf{m}", "6m"),
        (r"\text{(C)}", "(C)"),
        ("90°", "90⟦°⟧"),
        (r"1\circ 2", r"1\circ2"),
        (r"23 \tag{4}", "23"),
        ("23;", "23"),
        ("23...", "23..."),
        (r"23\\", "23"),
        (r"\color{red}{23}", "{23}"),
        (r"31^{\text{st}}", "31"),
        ("**23**", "23"),
        (r"\\frac{1}{2}", r"\frac{1}{2}"),
    ],
)
def test_answers_have_one_spelling(answer, text):
    assert cleaned(answer) == text


@given(st.text(alphabet=r"\{}()[]1,. $^_xtefrac⟦⟧", max_size=60))
def test_a_clean_text_has_its_marks_in_pairs(text):
    depth = 0
    for sign in cleaned(text):
        depth += (sign == "⟦") - (sign == "⟧")
        assert depth in (0, 1)
    assert depth == 0


def test_text_is_split_outside_of_brackets():
    assert split_at(r"(1,2),\{3,4\},[5,6)", frozenset(",")) == (["(1,2)", r"\{3,4\}", "[5,6)"], [",", ","])
