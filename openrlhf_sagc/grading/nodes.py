"""What answers are made of, once they are read."""

import re
from dataclasses import dataclass

from openrlhf_sagc.grading.words import GREEK, LEAD_WORDS, UNITS, Unit

NAME = re.compile(  # x, x_1, f(x), f'(x), AB, |AB|
    rf"(?:[A-Za-z]+|\\(?:{'|'.join(GREEK)}) ?|\\(?:bar|hat|overline|tilde)\{{?[A-Za-z]+\}}?)"
    r"(?:_\{?[\w,]+\}?)?(?:'*\([\w\\,]*\))?"
    r"|\|[A-Za-z]+\||\\angle ?[A-Za-z]+|\\(?:sin|cos|tan|cot|sec|csc) ?\(?(?:[A-Za-z]|\\[a-z]+)\)?"
)
RATIO = re.compile(r"[A-Za-z_{}\d⟦⟧]*[A-Za-z][A-Za-z_{}\d⟦⟧]*:[A-Za-z_{}\d⟦⟧]+|\\frac\{[A-Z]+\}\{[A-Z]+\}")


@dataclass(frozen=True)
class Words:
    """A text that equals only itself."""

    text: str


@dataclass(frozen=True)
class Value:
    """A number or an expression, in LaTeX, and what it counts."""

    latex: str
    unit: Unit | None = None


@dataclass(frozen=True)
class Clock:
    """A time of day in seconds, which said whether it is before or after noon if `named`."""

    seconds: int
    named: bool
    text: str


@dataclass(frozen=True)
class Many:
    """Several answers. `joint` is what joins them: ``, or ; and (without order), a pair of brackets, or a matrix."""

    joint: str
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Relation:
    """Sides with the signs between them; the first side may be missing ("")."""

    sides: tuple["Node", ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class Union:
    """Sets of numbers, joined by `\\cup`, or one that a relation describes."""

    items: tuple["Node", ...]


@dataclass(frozen=True)
class Option:
    """The letter of an option, with what it says."""

    letters: str
    content: "Node | None"


Node = Words | Value | Clock | Many | Relation | Union | Option


def plain(text: str) -> str:
    """A text for comparison with another: its letters and signs, without marks, articles and gaps between words."""
    words = re.sub(r"[⟦⟧]", " ", text)
    return re.sub(r"\s+", " ", re.sub(r"(?<![\w\\])(?:an?|the) (?=[A-Za-z]{2})", "", words.strip().casefold())).strip(
        " ."
    )


def is_name(text: str) -> bool:
    """Whether the text names a quantity: x, x_1, f(x), AB, |AB|."""
    return NAME.fullmatch(text.strip()) is not None


def is_named(relation: Relation) -> bool:
    """Whether its first side is a name, so that the last one is what it is."""
    first = relation.sides[0]
    if isinstance(first, Option):
        return True
    text = first.latex if isinstance(first, Value) else first.text if isinstance(first, Words) else ""
    label = re.fullmatch(r"⟦([^⟧]*)⟧", text)
    if label:
        return all(word in LEAD_WORDS or word in UNITS for word in label[1].casefold().split())
    return is_name(text) or RATIO.fullmatch(text) is not None


def flipped(relation: Relation) -> Relation | None:
    return Relation(relation.sides[::-1], tuple(FLIPPED.get(sign, sign) for sign in relation.signs[::-1]))


FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
