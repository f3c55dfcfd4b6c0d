"""Sets of numbers as intervals: written as intervals, as relations, or as sets with a condition."""

from dataclasses import replace
from fractions import Fraction

from openrlhf_sagc.grading.nodes import Many, Node, Option, Relation, Union, Value, flipped, is_named, is_variable
from openrlhf_sagc.grading.numbers import Algebra, number

Piece = tuple[str, str, bool, bool]  # low, high, whether each end belongs to it


def is_set(node: Node) -> bool:
    """Whether the node can only be a set of numbers."""
    if isinstance(node, Many):
        if node.joint == "and" and all(isinstance(item, Relation) and "=" not in item.signs for item in node.items):
            return True
        return node.joint in ("(]", "[)") or any(
            isinstance(item, Value) and r"\infty" in item.latex for item in node.items
        )
    return isinstance(node, (Union, Relation))


def pieces(node: Node) -> list[Piece] | None:
    """The intervals that make a set of numbers; None if it is none, or has ends that are no values."""
    if isinstance(node, Union) or isinstance(node, Many) and node.joint in (",", ";", "or"):
        parts = [pieces(item) for item in node.items]
        if any(part is None for part in parts) or any(isinstance(item, (Value, Option)) for item in node.items):
            return None
        if isinstance(node, Many) and not all(map(is_set, node.items)):  # (1,2), (3,4) are points
            return None
        found = [piece for part in parts for piece in part or ()]
        return None if isinstance(node, Many) and node.joint != "or" and len(_merged(found)) < len(found) else found
    if isinstance(node, Many) and node.joint == "{}":
        points = [(item.latex, item.latex, True, True) for item in node.items if isinstance(item, Value)]
        return points if len(points) == len(node.items) else None
    if isinstance(node, Many) and len(node.items) == 2 and node.joint in ("()", "(]", "[)", "[]"):
        low, high = node.items
        if isinstance(low, Value) and isinstance(high, Value):
            return [(low.latex, high.latex, node.joint[0] == "[", node.joint[1] == "]")]
    if isinstance(node, Many) and node.joint == "and" and not any(isinstance(item, Relation) for item in node.items):
        return pieces(replace(node, joint=","))
    if isinstance(node, Many) and node.joint == "and":
        cuts = sorted(cut for item in node.items if (cut := _cut(item)) is not None)
        if len(cuts) == len(node.items):
            ends = [r"-\infty", *map(str, cuts), r"\infty"]
            return [(low, high, False, False) for low, high in zip(ends, ends[1:])]
        return _common([pieces(item) for item in node.items])
    return _interval(node) if isinstance(node, Relation) else None


def _common(parts: list[list[Piece] | None]) -> list[Piece] | None:
    """The interval that all of these have in common, if each is one with numbers for ends."""
    lows, highs = [], []
    for part in parts:
        if part is None or len(part) != 1:
            return None
        ((low, high, with_low, with_high),) = part
        first, last = _end(low), _end(high)
        if first is None or last is None:
            return None
        lows.append((first, not with_low, low))
        highs.append((last, with_high, high))
    start, stop = max(lows), min(highs)
    return [(start[2], stop[2], not start[1], stop[1])] if start[0] < stop[0] else None


def names(node: Node) -> frozenset[str]:
    """What relations that describe a set of numbers are about; the name in a set with a condition is anyone's."""
    if isinstance(node, Many):
        return frozenset().union(*map(names, node.items))
    if not isinstance(node, Relation):
        return frozenset()
    texts = [getattr(side, "letters", getattr(side, "latex", "")).strip() for side in node.sides]
    return frozenset(text for text in texts if is_variable(text))


def _cut(node: Node) -> Fraction | None:
    if isinstance(node, Relation) and node.signs == (r"\ne",) and isinstance(node.sides[1], Value) and is_named(node):
        return number(node.sides[1].latex)
    return None


def _interval(relation: Relation) -> list[Piece] | None:
    """The numbers that a relation allows for the name in it."""
    if relation.signs == (r"\in",):
        return pieces(relation.sides[1])
    if relation.signs[0] in (">", r"\ge"):
        relation = flipped(relation) or relation
    signs, sides = relation.signs, relation.sides
    texts = [side.letters if isinstance(side, Option) else getattr(side, "latex", "") for side in sides]
    if signs == (r"\ne",) and is_variable(texts[0]) and texts[1]:
        return [(r"-\infty", texts[1], False, False), (texts[1], r"\infty", False, False)]
    if not set(signs) <= {"<", r"\le"} or not all(texts):
        return None
    closed = [sign == r"\le" for sign in signs]
    if len(signs) == 2 and is_variable(texts[1]):
        return [(texts[0], texts[2], *closed)]  # type: ignore[list-item]
    if len(signs) == 1 and is_variable(texts[0]) != is_variable(texts[1]):
        return (
            [(r"-\infty", texts[1], False, closed[0])]
            if is_variable(texts[0])
            else [(texts[0], r"\infty", closed[0], False)]
        )
    return None


def same_pieces(gold: list[Piece], answer: list[Piece], algebra: Algebra) -> bool:
    gold, answer = _merged(gold), _merged(answer)
    left = list(answer)
    for piece in gold:
        for other in left:
            if piece[2:] == other[2:] and all(g == a or algebra.equal(g, a) for g, a in zip(piece[:2], other[:2])):
                left.remove(other)
                break
        else:
            return False
    return not left


def _merged(found: list[Piece]) -> list[Piece]:
    """Pieces with numbers for ends, joined where they touch; others as they are."""
    ends: list[tuple[Fraction | float, bool, Fraction | float, bool, str, str]] = []
    for low, high, with_low, with_high in found:
        first, last = _end(low), _end(high)
        if first is None or last is None:
            return [(low, high.lstrip("+"), with_low, with_high) for low, high, with_low, with_high in found]
        ends.append((first, not with_low, last, with_high, low, high.lstrip("+")))
    ends.sort()
    joined = ends[:1]
    for piece in ends[1:]:
        before = joined[-1]
        if piece[0] < before[2] or piece[0] == before[2] and (before[3] or not piece[1]):
            _, _, last, with_high, _, high = max(before, piece, key=lambda end: (end[2], end[3]))
            joined[-1] = (before[0], before[1], last, with_high, before[4], high)
        else:
            joined.append(piece)
    return [(low, high, not without, with_high) for _, without, _, with_high, low, high in joined]


def _end(text: str) -> Fraction | float | None:
    text = text.lstrip("+")
    return {r"\infty": float("inf"), r"-\infty": float("-inf")}.get(text, number(text))
