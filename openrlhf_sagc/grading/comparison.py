"""Comparison of answers by algebra: latex2sympy, which is math-verify's reader, and sympy.

It may take for ever or fail, so it is called in a process that can be killed: see algebra.py.
"""

import re
from functools import lru_cache

from openrlhf_sagc.grading.agreement import same
from openrlhf_sagc.grading.answers import decided
from openrlhf_sagc.grading.disarm import check_names
from openrlhf_sagc.grading.numbers import decimals, number, rounded, rounds, terminates
from openrlhf_sagc.grading.reading import read

UNREADABLE = re.compile(  # no expression, or one of which latex2sympy would leave something out
    r"[⟦⟧'\"#@?;=<>]|\\(?:text|mathrm|to|dots|sim|begin)(?![A-Za-z])"  # words, primes, relations, arrows
    r"|\\(?:over|bar|hat|wide|tilde|dot|ddot|vec|acute|grave|check|breve)"  # accents: any text becomes a name
    r"|\^(?:\{[^{}]*\}|\w)\^|[A-Za-z]\^\{\(\w+\)\}|\\angle(?![A-Za-z])"  # towers, derivatives, angles
    r"|\d_|\d (?=\d)|\+ *[-+]"  # numbers of another base, gaps between numbers
    r"|\^ *\{? *(?:T\b|\\(?:top|intercal|prime|dagger|ast)|\*)"  # transposed, conjugated
)
RUNNING = re.compile(r"(\\(?:sum|prod|lim)) ?_\{\w(?:=|\\to ?)[-+]?(?:\w+|\\infty|\\pi)\}")  # k=1 under a sum
DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?!\.?\d)")
POINTS = ((0.7318, 1.9243, -0.4117), (2.3761, -1.2873, 0.8719), (-0.6139, 0.3947, 1.7411))
EXACT = 10**-90  # relative difference of numbers that are equal, whose difference is found to 200 digits


def equal(gold: str, answer: str) -> bool:
    """Whether the answer says what the gold answer says. Without a limit of time.

    Raises:
        MemoryError: there is not enough to tell.
    """
    verdict = decided(gold, answer)
    if verdict is not None:
        return verdict
    try:
        return same(read(gold), read(answer), _Sympy())
    except MemoryError:
        raise
    except Exception:  # of sympy on what it cannot compare
        return False


def expressions(text: str) -> list:
    """What sympy reads in an expression in LaTeX: one expression, or none.

    Every text that reaches latex2sympy does so here.

    Raises:
        ValueError: a name in it is no name.
    """
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
    from sympy import Expr, I, Symbol  # type: ignore[import-untyped]

    if UNREADABLE.search(RUNNING.sub(r"\1", text)):
        return []
    text = DECIMAL.sub(lambda match: rf"(\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}})", text)
    text = re.sub(r"(?<=\d)\.(?![\d.])", "", text)
    text = re.sub(r"(?<![\^_\w.])(\d+) *(?=\()", r"\1\\cdot ", text)  # else 4(5) is read as a mixed number
    text = re.sub(r"\\([gG])amma(?![A-Za-z(])", r"\1_{1729}", text)  # no constant of Euler's
    config = ConversionConfig(lowercase_symbols=False)
    try:
        expression = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=config)
    except Exception:  # of latex2sympy on what it does not know
        return []
    if not isinstance(expression, Expr):
        return []
    check_names(expression)
    return [expression.subs({Symbol("i", real=True): I, Symbol("I", real=True): I})]


@lru_cache(maxsize=1000)
def _expression(text: str):
    value = number(text)
    if value is not None:  # which saves most of a comparison's time
        from sympy import Rational

        return Rational(value.numerator, value.denominator)
    found = expressions(text)
    return found[0].doit() if found else None


class _Sympy:
    """Numbers compared exactly or to 50 digits, other expressions by simplification."""

    def equal(self, gold: str, answer: str) -> bool:
        if gold == answer:
            return gold != ""
        wanted, given = number(gold), number(answer)
        if wanted is not None and given is not None:
            return wanted == given or rounded(gold, given) or rounded(answer, wanted)
        a = _expression(gold)
        b = None if a is None else _expression(answer)
        if a is None or b is None:
            return False
        if a.free_symbols or b.free_symbols:
            return _same_function(a, b)
        return _same_number(a, b) or _rounded(gold, b) or _rounded(answer, a)

    def near(self, exactly: str, nearly: str) -> bool:
        a, b = _expression(exactly), _expression(nearly)
        if a is None or b is None or not (a.is_number and b.is_number):
            return False
        return bool(abs((a - b).evalf(20)) <= abs(a.evalf(20)) / 20)

    def proportional(self, gold: tuple[str, str], answer: tuple[str, str], positive: bool) -> bool:
        sides = [_expression(side) for side in (*gold, *answer)]
        if any(side is None for side in sides):
            return False
        a, b = sides[0] - sides[1], sides[2] - sides[3]
        if not a.free_symbols or a.free_symbols != b.free_symbols:
            return False
        values = [(_value(a, point), _value(b, point)) for point in POINTS]
        ratios = [x / y for x, y in values if x is not None and y]
        if not ratios or any(abs(ratio - ratios[0]) > 1e-9 * abs(ratios[0]) for ratio in ratios):
            return False
        from sympy import simplify

        factor = simplify(a / b)
        return bool(
            factor.is_number and factor.is_finite and not factor.is_zero and (not positive or factor.is_positive)
        )


def _same_number(a, b) -> bool:
    """Whether two numbers are equal, exactly or to as many digits as are sure, however large or small they are."""
    if a == b:
        return bool(a.is_finite or a.is_infinite and a.is_extended_real)
    if a.is_Rational and b.is_Rational or not (a.is_number and b.is_number):
        return False
    size = max(abs(a.evalf(20)), abs(b.evalf(20)))
    difference = abs((a - b).evalf(20, maxn=200))
    return bool(size.is_finite and difference.is_finite and difference <= size * EXACT)


def _value(expression, point: tuple[float, ...]) -> complex | None:
    """The expression's value with numbers for its symbols; None if it has none there."""
    symbols = sorted(expression.free_symbols, key=str)
    try:
        return complex(
            expression.subs({symbol: point[i % len(point)] + i for i, symbol in enumerate(symbols)}).evalf(20)
        )
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None


def _same_function(a, b) -> bool:
    """Whether two expressions with symbols are equal: nowhere different, and by simplification."""
    from sympy import expand, simplify

    if a.free_symbols == b.free_symbols:
        for point in POINTS:
            x, y = _value(a, point), _value(b, point)
            if x is not None and y is not None and abs(x - y) > 1e-9 * max(abs(x), abs(y)):
                return False
    return expand(a - b) == 0 or simplify(a - b) == 0


def _rounded(text: str, value) -> bool:
    """Whether the text is a decimal of 6 digits or more that was rounded or cut from the value, which has no end."""
    from sympy import Rational

    digits = decimals(text)
    if not digits or value.is_Rational and terminates(int(value.q)) or not value.is_real:
        return False
    return rounds(Rational(text), value.evalf(30), Rational(1, 10**digits))
