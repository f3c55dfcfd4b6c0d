"""Numbers in LaTeX, exactly; and what is asked of those who compare the rest."""

import re
from fractions import Fraction
from typing import Protocol

DIGITS = 6  # significant ones of a decimal that is taken for the endless number it was rounded from


class Algebra(Protocol):
    """How expressions in LaTeX are compared."""

    def equal(self, gold: str, answer: str) -> bool:
        """Whether they have one value."""

    def near(self, exactly: str, nearly: str) -> bool:
        """Whether the second is a number a few percent from the first at most."""

    def proportional(self, gold: tuple[str, str], answer: tuple[str, str], positive: bool) -> bool:
        """Whether the differences of the two pairs differ by a constant factor, a positive one if asked for."""


def number(text: str) -> Fraction | None:
    r"""The number that the text is, exactly: 12, -0.5, 1e3, 3/4, \frac{3}{4}, 1\frac12; None if it is none of these."""
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    if match["decimal"]:
        exponent = int(match["e"] or match["ten"] or 0)
        return Fraction(match["decimal"]) * Fraction(10) ** exponent if abs(exponent) < 1000 else None
    below = int(match["q"] or match["b"])
    if not below:
        return None
    value = Fraction(int(match["p"] or match["a"]), below) + int(match["whole"] or 0)
    return -value if match["sign"] == "-" else value


_NUMBER = re.compile(
    r"(?P<decimal>[+-]?(?:\d+\.?\d*|\.\d+))(?:[eE](?P<e>[+-]?\d{1,4})|\\(?:times|cdot) ?10\^\{?(?P<ten>[+-]?\d{1,4})\}?)?"
    r"|(?P<sign>[+-]?)(?P<whole>\d+(?= ?\\frac| \d+/))? ?(?:\\frac ?\{(?P<p>\d+)\}\{(?P<q>\d+)\}|(?P<a>\d+)/(?P<b>\d+))"
)


def rounded(text: str, value: Fraction) -> bool:
    """Whether the text is a decimal of 6 digits or more that was rounded or cut from the value, which has no end."""
    digits = decimals(text)
    if not digits or terminates(value.denominator):
        return False
    return rounds(Fraction(text), value, Fraction(1, 10**digits))


def rounds(decimal, value, unit) -> bool:
    """Whether the decimal is the value, rounded or cut to multiples of the unit."""
    cut = decimal * value >= 0 and 0 <= abs(value) - abs(decimal) < unit
    return bool(cut or abs(decimal - value) <= unit / 2)


def decimals(text: str) -> int:
    """Digits behind the point of a decimal with enough significant ones to tell what it was rounded from; else 0."""
    match = re.fullmatch(r"[+-]?(\d*)\.(\d+)", text)
    return len(match[2]) if match and len((match[1] + match[2]).lstrip("0")) >= DIGITS else 0


def terminates(denominator: int) -> bool:
    """Whether a fraction in lowest terms with this denominator has a decimal with an end."""
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1
