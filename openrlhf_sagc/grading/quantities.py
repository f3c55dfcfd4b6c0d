"""Values with units, times of day, several of them, and numbers that are counted by a function."""

import math
import re
from dataclasses import replace

from openrlhf_sagc.grading.nodes import Clock, Many, Node, Value, Words
from openrlhf_sagc.grading.words import SCALES, unit

_QUANTITY = re.compile(r"([^⟦⟧]+)⟦([^⟧]+)⟧")
PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")


def counted(text: str) -> str:
    """The text with the numbers that functions of two or more integers have: C_7^2, P(5,2), max, min, gcd, lcm."""
    text = _CHOOSE.sub(_choose, text)
    return _EXTREME.sub(_extreme, text)


_CHOOSE = re.compile(
    r"(?<![A-Za-z\\])(?:([CPA])_\{?(\d{1,3})\}?\^\{?(\d{1,3})\}?|([CPA])\^\{?(\d{1,3})\}?_\{?(\d{1,3})\}?|([CP])\((\d{1,3}),(\d{1,3})\)"
    r"|(?:\{\})?[_^]\{?(\d{1,3})\}?([CP])_\{?(\d{1,3})\}?)"
)
_EXTREME = re.compile(r"\\(max|min|gcd|lcm) ?(?:\(|\\\{|\[)(-?\d{1,9}(?:,-?\d{1,9}){1,20})(?:\)|\\\}|\])")


def _choose(match: re.Match) -> str:
    parts = [group for group in match.groups() if group]
    n, k = (int(part) for part in parts if part.isdigit())
    if match[4]:  # C^2_5 and C^5_2 both are in use
        n, k = max(n, k), min(n, k)
    if n < k:
        return f"⟦{match[0]}⟧"
    count = math.comb(n, k) if "C" in parts else math.perm(n, k)
    return str(count) if match.end() == len(match.string) and match.start() == 0 else match[0]


def _extreme(match: re.Match) -> str:
    numbers = [int(number) for number in match[2].split(",")]
    if match[1] in ("gcd", "lcm"):
        return str(math.gcd(*numbers) if match[1] == "gcd" else math.lcm(*numbers))
    return str(max(numbers) if match[1] == "max" else min(numbers))


def quantities(text: str) -> Node:
    """A value, with its unit if it has one; several values with a unit each; else words."""
    if r"⟦°⟧" in text and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = re.sub(r"([\d.]+|\\?[A-Za-z]+|\})⟦°⟧", r"(\1\\cdot \\frac{\\pi}{180})", text)
    if "⟦" not in text:
        return Value(text) if text else Words("")
    front = re.match(r"([+-]?)⟦([^⟧]*)⟧", text)
    if front and (front[2] in _CURRENCY or front[2].casefold().strip(".") in _CURRENCY):
        rest = quantities(front[1] + text[front.end() :])
        return replace(rest, unit=rest.unit or unit(front[2])) if isinstance(rest, Value) else Words(text)
    pieces = _QUANTITY.findall(text)
    whole = "".join(f"{value}⟦{name}⟧" for value, name in pieces) == text
    values = [_value(value.strip(), name.strip(" ,.")) for value, name in pieces] if whole else []
    known = [value for value in values if value]
    if not known or len(known) < len(values):
        without = _degrees(text)
        return Value(without, unit("°")) if without else Words(text)
    if len(known) == 1:
        return known[0]
    times = [re.fullmatch(r"\\times ?(.*)", value.latex) for value in known[1:]]
    if all(times):
        return Many(
            "times", (known[0], *(replace(value, latex=match[1]) for value, match in zip(known[1:], times) if match))
        )
    if all(PLAIN_NUMBER.fullmatch(value.latex) for value in known):
        return Many("", tuple(known))
    without = _degrees(text)
    return Value(without, unit("°")) if without else Words(text)


_CURRENCY = frozenset(
    "usd eur gbp cny rmb jpy inr rs krw rub aud cad nzd chf brl mxn zar $ € £ ¥ ₹ ₩ ₽ ₱ ₪ ₫ ฿ ₺ ₴".split()
)


def _value(latex: str, name: str) -> Value | None:
    scale, _, rest = name.partition(" ")
    size = SCALES.get(scale.casefold()) or SCALES.get(name[:1])
    if name[:1] in SCALES:
        scale, rest = name[:1], name[1:]
    if size:
        counted = unit(rest) if rest else None
        return None if rest and not counted else Value(rf"{latex}\cdot {size}", counted)
    if name.casefold() in ("rad", "radian", "radians"):
        return Value(latex)
    counted = unit(name)
    return Value(latex, counted) if counted else None


def _degrees(text: str) -> str | None:
    """The expression without its degree signs, if these are all its marks and it has no function of an angle."""
    if not re.fullmatch(r"(?:(?!\\(?:sin|cos|tan|cot|sec|csc))[^⟦⟧]|(?<=[\d})a-z])⟦°⟧(?!\d))*", text):
        return None
    return text.replace("⟦°⟧", "")


_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)? ?(?:⟦([ap])\.? ?m\.?(?: ⟧?.*)?⟧)?", re.IGNORECASE)


def clock(text: str) -> Node | None:
    """A time of day."""
    match = _CLOCK.fullmatch(text)
    if not match or not (match[2] or match[4]):
        return None
    hours, minutes, seconds, half = int(match[1]), int(match[2] or 0), int(match[3] or 0), (match[4] or "").casefold()
    if hours > 24 or minutes > 59 or seconds > 59 or half and not 1 <= hours <= 12:
        return None
    hours = hours % 12 + 12 * (half == "p") if half else hours
    return Clock(hours * 3600 + minutes * 60 + seconds, bool(half), text)
