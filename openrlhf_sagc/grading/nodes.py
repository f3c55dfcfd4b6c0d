"""What answers are made of, once they are read."""

import re
from dataclasses import dataclass

from openrlhf_sagc.grading.words import GREEK, LEAD_WORDS, UNITS, Unit

NAME = re.compile(  # x, x_1, f(x), f'(x), AB, |AB|
    rf"(?:[A-Za-z]+|\\(?:{'|'.join(GREEK)}) ?|\\(?:bar|hat|overline|tilde|vec)\{{?[A-Za-z]+\}}?)"
    r"(?:_\{?[\w,]+\}?)?(?:'*\([\w\\,]*\))?"
    r"|\|[A-Z]{2}\||\\angle ?[A-Za-z]+"
)
VARIABLE = re.compile(rf"(?:[A-Za-z]|\\(?:{'|'.join(GREEK)}) ?)(?:_\{{?[\w,]+\}}?)?")
CONSTANTS = ("e", r"\pi")
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
    words = re.sub(r"[⟦⟧]", " ", _MARK.sub(lambda mark: _WORD.sub(_folded, mark[0]), text))
    return re.sub(r"\s+", " ", re.sub(r"(?<![\w\\])(?:an?|the) (?=[A-Za-z]{2})", "", words.strip())).rstrip(" .")


def _folded(word: re.Match) -> str:
    """A word in small letters, unless its case may tell symbols, units or elements from each other: mW, CO."""
    folds = len(word[0]) > 2 or word[0].casefold() in _SHORT_WORDS
    return word[0].casefold() if folds else word[0]


_SHORT_WORDS = frozenset("a an as at be by do if in is it no of on or so to we".split())
_MARK = re.compile(r"⟦[^⟧]*⟧")
_WORD = re.compile(r"[^\W\d_]+")


def is_name(text: str) -> bool:
    """Whether the text names a quantity: x, x_1, f(x), AB, |AB|."""
    return NAME.fullmatch(text.strip()) is not None and text.strip() not in CONSTANTS


def is_variable(text: str) -> bool:
    """Whether the text is a name whose values an inequality can tell: x, x_1; not f(x), |x| or AB."""
    return VARIABLE.fullmatch(text.strip()) is not None and text.strip() not in CONSTANTS


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
