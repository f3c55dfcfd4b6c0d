r"""Whether two answers say the same: their structure here, their numbers and expressions by an `Algebra`.

A right verdict needs the whole answer. Lists are compared with their counts, intervals with their ends, relations as
relations, quantities with their units; what was not understood equals only itself.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from openrlhf_sagc.grading.intervals import is_set, names, pieces, same_pieces
from openrlhf_sagc.grading.nodes import (
    Clock,
    Many,
    Node,
    Option,
    Relation,
    Union,
    Value,
    Words,
    flipped,
    is_named,
    plain,
)
from openrlhf_sagc.grading.numbers import Algebra, number
from openrlhf_sagc.grading.parts import (
    UNORDERED,
    by_name,
    contents,
    flat,
    is_solution,
    kinds_of,
    option_letters,
    text_of,
    times,
    total,
)
from openrlhf_sagc.grading.words import GREEK, Unit

MOST_ITEMS = 100  # of lists whose items are compared with each other
ORDERED = ("()", "<>", "[]", "column", "row")


def same(gold: Node, answer: Node, algebra: Algebra) -> bool:
    """Whether the answer says what the gold answer says."""
    if isinstance(gold, Option) or isinstance(answer, Option):
        return _same_options(gold, answer, algebra)
    if isinstance(gold, Clock) and isinstance(answer, Clock):
        return gold.seconds == answer.seconds
    if isinstance(gold, Words) and isinstance(answer, Words):
        return plain(gold.text) == plain(answer.text) != ""
    if isinstance(gold, Value) and isinstance(answer, Value):
        return _same_values(gold, answer, algebra)
    if (low := pieces(gold)) is not None and (high := pieces(answer)) is not None and (is_set(gold) or is_set(answer)):
        if _of_one_name(gold, answer) and same_pieces(low, high, algebra):
            return True
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relations(gold, answer, algebra)
    for inside, other in ((gold, answer), (answer, gold)):
        if isinstance(inside, Relation) and inside.signs == (r"\in",) and is_named(inside):
            bare = inside.sides[1]
            return same(bare, other, algebra) if inside is gold else same(other, bare, algebra)
    if isinstance(gold, Relation) and gold.signs == (r"\equiv",) and isinstance(answer, Value):
        return is_named(gold) and r"\pmod" in answer.latex and same(gold.sides[1], answer, algebra)
    if isinstance(gold, Relation):
        return set(gold.signs) == {"="} and is_named(gold) and same(gold.sides[-1], answer, algebra)
    if isinstance(answer, Relation):
        return _says(answer, gold, algebra)
    if isinstance(gold, Union) and isinstance(answer, Union):
        return _same_items(gold.items, answer.items, algebra)
    if isinstance(gold, Many) or isinstance(answer, Many):
        return _same_many(gold, answer, algebra)
    return False


def _same_options(gold: Node, answer: Node, algebra: Algebra) -> bool:
    """Options by their letters; the gold answer by what the option says."""
    wanted, given = option_letters(gold), option_letters(answer)
    if wanted and given:
        joints = {getattr(node, "joint", "") for node in (gold, answer)}
        said, other_said = (contents(node) for node in (gold, answer))
        return (
            wanted == given
            and joints != {"and", "or"}
            and all(
                isinstance(content, Words)
                or isinstance(other := other_said.get(letter, content), Words)
                or same(content, other, algebra)
                for letter, content in said.items()
            )
        )
    if isinstance(gold, Option):
        return gold.content is not None and same(gold.content, answer, algebra)
    return isinstance(answer, Option) and answer.content is not None and same(gold, answer.content, algebra)


def _of_one_name(gold: Node, answer: Node) -> bool:
    """Whether the sets are of one name, or of none that is said."""
    wanted, given = names(gold), names(answer)
    return max(len(wanted), len(given)) < 2 and (not wanted or not given or wanted == given)


def _same_values(gold: Value, answer: Value, algebra: Algebra) -> bool:
    """Numbers with the units of both if these can be turned into each other; else a unit says nothing."""
    g, a = gold.unit, answer.unit
    if g and a and g.kinds == a.kinds:
        return algebra.equal(_in_unit(gold, a), answer.latex)
    if _is(g, "percent") != _is(a, "percent"):
        hundredth = [
            times(value.latex, Fraction(1, 100)) if _is(value.unit, "percent") else value.latex
            for value in (gold, answer)
        ]
        return algebra.equal(gold.latex, answer.latex) or algebra.equal(*hundredth)
    if _is(g, "angle") != _is(a, "angle"):
        in_degrees, other = (gold, answer) if _is(g, "angle") else (answer, gold)
        if r"\pi" in other.latex and r"\pi" not in in_degrees.latex:
            return algebra.equal(rf"({in_degrees.latex})\cdot \frac{{\pi}}{{180}}", other.latex)
    soft = re.fullmatch(r"(.*\d) [A-Za-z]", answer.latex)  # 5 m, if no letter of the gold answer can be meant
    if soft and number(gold.latex) is not None:
        return algebra.equal(gold.latex, soft[1])
    return algebra.equal(gold.latex, answer.latex)


def _is(counted: Unit | None, kind: str) -> bool:
    return counted is not None and counted.kinds == ((kind, 1),)


def _in_unit(value: Value, other: Unit) -> str:
    assert value.unit
    factor = value.unit.size / other.size
    return value.latex if factor == 1 else times(value.latex, factor)


def _says(answer: Relation, gold: Node, algebra: Algebra) -> bool:
    """Whether x = 1 + 1 = 2 says 2: each side does, but for a first side that has letters and what is only near."""
    if not set(answer.signs) <= {"=", r"\approx"}:
        return False
    first, *rest = answer.sides
    named = is_named(answer) or isinstance(first, Value) and _is_quantity(first.latex)
    exact = answer.signs.index(r"\approx") if r"\approx" in answer.signs else len(answer.signs)
    exact = max(exact, 1) if named else exact
    sides = rest[:exact] if named else [first, *rest[:exact]]
    return all(same(gold, side, algebra) for side in sides) and all(
        _is_near(sides[0], side, algebra) for side in rest[exact:]
    )


def _is_near(exactly: Node, nearly: Node, algebra: Algebra) -> bool:
    """Whether a number is near a value, if that can be told: a few percent."""
    values = isinstance(exactly, Value) and isinstance(nearly, Value)
    return values and algebra.near(exactly.latex, nearly.latex)  # type: ignore[union-attr]


def _is_quantity(latex: str) -> bool:
    """Whether the text can be what was asked for: a + b, xy, m/n; not 2x or x + 1, which solve an equation for x."""
    return len(set(re.findall(rf"(?<![\\A-Za-z])[A-Za-z]|(?<=[A-Za-z])[A-Z]|\\(?:{'|'.join(GREEK)})", latex))) > 1


def _same_relations(gold: Relation, answer: Relation, algebra: Algebra) -> bool:
    if (
        set(gold.signs) == {"="}
        and is_named(gold)
        and r"\approx" not in gold.signs
        and set(answer.signs) <= {"=", r"\approx"}
    ):
        if is_named(answer):
            wanted, given = (text_of(relation.sides[0]) for relation in (gold, answer))
            return (wanted == given or {wanted, given} <= {"y", "f(x)"}) and _says(answer, gold.sides[-1], algebra)
    for relation in (answer, flipped(answer)):
        if relation and relation.signs == gold.signs and _same_in_order(gold.sides, relation.sides, algebra):
            return True
    if len(gold.signs) != 1 or len(answer.signs) != 1:
        return False
    for relation in (answer, flipped(answer)):
        if relation and relation.signs == gold.signs and gold.signs[0] in ("=", "<", ">", r"\le", r"\ge", r"\ne"):
            pairs = [_sides(side) for side in (gold, relation)]
            if pairs[0] and pairs[1]:
                return algebra.proportional(pairs[0], pairs[1], gold.signs[0] not in ("=", r"\ne"))
    return False


def _sides(relation: Relation) -> tuple[str, str] | None:
    left, right = map(text_of, relation.sides)
    return (left, right) if left and right and "⟦" not in left + right else None


def _same_in_order(gold: Sequence[Node], answer: Sequence[Node], algebra: Algebra) -> bool:
    return len(gold) == len(answer) and all(same(g, a, algebra) for g, a in zip(gold, answer))


def _same_many(gold: Node, answer: Node, algebra: Algebra) -> bool:
    totals = [total(node) for node in (gold, answer)]
    if totals[0] and totals[1]:
        if not totals[0].unit or not totals[1].unit:
            return False
        return _same_values(totals[0], totals[1], algebra)
    if not isinstance(gold, Many) or not isinstance(answer, Many):
        return False
    for named, bare in ((gold, answer), (answer, gold)):
        if values := by_name(named):
            if bare.joint in ORDERED and len(bare.items) == len(values):
                wanted, given = (values, bare.items) if named is gold else (bare.items, values)
                return _same_in_order(wanted, given, algebra)
    if gold.joint in ORDERED and answer.joint in ORDERED:
        same_kind = gold.joint == answer.joint or len(gold.items) > 2 or "[]" not in (gold.joint, answer.joint)
        if {gold.joint, answer.joint} == {"row", "column"}:
            same_kind = False
        return same_kind and _same_in_order(gold.items, answer.items, algebra)
    if gold.joint == answer.joint and gold.joint not in UNORDERED:
        return _same_in_order(gold.items, answer.items, algebra)
    if gold.joint in UNORDERED and answer.joint in UNORDERED:
        in_order = (by_name(gold) is None) != (by_name(answer) is None)
        if (gold.joint == "or") != (answer.joint == "or"):
            items = (*gold.items, *answer.items)
            about = {text_of(item.sides[0]) for item in items if isinstance(item, Relation) and is_named(item)}
            if len(about) > 1 or "and" in (gold.joint, answer.joint) and not all(map(is_solution, items)):
                return False
        compare = _same_in_order if in_order else _same_items
        return compare(flat(gold), flat(answer), algebra)
    return (
        len(gold.items) > 2
        and gold.joint in ORDERED
        and answer.joint == ","
        and _same_in_order(gold.items, answer.items, algebra)
    )


def _same_items(gold: Sequence[Node], answer: Sequence[Node], algebra: Algebra) -> bool:
    """Whether each item has a partner of its own, whatever the order."""
    if len(gold) != len(answer) or len(gold) > MOST_ITEMS:
        return False
    units = [{getattr(item, "unit", None) for item in items} for items in (gold, answer)]
    if any(len(found) > 1 for found in units):
        return _matched(gold, answer, lambda g, a: kinds_of(g) == kinds_of(a) and same(g, a, algebra))
    return _matched(gold, answer, lambda g, a: same(g, a, algebra))


def _matched(gold: Sequence[Node], answer: Sequence[Node], equal) -> bool:
    left = list(answer)
    rest = []
    for item in gold:
        if item in left:
            left.remove(item)
        else:
            rest.append(item)
    for item in rest:
        partner = next((i for i, other in enumerate(left) if equal(item, other)), None)
        if partner is None:
            return False
        left.pop(partner)
    return not left
