"""The first wall around a comparison: text that sympy reads stays text.

latex2sympy2 takes some names literally (whatever stands below an accent), and sympy writes expressions into Python source
in many places: numbers, lambdify, sympify of a string, parse_expr, autowrap. So names are checked, and nothing is compiled.
"""

import re
import sys
from typing import Any

# x, \alpha, x_{n+1}, vec{a}, x', the direction of a limit: neither dots nor brackets, without which no name does anything
NAME = re.compile(r"[\w\\{},+*/^-]{1,100}'{0,3}")


def prepare() -> None:
    """Let sympy, in this process, make numbers and products of polynomials without evaluating a text."""
    from sympy.core import numbers  # type: ignore[import-untyped]
    from sympy.polys.monomials import MonomialOps  # type: ignore[import-untyped]

    numbers.sympify = _number  # latex2sympy2 makes numbers by sympy.Number(text), which evaluates it
    for variables in range(1, 11):  # of a polynomial; sympy generates these functions, and keeps them
        monomials = MonomialOps(variables)
        for operation in ("mul", "pow", "mulpow", "ldiv", "div", "lcm", "gcd"):
            getattr(monomials, operation)()


def disarm() -> None:
    """Let this process, from now on, neither compile nor execute a text, nor import a module. Irrevocable.

    Whatever tries raises a RuntimeError, in every module. What is needed has to be imported before.
    """
    prepare()
    sys.addaudithook(_refuse_code)


def check_names(expression: Any) -> None:
    """Names in an expression of sympy's, or in a matrix, list or tuple of them, are names.

    Raises:
        ValueError: a symbol or function has another name.
    """
    from sympy import preorder_traversal  # type: ignore[import-untyped]

    for part in preorder_traversal(expression):
        name = str(getattr(part, "name", getattr(part, "__name__", type(part).__name__)))
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no name")


def _refuse_code(event: str, _: tuple) -> None:
    if event in ("compile", "exec", "import"):
        raise RuntimeError(f"{event} is forbidden while answers are compared")


def _number(value: Any) -> Any:
    """sympy's number for a text of digits, point and exponent; other values as sympify has them."""
    from sympy import Float, Integer, sympify

    if isinstance(value, str):
        return Integer(value) if value.isdecimal() else Float(value)
    return sympify(value)
