"""Whether two answers say the same: their structure here, their numbers and expressions by math-verify.

A right verdict needs the whole answer: lists with their counts, intervals with their ends, relations as relations, quantities
with their units. math-verify may take for ever or run code, so `equal` is called in a confined process: see process.py.
"""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from openrlhf_sagc.grading.answers import decided
from openrlhf_sagc.grading.cleaning import number, rounded
from openrlhf_sagc.grading.disarm import check_names
from openrlhf_sagc.grading.reading import VARIABLE, Node, plain, read
from openrlhf_sagc.grading.words import LEAD

_NAME = re.compile(  # x, x_1, \alpha, f(x), AB, |AB|
    r"(?!\\pi|\\infty|e$)(?:[A-Za-z]+(?:_\{?[\w,]+\}?)?(?:'*\([\w,]*\))?|\\[a-z]+ ?(?:_\{?\w+\}?)?)|\|[A-Z]{2}\||\\angle ?[A-Za-z]+"
)
_UNREADABLE = re.compile(  # no expression, or one of which latex2sympy would leave something out
    r"[^ -~]|['\"#@?;:=<>&]|\\(?:text|mathrm|to|dots|sim|begin|vee|wedge|oplus|Rightarrow|setminus)(?![A-Za-z])"  # words, relations
    r"|\\(?:over|bar|hat|wide|tilde|dot|ddot|vec|acute|grave|check|breve)"  # accents: any text becomes a name
    r"|\^(?:\{[^{}]*\}|\w)\^|[A-Za-z]\^\{\(\w+\)\}|\\angle(?![A-Za-z])"  # towers, derivatives, angles
    r"|\d_|\d (?=\d)|\d*\.\d+\.|[+-] *[+-]|\^ *\{? *(?:T\b|\\(?:top|intercal|prime|dagger|ast)|\*)"  # bases, gaps, transposed
)
_RUNNING = re.compile(r"(\\(?:sum|prod|lim)) ?_\{\w(?:=|\\to ?)[-+]?(?:\w+|\\infty|\\pi)\}")  # k=1 under a sum
_CHOOSE = re.compile(r"(?<![A-Za-z\\])(?:([CP])_\{?(\d{1,3})\}?\^\{?(\d{1,3})\}?|([CP])\((\d{1,3}),(\d{1,3})\))")
_EXTREME = re.compile(r"\\(max|min|gcd|lcm) ?(?:\(|\\\{)(-?\d{1,9}(?:,-?\d{1,9})+)(?:\)|\\\})")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_ORDERED, _UNORDERED = ("()", "<>", "[]", "column", "row"), (",", "or", "and", "{}", "±")
MOST_ITEMS = 100  # of lists whose items are compared with each other


def equal(gold: str, answer: str) -> bool:
    """Whether the answer says what the gold answer says, without a limit of time."""
    verdict = decided(gold, answer)
    return same(read(gold), read(answer)) if verdict is None else verdict


def same(gold: Node, answer: Node) -> bool:
    """The same of what was read."""
    kinds = {gold.kind, answer.kind}
    if "option" in kinds:
        return _same_options(gold, answer)
    if kinds == {"words"}:
        return plain(gold.text) == plain(answer.text) != ""
    if kinds == {"value"}:
        return _same_values(gold, answer)
    wanted, given = _intervals(gold), _intervals(answer)
    if wanted and given and (wanted[1] or given[1]) and len(wanted[2] | given[2]) < 2:
        sets = ([Node("interval", one.kind, items=one.items) for one in found] for found in (wanted[0], given[0]))
        return _same_items(*sets)
    if kinds == {"interval"}:
        return gold.text == answer.text and _same_in_order(gold.items, answer.items)
    if kinds == {"relation"}:
        return _same_relations(gold, answer)
    for inside, other in ((gold, answer), (answer, gold)):
        if inside.kind == "relation" and inside.text == r"\in" and _is_named(inside):
            return same(inside.items[1], other) if inside is gold else same(other, inside.items[1])
    if gold.kind == "relation":
        return set(gold.text.split()) == {"="} and _is_named(gold) and same(gold.items[-1], answer)
    if answer.kind == "relation":
        return "'" not in answer.items[0].text and _says(answer, gold)  # f'(x) = 2x is not what f(x) is
    return _same_several(gold, answer)


def _same_options(gold: Node, answer: Node) -> bool:
    """Options by their letters; the gold answer by what the option says."""
    wanted, given = _options(gold), _options(answer)
    if wanted and given:
        pairs = [(said, given[letter]) for letter, said in wanted.items() if letter in given]
        return (
            {gold.kind, answer.kind} != {"and", "or"}
            and wanted.keys() == given.keys()
            and all(not a or not b or same(a, b) for a, b in pairs)
        )
    option, other = (gold, answer) if gold.kind == "option" else (answer, gold)
    return option.kind == "option" and bool(option.items) and same(option.items[0], other)


def _options(node: Node) -> dict[str, Node | None]:
    items = node.items if node.kind in _UNORDERED else (node,)
    if any(item.kind != "option" for item in items):
        return {}
    return {letter: item.items[0] if item.items else None for item in items for letter in item.text}


def _same_values(gold: Node, answer: Node) -> bool:
    """Numbers; a unit that only one has says nothing, but for percent and degrees."""
    (g, g_unit), (a, a_unit) = (gold.text, gold.unit), (answer.text, answer.unit)
    if g_unit and a_unit and g_unit != a_unit:
        return False
    if (g_unit == "%") != (a_unit == "%"):
        return _equal(g, a) or _equal(
            *(rf"({text})\cdot\frac{{1}}{{100}}" if unit == "%" else text for text, unit in ((g, g_unit), (a, a_unit)))
        )
    if (g_unit == "°") != (a_unit == "°") and (r"\pi" in g) != (r"\pi" in a):
        return _equal(
            *(
                rf"({text})\cdot\frac{{\pi}}{{180}}" if unit == "°" else text
                for text, unit in ((g, g_unit), (a, a_unit))
            )
        )
    return _equal(g, a)


def _is_named(relation: Node) -> bool:
    """Whether its first side is a name, so that the last one is what it is."""
    first = relation.items[0]
    is_label = first.text[:1] == "⟦" and all(word in LEAD for word in first.text.strip("⟦⟧").lower().split())
    return first.kind == "option" or is_label or _NAME.fullmatch(first.text) is not None


def _says(answer: Node, gold: Node) -> bool:
    """Whether x = 1 + 1 = 2 says 2: each side does, but for a first side that is a name, or what is asked for, as a + b or m/n."""
    is_asked = re.fullmatch(
        r"(?=.*[A-Za-z].*[A-Za-z])(?:[A-Za-z](?:_\w)?|[+/{}]|\\cdot ?|\\frac)+", answer.items[0].text
    )
    skipped, signs = int(_is_named(answer) or is_asked is not None), answer.text.split()
    exact = max(signs.index(r"\approx") + 1, skipped + 1) if r"\approx" in signs else len(answer.items)
    is_near = all(_is_near(answer.items[skipped], side) for side in answer.items[exact:])
    return (
        set(signs) <= {"=", r"\approx"} and is_near and all(same(gold, side) for side in answer.items[skipped:exact])
    )


def _is_near(exact: Node, side: Node) -> bool:
    """Whether both are numbers, 2 % from each other at most."""
    if {exact.kind, side.kind} != {"value"} or _expression(exact.text) is None or _expression(side.text) is None:
        return False
    a, b = _values(exact.text)[0], _values(side.text)[0]
    return a is not None and b is not None and abs(a - b) <= abs(a) / 50


def _same_relations(gold: Node, answer: Node) -> bool:
    if {gold.text, answer.text} <= {"=", "= ="} and _is_named(gold) and _is_named(answer):
        names = {relation.items[0].text for relation in (gold, answer)}
        return (len(names) == 1 or names == {"y", "f(x)"}) and _says(answer, gold.items[-1])
    signs = answer.text.split()
    if not {*signs} <= {"=", r"\ne", r"\approx", r"\equiv", *_FLIPPED}:
        return gold.text == answer.text and _same_in_order(gold.items, answer.items)
    flipped = Node("relation", " ".join(_FLIPPED.get(sign, sign) for sign in signs[::-1]), items=answer.items[::-1])
    for relation in (answer, flipped):
        if relation.text == gold.text and _same_in_order(gold.items, relation.items):
            return True
        if (
            relation.text == gold.text
            and len(signs) == 1
            and signs != [r"\equiv"]
            and {(item.kind, item.unit) for item in (*gold.items, *relation.items)} == {("value", None)}
        ):
            wanted, given = (f"({node.items[0].text})-({node.items[1].text})" for node in (gold, relation))
            if _proportional(wanted, given, or_negative=signs == ["="]):
                return True
    return False


def _proportional(gold: str, answer: str, or_negative: bool) -> bool:
    """Whether one difference of sides is a multiple of the other, by the factor that they have at a point."""
    if _expression(gold) is None or _expression(answer) is None:
        return False
    a, b = _values(gold)[0], _values(answer)[0]
    if not a or not b or a.imag or b.imag or not (or_negative or a * b > 0):
        return False
    factor = Fraction(str(a / b)).limit_denominator(1000)
    return _equal(gold, rf"({factor.numerator})\cdot\frac{{1}}{{{factor.denominator}}}\cdot({answer})")


def _same_in_order(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return len(gold) == len(answer) and all(same(g, a) for g, a in zip(gold, answer))


def _same_several(gold: Node, answer: Node) -> bool:
    kinds, by_name = {gold.kind, answer.kind}, (_by_name(gold), _by_name(answer))
    if bool(by_name[0]) != bool(by_name[1]) and kinds <= {"()", "<>", "column", ",", "and"}:  # x = 1, y = 2 is (1, 2)
        return _same_in_order(by_name[0] or gold.items, by_name[1] or answer.items)
    if kinds <= set(_ORDERED):
        is_loose = len(kinds) == 1 or (len(gold.items) > 2 or "[]" not in kinds) and kinds != {"row", "column"}
        return is_loose and _same_in_order(gold.items, answer.items)
    if kinds <= {"+", "and"} and "+" in kinds or len(kinds) == 1 and gold.kind not in _UNORDERED:
        return _same_in_order(gold.items, answer.items)
    if not kinds <= set(_UNORDERED):
        return False
    items = [*gold.items, *answer.items]
    if (gold.kind == "or") != (answer.kind == "or"):  # the same between solutions alone
        solutions = [
            item for item in items if item.items and item.text in ("", "=") or item.kind == "value" and not item.unit
        ]
        if len(solutions) < len(items) or len({item.items[0].text for item in items if item.kind == "relation"}) > 1:
            return False
    return _same_items(
        *(
            [part for item in node.items for part in (item.items if item.kind == "±" else (item,))]
            for node in (gold, answer)
        )
    )


def _by_name(node: Node) -> list[Node]:
    """The values of x = 1, y = 2 in the order of their different names; none if it is no such list."""
    pairs = [
        (item.items[0].text, item.items[1])
        for item in node.items
        if item.kind == "relation" and item.text == "=" and _is_named(item)
    ]
    if node.kind not in (",", "and") or len(dict(pairs)) < max(2, len(node.items)):
        return []
    return [
        value
        for _, value in (
            sorted(pairs, key=lambda pair: pair[0]) if all(len(name) == 1 for name, _ in pairs) else pairs
        )
    ]


def _same_items(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    """Whether each item has a partner of its own, whatever the order; in lists of different quantities one of its unit."""
    if len(gold) != len(answer) or len(gold) > MOST_ITEMS:
        return False
    is_strict = any(len({item.unit for item in items}) > 1 for items in (gold, answer))
    left = list(answer)
    for item in sorted(gold, key=lambda item: item not in left):
        partners = (
            other
            for other in left
            if item == other or (not is_strict or item.unit == other.unit) and same(item, other)
        )
        partner = item if item in left else next(partners, None)
        if partner is None:
            return False
        left.remove(partner)
    return True


def _intervals(node: Node) -> tuple[list[Node], bool, set[str]] | None:
    """The intervals that make a set of real numbers, whether it can be nothing else, and the name it is about; None if it is none."""
    if node.kind in ("()", "(]", "[)", "[]") and len(node.items) == 2:
        is_endless = any(r"\infty" in item.text for item in node.items)
        return [node], node.kind in ("(]", "[)") or is_endless, set()
    if node.kind in ("cup", ",", "or"):
        parts = [_intervals(item) for item in node.items]
        found = [part for part in parts if part and (part[1] or node.kind == "cup")]
        if len(found) < len(parts):
            return None
        return (
            [interval for part in found for interval in part[0]],
            True,
            set().union(*(part[2] for part in found if node.kind != "cup")),
        )
    if node.kind != "relation":
        return None
    signs, sides = node.text.split(), list(node.items)
    if signs == [r"\in"]:
        inner = _intervals(sides[1])
        return inner and (inner[0], inner[1], {sides[0].text})
    if signs[0] in (">", r"\ge"):
        signs, sides = [_FLIPPED.get(sign, sign) for sign in signs[::-1]], sides[::-1]
    names = [side.text if side.kind in ("value", "option") and VARIABLE.fullmatch(side.text) else "" for side in sides]
    endless, minus = Node("value", r"\infty"), Node("value", r"-\infty")
    if signs == [r"\ne"] and names[0]:
        return [Node("()", items=(minus, sides[1])), Node("()", items=(sides[1], endless))], True, {names[0]}
    if not set(signs) <= {"<", r"\le"} or [bool(name) for name in names] not in (
        [False, True, False],
        [True, False],
        [False, True],
    ):
        return None
    is_lower = bool(names[1])
    low, high = (sides[0] if is_lower else minus), (sides[2] if len(sides) == 3 else endless if is_lower else sides[1])
    left = "[" if is_lower and signs[0] == r"\le" else "("
    right = "]" if high is not endless and signs[-1] == r"\le" else ")"
    return [Node(left + right, items=(low, high))], True, {"".join(names)}


def _equal(gold: str, answer: str) -> bool:
    """Whether two expressions have one value, as math-verify says, which may take tiny values for one and so is asked last."""
    from math_verify.grader import verify  # type: ignore[import-untyped]

    wanted, given = number(gold), number(answer)
    if gold == answer or wanted is not None and given is not None:
        return gold == answer != "" or wanted == given or rounded(gold, given) or rounded(answer, wanted)
    a = _expression(gold)
    b = None if a is None else _expression(answer)
    if a is None or b is None:
        return False
    if a.is_infinite or b.is_infinite:
        return bool(a == b and a.is_extended_real)
    for x, y in zip(_values(gold), _values(answer)):
        if x is not None and y is not None and abs(x - y) > max(abs(x), abs(y)) * 10**-40:
            return any(_is_rounded(text, value) for text, value in ((gold, b), (answer, a)))
    return bool(verify(a, b, timeout_seconds=None))


def _is_rounded(text: str, value) -> bool:
    is_endless = value.is_number and value.is_real and not value.is_Rational
    return is_endless and rounded(text, Fraction(str(value.evalf(60))))


@lru_cache(maxsize=1000)
def _values(text: str) -> list:
    """To 60 digits, where each symbol has a number of its own that depends on its name alone; None where there is no value."""
    from mpmath import mp  # type: ignore[import-untyped]
    from sympy import Rational  # type: ignore[import-untyped]

    mp.dps, expression, found = 60, _expression(text), []
    for point in (7, 11, 13):
        numbers = {
            symbol: Rational(sum(map(ord, str(symbol))) % 89 * 10 + point, 97) for symbol in expression.free_symbols
        }
        try:
            found.append(mp.mpmathify(expression.subs(numbers).evalf(60, maxn=300)))
        except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
            found.append(None)
    return found


def expressions(text: str) -> list:
    """What latex2sympy, math-verify's reader, finds in LaTeX: one expression, or none. Every text that reaches it does so here.

    Raises:
        ValueError: a name in it is no name.
    """
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
    from sympy import Expr, I, Symbol

    text = _EXTREME.sub(_extreme, _CHOOSE.sub(_choose, text))
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


def _choose(match: re.Match) -> str:
    call, *numbers = (group for group in match.groups() if group)
    n, k = map(int, numbers)
    return str((math.comb if call == "C" else math.perm)(*((max(n, k), min(n, k)) if match[1] else (n, k))))


def _extreme(match: re.Match) -> str:
    numbers = list(map(int, match[2].split(",")))
    return str(
        {"max": max, "min": min}[match[1]](numbers) if match[1][0] == "m" else getattr(math, match[1])(*numbers)
    )


@lru_cache(maxsize=1000)
def _expression(text: str):
    from sympy import Rational

    value = number(text)  # which saves most of a comparison's time
    if value is not None:
        return Rational(value.numerator, value.denominator)
    found = expressions(text)
    return found[0].doit() if found else None
