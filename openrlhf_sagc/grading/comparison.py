"""Whether two answers say the same: their structure here, their numbers and expressions as `expressions` has them.

A right verdict needs the whole answer: lists with their counts, intervals with their ends, relations as relations, quantities
with their units. A comparison may take for ever or run code, so `equal` is called in a confined process: see process.py.
"""

import re
from collections.abc import Sequence

from openrlhf_sagc.grading.answers import decided
from openrlhf_sagc.grading.expressions import equal_values, is_near
from openrlhf_sagc.grading.reading import FLIPPED, PAIRS, Node, plain, read
from openrlhf_sagc.grading.words import LEAD

_NAME = re.compile(  # x, x_1, \alpha, f(x), AB, |AB|, (x,y)
    r"(?!\\pi|\\infty|e$)(?:[A-Za-z]+(?:_\{?[\w,]+\}?)?(?:'*\([\w,]*\))?|\\[a-z]+ ?(?:_\{?\w+\}?)?)"
    r"|\|[A-Z]{2}\||\\angle ?[A-Za-z]+|\([a-z](?:,[a-z])+\)"
)
_ASKED = re.compile(r"(?=.*[A-Za-z].*[A-Za-z])(?:[A-Za-z](?:_\w)?|[+/{}]|\\cdot ?|\\frac)+")  # a + b, m/n
_LISTS = (",", "and", "or", "{}")
_FACTORS = {"%": r"\cdot\frac{1}{100}", "°": r"\cdot\frac{\pi}{180}"}
MOST_ITEMS = 100  # of lists whose items are compared with each other


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
    if "set" in kinds and kinds <= {"set", *PAIRS}:
        wanted, given = (node.items if node.kind == "set" else (node,) for node in (gold, answer))
        return len({gold.text, answer.text} - {""}) < 2 and _same_items(wanted, given)
    if gold.kind == "relation" != answer.kind:
        return _is_named(gold) and gold.text in ("=", r"\in") and same(gold.items[1], answer)
    if answer.kind == "relation" != gold.kind:  # f'(x) = 2x is not what f(x) is
        return "'" not in answer.items[0].text and _says(answer, gold)
    if kinds == {"relation"}:
        return _same_relations(gold, answer)
    systems = [_by_name(node) for node in (gold, answer)]
    if any(systems) and not all(systems) and kinds <= {"()", ",", "and"}:  # x = 1, y = 2 is (1, 2)
        return _same_in_order(systems[0] or gold.items, systems[1] or answer.items)
    if kinds <= {*_LISTS}:
        is_same = kinds == {"or"} or "or" not in kinds or all(map(_is_solution, (gold, answer)))
        return is_same and _same_items(gold.items, answer.items)
    return (len(kinds) == 1 or kinds == {"+", "and"}) and _same_in_order(gold.items, answer.items)


def _is_solution(node: Node) -> bool:
    """Whether it lists what one unknown may be, so that x = 1 or x = 2 says no more than 1, 2."""
    values = [item for item in node.items if item.kind == "value" and not item.unit]
    names = [_text(item.items[0]) for item in node.items if item.kind == "relation" and item.text == "="]
    return len(values) + len(names) == len(node.items) and len({*names}) < 2


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
    return first.kind == "option" or is_label or _NAME.fullmatch(_text(first)) is not None


def _text(side: Node) -> str:
    if side.kind == "and":  # the options A and B, of a length AB
        return "".join(item.text for item in side.items)
    return f"({','.join(item.text for item in side.items)})" if side.kind == "()" else side.text


def _says(answer: Node, gold: Node) -> bool:
    """Whether x = 1 + 1 = 2 says 2: each side does, but for a first side that is a name, or what is asked for, as a + b or m/n."""
    signs, is_asked = answer.text.split(), _ASKED.fullmatch(answer.items[0].text)
    sides = answer.items[1:] if _is_named(answer) or is_asked else answer.items
    if signs == [r"\in"]:
        return _is_named(answer) and same(gold, sides[0])
    about = signs[::-1].index("=") if "=" in signs else len(sides) - 1  # sides behind the last =, all of them near it
    exact, near = sides[: len(sides) - about], sides[len(sides) - about :]
    is_close = all(side.kind == exact[0].kind == "value" and is_near(exact[0].text, side.text) for side in near)
    return {*signs} <= {"=", r"\approx"} and is_close and all(same(gold, side) for side in exact)


def _same_relations(gold: Node, answer: Node) -> bool:
    """The same sides by the same sign, from left or from right, or by the same difference."""
    if gold.text == "=" and _is_named(gold) and _is_named(answer):
        names = {_text(relation.items[0]) for relation in (gold, answer)}
        if len(names) == 1 or names == {"y", "f(x)"}:
            return _says(answer, gold.items[-1])
    signs = answer.text.split()
    turned = Node("relation", " ".join(FLIPPED.get(sign, sign) for sign in signs[::-1]), items=answer.items[::-1])
    both_ways = [answer] + [turned] * ({*signs} <= {"=", r"\ne", r"\approx", r"\equiv", *FLIPPED})
    return any(gold.text == one.text and _same_sides(gold, one) for one in both_ways)


def _same_sides(gold: Node, answer: Node) -> bool:
    if _same_in_order(gold.items, answer.items):
        return True
    is_simple = {(item.kind, item.unit) for item in (*gold.items, *answer.items)} == {("value", None)}
    differences = [f"({relation.items[0].text})-({relation.items[1].text})" for relation in (gold, answer)]
    return is_simple and gold.text in ("=", *FLIPPED) and equal_values(*differences)


def _same_in_order(gold: Sequence[Node], answer: Sequence[Node]) -> bool:
    return 0 < len(gold) == len(answer) and all(map(same, gold, answer))


def _by_name(node: Node) -> list[Node]:
    """The values of x = 1, y = 2 in the order of their names, which are letters; none if it is no such list."""
    values = {item.items[0].text: item.items[1] for item in node.items if item.kind == "relation" and item.text == "="}
    is_system = len(values) == len(node.items) and all(name.isalpha() and len(name) == 1 for name in values)
    return [values[name] for name in sorted(values)] if is_system else []


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
