"""Whether two answers say the same: the whole answer counts, its values are compared by math-verify.

A comparison may take for ever or run code, so `equal` is called in a confined process: see process.py.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from openrlhf_sagc.grading.cleaning import LEAD, cleaned, number, spelled_out
from openrlhf_sagc.grading.reading import LISTS, PAIRS, Node, plain, read
from openrlhf_sagc.grading.walls import check_names

_NAME = re.compile(  # x, x_1, \alpha, f(x), AB, |AB|
    r"(?!\\pi|\\infty|e$)(?:[A-Za-z]+(?:_\{?[\w,]+\}?)?(?:'*\([\w,]*\))?|\\[a-z]+ ?(?:_\{?\w+\}?)?)"
    r"|\|[A-Z]{2}\||\\angle ?[A-Za-z]+"
)
_ASKED = re.compile(r"(?=.*[A-Za-z].*[A-Za-z])(?:[A-Za-z](?:_\w)?|[+/{}]|\\cdot ?|\\frac)+")  # a + b, m/n
_FACTORS = {"%": r"\cdot\frac{1}{100}", "°": r"\cdot\frac{\pi}{180}"}
MAX_CHARACTERS = 1000  # longer answers are right only if they are the same text
_ENDS = (r"minim[au]\w*|smallest|lowest|least", r"maxim[au]\w*|largest|highest|greatest")
MOST_ITEMS = 100  # of lists whose items are compared with each other
_UNREADABLE = re.compile(  # no expression, or one of which latex2sympy would leave something out
    r"[^ -~]|['\"#@?;:=<>&]|\\(?:text|mathrm|to|dots|sim|begin|vee|wedge|oplus|Rightarrow|setminus)(?![A-Za-z])"  # words, relations
    r"|\\(?:over|bar|hat|wide|tilde|dot|ddot|vec|acute|grave|check|breve|max|min|gcd|lcm)"  # accents: any text becomes a name
    r"|\^(?:\{[^{}]*\}|\w)\^|[A-Za-z]\^\{\(\w+\)\}|\\angle(?![A-Za-z])"  # towers, derivatives, angles
    r"|\d_|\d (?=\d)|\d*\.\d+\.|[+-] *[+-]|\^ *\{? *(?:T\b|\\(?:top|intercal|prime|dagger|ast)|\*)"  # bases, gaps, transposed
)
_RUNNING = re.compile(r"(\\(?:sum|prod|lim)) ?_\{\w(?:=|\\to ?)[-+]?(?:\w+|\\infty|\\pi)\}")  # k=1 under a sum
DIGITS = 400  # behind the point, down to which math-verify looks; by its default 1/x + 10^-20 is 1/x


def decided(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal, if numbers, choices or the same text tell, else None. An empty answer equals nothing."""
    if not gold.strip() or not answer.strip():
        return False
    if max(len(text) for side in (gold, answer) for text in (side, spelled_out(side))) > MAX_CHARACTERS:
        return gold == answer
    a, b = cleaned(gold), cleaned(answer)
    if a == b:
        return a != ""
    if all(len(text) == 1 and "A" <= text <= "J" for text in (a, b)):
        return False
    ends = [{end for end in _ENDS if re.search(rf"\b(?:{end})\b", text, re.IGNORECASE)} for text in (a, b)]
    if ends[0] and ends[1] and ends[0].isdisjoint(ends[1]):
        return False  # one speaks of the smallest value, the other of the largest
    wanted, given = number(a), number(b)
    return None if wanted is None or given is None else wanted == given


def equal(gold: str, answer: str) -> bool:
    """Whether the answer says what the gold answer says, without a limit of time."""
    verdict = decided(gold, answer)
    return same(read(gold), read(answer)) if verdict is None else verdict


def same(gold: Node, answer: Node) -> bool:
    """The same of what was read."""
    kinds = {gold.kind, answer.kind}
    if kinds == {"value"}:
        return _same_values(gold, answer)
    if kinds == {"words"}:
        return plain(gold.text) == plain(answer.text) != ""
    if kinds == {"option"}:  # by their letters, and by what both say
        return gold.text == answer.text and all(map(same, gold.items, answer.items))
    if "option" in kinds:
        said, other = (gold.items, answer) if gold.kind == "option" else (answer.items, gold)
        return bool(said) and same(said[0], other)
    names = {node.items[0].text if node.kind == "relation" else node.text for node in (gold, answer)} - {""}
    if len(names) > 1 and {"relation"} != kinds <= {"relation", "set", "()", *LISTS}:  # x > 2 is not y > 2
        return False
    if "set" in kinds and kinds <= {"set", *PAIRS}:
        return _same_items(*(node.items if node.kind == "set" else (node,) for node in (gold, answer)))
    if gold.kind == "relation" != answer.kind:
        return _is_named(gold) and gold.text in ("=", r"\in") and same(gold.items[1], answer)
    if answer.kind == "relation" != gold.kind:  # f'(x) = 2x is not what f(x) is
        return "'" not in answer.items[0].text and _says(answer, gold)
    if kinds == {"relation"}:
        return _same_relations(gold, answer)
    items = (*gold.items, *answer.items)
    if len({sum(item.kind == "relation" for item in node.items) for node in (gold, answer)}) == 2:
        return False  # P(A) = 1, P(B) = 2 is not 2, 1
    if kinds <= {*LISTS}:
        are_solutions = {(item.kind, item.unit) for item in items} in ({("value", None)}, {("()", None)})
        return (len(kinds) == 1 or "or" not in kinds or are_solutions) and _same_items(gold.items, answer.items)
    is_system = any(" " in name for name in names) and kinds <= {"()", ",", "and"}  # x = 1, y = 2 is 1, 2
    return (len(kinds) == 1 or kinds == {"+", "and"} or is_system) and _same_in_order(gold.items, answer.items)


def _same_values(gold: Node, answer: Node) -> bool:
    """Numbers; a unit that only one has says nothing, but for percent and degrees."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if equal_values(gold.text, answer.text):
        return True
    parts = [f"({node.text}){_FACTORS.get(node.unit or '', '')}" for node in (gold, answer)]
    return gold.unit != answer.unit and {gold.unit, answer.unit} & {*_FACTORS} != set() and equal_values(*parts)


def _is_named(relation: Node) -> bool:
    """Whether its first side is a name, so that the last one is what it is."""
    first = relation.items[0]
    is_label = first.text[:1] == "⟦" and all(word in LEAD for word in first.text.strip("⟦⟧").lower().split())
    return first.kind == "option" or is_label or _NAME.fullmatch(first.text) is not None


def _says(answer: Node, gold: Node) -> bool:
    """Whether x = 1 + 1 = 2 says 2: each side does, but for a first side that is a name, or what is asked for, as a + b or m/n."""
    signs, is_asked = answer.text.split(), _ASKED.fullmatch(answer.items[0].text)
    sides = answer.items[1:] if _is_named(answer) or is_asked else answer.items
    is_in = signs == [r"\in"] and _is_named(answer)
    return (is_in or {*signs} <= {"=", r"\approx"}) and all(same(gold, side) for side in sides)


def _same_relations(gold: Node, answer: Node) -> bool:
    """The same sides by the same sign, or by it differences of which one is so many times the other."""
    if gold.text == "=" and _is_named(gold) and _is_named(answer):
        names = {relation.items[0].text for relation in (gold, answer)}
        if len(names) == 1 or names == {"y", "f(x)"}:
            return _says(answer, gold.items[-1])
    if gold.text != answer.text or _same_in_order(gold.items, answer.items):
        return gold.text == answer.text
    is_simple = {(item.kind, item.unit) for item in (*gold.items, *answer.items)} == {("value", None)}
    a, b = (_expression(f"({one.items[0].text})-({one.items[1].text})") for one in (gold, answer))
    factor = (a / b).cancel() if a and b and is_simple and gold.text in ("=", "<", r"\le") else None
    return factor is not None and bool(factor.is_positive or gold.text == "=" and factor.is_nonzero)


def _same_in_order(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return 0 < len(gold) == len(answer) and all(map(same, gold, answer))


def _same_items(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    """Whether each item has a partner of its own, whatever the order; in lists of different quantities one of its unit."""
    if not 0 < len(gold) == len(answer) <= MOST_ITEMS:
        return False
    is_strict, left = any(len({item.unit for item in items}) > 1 for items in (gold, answer)), list(answer)
    for item in sorted(gold, key=lambda item: item not in left):
        found = (other for other in left if (not is_strict or item.unit == other.unit) and same(item, other))
        partner = item if item in left else next(found, None)
        if partner is None:
            return False
        left.remove(partner)
    return True


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
    if len({name.lower() for name in names}) < len(names) or _differ(a, b):  # it takes x for X, and tiny ones for 0
        return False
    return bool(verify(a, b, float_rounding=DIGITS, numeric_precision=DIGITS + 20, timeout_seconds=None))


def _differ(a, b) -> bool:
    """Whether they are numbers that differ by more than a part in 10^40, however small they are."""
    from sympy import re as real  # type: ignore[import-untyped]

    if not all(value.is_number and value.is_finite for value in (a, b)):
        return False
    apart, *sizes = (real(abs(value).evalf(60)) for value in (a - b, a, b))  # sympy leaves a tiny imaginary part
    return bool(apart * 10**40 > max(sizes))


@lru_cache(maxsize=1000)
def _expression(text: str):
    """The text as an expression of sympy, or None."""
    from sympy import Rational

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
    text = re.sub(r"(?<![\^_\w.])(\d+) *(?=\(|\\d?binom)", r"\1\\cdot ", text)  # else 4(5) is a mixed number
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
