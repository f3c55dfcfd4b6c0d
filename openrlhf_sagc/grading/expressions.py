"""Whether two expressions in LaTeX have one value: latex2sympy reads them, math-verify compares them."""

import re
from functools import lru_cache

from openrlhf_sagc.grading.cleaning import number
from openrlhf_sagc.grading.disarm import check_names

_UNREADABLE = re.compile(  # no expression, or one of which latex2sympy would leave something out
    r"[^ -~]|['\"#@?;:=<>&]|\\(?:text|mathrm|to|dots|sim|begin|vee|wedge|oplus|Rightarrow|setminus)(?![A-Za-z])"  # words, relations
    r"|\\(?:over|bar|hat|wide|tilde|dot|ddot|vec|acute|grave|check|breve|max|min|gcd|lcm)"  # accents: any text becomes a name
    r"|\^(?:\{[^{}]*\}|\w)\^|[A-Za-z]\^\{\(\w+\)\}|\\angle(?![A-Za-z])"  # towers, derivatives, angles
    r"|\d_|\d (?=\d)|\d*\.\d+\.|[+-] *[+-]|\^ *\{? *(?:T\b|\\(?:top|intercal|prime|dagger|ast)|\*)"  # bases, gaps, transposed
)
_RUNNING = re.compile(r"(\\(?:sum|prod|lim)) ?_\{\w(?:=|\\to ?)[-+]?(?:\w+|\\infty|\\pi)\}")  # k=1 under a sum
DIGITS = 400  # in which math-verify compares values, and after which it rounds them: a tiny one is not another


def equal_values(gold: str, answer: str) -> bool:
    """Whether two expressions have one value, as math-verify says."""
    from math_verify.grader import verify  # type: ignore[import-untyped]

    wanted, given = number(gold), number(answer)
    if gold == answer or wanted is not None and given is not None:
        return gold == answer != "" or wanted == given
    a = _expression(gold)
    b = None if a is None else _expression(answer)
    if a is None or b is None:
        return False
    names = {str(symbol) for symbol in a.free_symbols ^ b.free_symbols}
    if len({name.lower() for name in names}) < len(names):  # math-verify takes x for X
        return False
    return bool(verify(a, b, float_rounding=DIGITS, numeric_precision=DIGITS + 20, timeout_seconds=None))


def is_near(exact: str, text: str) -> bool:
    """Whether both are numbers, 2 % from each other at most."""
    a, b = _expression(exact), _expression(text)
    are_numbers = all(value is not None and value.is_number and value.is_real for value in (a, b))
    return are_numbers and bool(abs(a - b) <= abs(a) / 50)


@lru_cache(maxsize=1000)
def _expression(text: str):
    """The text as an expression of sympy, or None."""
    from sympy import Rational  # type: ignore[import-untyped]

    value = number(text)  # which saves most of a comparison's time
    if value is not None:
        return Rational(value.numerator, value.denominator)
    found = expressions(text)
    return found[0].doit() if found else None


def expressions(text: str) -> list:
    """What latex2sympy, math-verify's reader, finds in LaTeX: one expression, or none. Every text that reaches it does so here.

    Raises:
        ValueError: a name in it is no name.
    """
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
    from sympy import Expr, I, Symbol

    if _UNREADABLE.search(_RUNNING.sub(r"\1", text)):
        return []
    text = re.sub(r"\\sqrt\[(\d*[13579])\]\{-(\d+)\}", r"(-\\sqrt[\1]{\2})", text)  # the real root
    decimal = r"(?<![\d.])(\d*)\.(\d+)(?!\.?\d)"
    text = re.sub(decimal, lambda match: rf"(\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}})", text)
    text = re.sub(r"(?<=\d)\.(?![\d.])", "", text)
    text = re.sub(r"(?<![\^_\w.])(\d+) *(?=\()", r"\1\\cdot ", text)  # else 4(5) is read as a mixed number
    text = re.sub(r"\\([gG])amma(?![A-Za-z(])", r"\1_{1729}", text)  # no constant of Euler's
    try:
        config = ConversionConfig(lowercase_symbols=False)
        expression = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=config)
    except Exception:  # of latex2sympy on what it does not know
        return []
    if not isinstance(expression, Expr):
        return []
    check_names(expression)
    return [expression.subs({Symbol("i", real=True): I, Symbol("I", real=True): I})]
