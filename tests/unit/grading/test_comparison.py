import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_sagc.grading import comparison
from openrlhf_sagc.grading.comparison import equal, expressions


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"\frac{1}{28!}", r"\frac{1}{27!}", False),
        ("e^{-55}", "e^{-45}", False),
        ("10^{-400}", "10^{-401}", False),
        (r"\frac{1}{2^{74}}", r"\frac{2}{2^{75}}", True),
        ("10^{30}+1", "10^{30}", False),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6.0000000001}}", False),
        (r"\pi", "3.14159", True),  # 6 digits
        (r"\pi", "3.1415", False),
        ("5", "4.9999999", False),
        (r"\infty", r"\infty", True),
        (r"\infty", r"-\infty", False),
        (r"\frac{1}{0}", r"\frac{2}{0}", False),
        ("-1", "i^2", True),
        (r"\sqrt{x^2}", "x", False),
        (r"\tan^2 x+1", r"\sec^2 x", True),
        ("2x+y=1", "4x+2y=2", True),
        ("2x+y=1", "2x+y=-1", False),
        ("x<2", "-x>-2", True),
        ("x<2", "-x<-2", False),
        ("(0,\\sqrt2)", "0<x<\\frac{2}{\\sqrt2}", True),
    ],
)
def test_expressions_are_compared_by_their_values(gold, answer, right):
    assert equal(gold, answer) is right


@pytest.mark.parametrize(
    "text", [r"3 \to 8", "6 2", "52_8", "y''", r"A^T", r"\overline{4}5", "5'", "⟦cm⟧", "", "+-5", "{1,2}", "x=5"]
)
def test_what_is_no_expression_is_not_read_as_one(text):
    assert expressions(text) == []


def test_a_number_before_a_bracket_is_a_factor():
    assert str(expressions("4(5)")[0].doit()) == "20"


def test_an_error_of_sympy_is_no_right_answer_but_one_of_memory_is_none(monkeypatch):
    def fails(error):
        def raises(text):
            raise error

        return raises

    monkeypatch.setattr(comparison, "_expression", fails(RecursionError()))
    assert equal("x+1", "1+x^1") is False
    monkeypatch.setattr(comparison, "_expression", fails(MemoryError()))
    with pytest.raises(MemoryError):
        equal("x+1", "1+x^1")


@settings(max_examples=50, deadline=None)
@given(st.fractions(max_denominator=10**6), st.integers(-40, 40))
def test_numbers_are_compared_relatively(x, exponent):
    gold = rf"\frac{{{x.numerator}}}{{{x.denominator}}}\cdot 10^{{{exponent}}}"
    other = rf"\frac{{{x.numerator + 1}}}{{{x.denominator}}}\cdot 10^{{{exponent}}}"
    assert equal(gold, rf"10^{{{exponent}}}\cdot \frac{{{2 * x.numerator}}}{{{2 * x.denominator}}}")
    assert not equal(gold, other)


def test_it_reads_no_text_as_python():
    source = open(comparison.__file__).read()
    assert not any(name in source for name in ("eval(", "sympify", "parse_expr", "exec("))


def test_plain_verdicts_import_no_sympy():
    """They are made in the engine's own process."""
    code = "import sys; from openrlhf_sagc.grading.answers import decided; decided('x+1', '1+x'); assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
