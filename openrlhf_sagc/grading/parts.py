"""The parts of answers: options and their contents, lists and the names in them, amounts of one kind."""

from fractions import Fraction

from openrlhf_sagc.grading.nodes import Many, Node, Option, Relation, Value, Words, is_named
from openrlhf_sagc.grading.numbers import number
from openrlhf_sagc.grading.words import Unit

UNORDERED = (",", ";", "or", "and", "", "{}", "±")


def option_letters(node: Node) -> str:
    if isinstance(node, Option):
        return node.letters
    if isinstance(node, Many) and node.joint in UNORDERED and all(isinstance(item, Option) for item in node.items):
        return "".join(sorted(letter for item in node.items for letter in option_letters(item)))
    return ""


def contents(node: Node) -> dict[str, Node]:
    """What options say, by their letters."""
    items = node.items if isinstance(node, Many) else (node,)
    options = [item for item in items if isinstance(item, Option) and len(item.letters) == 1]
    return {option.letters: option.content for option in options if option.content is not None}


def by_name(node: Many) -> list[Node] | None:
    """The values of x = 1, y = 2 in the order of their different names; None if it is no such list."""
    if node.joint not in UNORDERED or len(node.items) < 2:
        return None
    values: dict[str, Node] = {}
    for item in node.items:
        if not isinstance(item, Relation) or item.signs != ("=",) or not is_named(item):
            return None
        values[text_of(item.sides[0])] = item.sides[1]
    if len(values) < len(node.items):
        return None
    letters = all(len(name) == 1 for name in values)
    return [values[name] for name in (sorted(values) if letters else values)]


def flat(node: Many) -> list[Node]:
    found: list[Node] = []
    for item in node.items:
        several = isinstance(item, Many) and (item.joint == "±" or node.joint == "or" and item.joint in (",", "and"))
        if isinstance(item, Many) and several and not any(isinstance(part, Relation) for part in item.items):
            found += item.items
        else:
            found.append(item)
    return found


def is_solution(node: Node) -> bool:
    """Whether it can be one of several solutions, which `and` and `or` join alike."""
    if isinstance(node, Relation):
        return node.signs == ("=",)
    return isinstance(node, Many) or isinstance(node, Value) and not node.unit


def text_of(node: Node) -> str:
    if isinstance(node, Option):
        return node.letters
    return node.latex if isinstance(node, Value) else node.text if isinstance(node, Words) else ""


def kinds_of(node: Node) -> tuple:
    counted = getattr(node, "unit", None)
    return counted.kinds if counted else ()


def total(node: Node) -> Value | None:
    """A value with its unit; that of several amounts of one kind, as 1 hour 30 minutes."""
    if isinstance(node, Value):
        return node
    if not isinstance(node, Many) or node.joint not in ("", "and") or len(node.items) < 2:
        return None
    amounts, sizes = Fraction(0), []
    for item in node.items:
        amount = number(item.latex) if isinstance(item, Value) else None
        if amount is None or not isinstance(item, Value) or not item.unit or kinds_of(item) != kinds_of(node.items[0]):
            return None
        amounts += amount * item.unit.size
        sizes.append(item.unit.size)
    if sorted(set(sizes), reverse=True) != sizes:
        return None
    kinds = kinds_of(node.items[0])
    return Value(times("1", amounts), Unit(kinds))


def times(latex: str, factor: Fraction) -> str:
    value = number(latex)
    if value is None:
        return rf"({latex})\cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}"
    value *= factor
    return rf"{'-' * (value < 0)}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
