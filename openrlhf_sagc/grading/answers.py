"""Verdicts that need no algebra: answers that are plainly equal or plainly different. For the others see comparison.py."""

import re

from openrlhf_sagc.grading.agreement import same
from openrlhf_sagc.grading.latex import cleaned, spelled_out
from openrlhf_sagc.grading.nodes import Option, plain
from openrlhf_sagc.grading.numbers import number, rounded
from openrlhf_sagc.grading.reading import read

MAX_CHARACTERS = 1000  # longer answers are right only if they are the same text
LETTER = re.compile(  # of an option: no quantity (5 A), article or pronoun (A line, I think)
    r"(?<![\w\\{^])(?<!\d )(?<!\\circ )(?:[B-HJ]|[AI](?! [a-z]))(?![\w^'])"
)
ENDS = tuple(
    re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)
    for words in ("minimum|minimal|smallest|lowest|shortest", "maximum|maximal|largest|highest|longest")
)
TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}")


class Undecided(Exception):
    """Only algebra can tell."""


class _Plain:
    """Numbers, compared exactly."""

    def equal(self, gold: str, answer: str) -> bool:
        if gold == answer:
            return gold != ""
        wanted, given = number(gold), number(answer)
        if wanted is None or given is None:
            if any(text.lstrip("+-") == r"\infty" for text in (gold, answer)) and (wanted, given) != (None, None):
                return False
            raise Undecided
        return wanted == given or rounded(gold, given) or rounded(answer, wanted)

    def near(self, exactly: str, nearly: str) -> bool:
        value, other = number(exactly), number(nearly)
        if value is None or other is None:
            raise Undecided
        return abs(value - other) <= abs(value) / 20

    def proportional(self, gold: tuple[str, str], answer: tuple[str, str], positive: bool) -> bool:
        raise Undecided


def plainly_same(gold: str, answer: str) -> bool:
    """Whether both are one text but for its looks."""
    a, b = cleaned(gold), cleaned(answer)
    words = "⟦" in a or "⟦" in b
    return a != "" and (a == b or words and plain(a) == plain(b))


def decided(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal, if that is plain without algebra, else None.

    Numbers are compared exactly. An empty answer equals nothing.
    """
    if not gold.strip() or not answer.strip():
        return False
    if (
        max(len(gold), len(answer)) > MAX_CHARACTERS
        or max(map(len, map(spelled_out, (gold, answer)))) > MAX_CHARACTERS
    ):
        return gold == answer
    if plainly_same(gold, answer):
        return True
    wanted, given = read(gold), read(answer)
    if isinstance(wanted, Option) and isinstance(given, Option) and len(wanted.letters) == 1:
        if wanted.letters != given.letters or _options(gold) != _options(answer):
            return False
    if _opposite(gold, answer):
        return False
    try:
        return same(wanted, given, _Plain())
    except Undecided:
        return None


def _opposite(gold: str, answer: str) -> bool:
    """Whether one speaks of the smallest value, the other of the largest."""
    (low, high), (other_low, other_high) = ([bool(end.search(text)) for end in ENDS] for text in (gold, answer))
    return low != high and (low, high) == (other_high, other_low)


def _options(answer: str) -> set[str]:
    """The letters of options that the answer names."""
    spaced = re.sub(
        r"(?:\s|~|\\[,;:! ])+", " ", TEXT_COMMAND.sub(r" \1 ", answer.replace("°", r"^\circ").strip(" $."))
    )
    return set(LETTER.findall(spaced))
