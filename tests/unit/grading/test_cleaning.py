import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.cleaning import cleaned, number

SPELLINGS = r"""
7,350 ~ 7350   11,\! 111,\! 100 ~ 11111100   1{,}000 ~ 1000   0{,}75 ~ 0.75   3\,600\,000 ~ 3600000
2 450,5 ~ 2450.5   1.234,5 ~ 1234.5   1.234.567 ~ 1234567   1.000 ~ 1.000   6\,2 ~ 6 2   125 00 ~ 125 00
7,\ 350 ~ 7,350   (1,234) ~ (1,234)   0.\overline{4} ~ \frac{4}{9}   2.1\overline{6} ~ \frac{13}{6}
0.(27) ~ \frac{3}{11}   \frac 59 ~ \frac{5}{9}   \frac\pi2 ~ \frac{\pi}{2}
\frac{\sqrt3}2 ~ \frac{\sqrt{3}}{2}   ½ ~ \frac{1}{2}   \text{3 hours} ~ 3⟦hours⟧   3 hours ~ 3⟦hours⟧
31\,\frac{\text{km}}{\text{h}} ~ 31⟦km/h⟧   6\,\mathrm{kg\cdot m/s^2} ~ 6⟦kg m/s^2⟧   6\mathrm{i} ~ 6i
6\mathrm{m} ~ 6⟦m⟧   6\mathbf{m} ~ 6m   \text{(C)} ~ (C)   90° ~ 90⟦°⟧   1\circ 2 ~ 1\circ2   23 \tag{4} ~ 23
23; ~ 23   23... ~ 23...   23\\ ~ 23   31^{\text{st}} ~ 31   **23** ~ 23   x**2 ~ x^2   x² ~ x^2
"""


@pytest.mark.parametrize("case", re.split("   |\n", SPELLINGS.strip()))
def test_answers_have_one_spelling(case):
    answer, text = case.split(" ~ ")
    assert cleaned(answer) == text


@given(st.text(alphabet=r"\{}()[]1,. $^_xtefrac⟦⟧", max_size=60))
def test_a_clean_text_has_its_marks_in_pairs(text):
    marks = "".join(sign for sign in cleaned(text) if sign in "⟦⟧")
    assert marks == "⟦⟧" * (len(marks) // 2)


NUMBERS = r"12 ~ 12|-0.5 ~ -1/2|.5 ~ 1/2|1e3 ~ 1000|6\times10^{-2} ~ 3/50|3/4 ~ 3/4|-\frac{3}{4} ~ -3/4|1\frac{1}{2} ~ 3/2|-1 1/2 ~ -3/2"


@pytest.mark.parametrize("case", NUMBERS.split("|"))
def test_numbers_are_exact(case):
    text, value = case.split(" ~ ")
    assert number(text) == Fraction(value)
    assert not any(map(number, ["1/0", "1 2", "1e9999", "--17", "+-1", "1.2.3", "x", ""]))
