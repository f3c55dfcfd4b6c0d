r"""Brackets in LaTeX: what stands between them, and braces for the arguments of fractions that have none.

`\frac\pi2` becomes `\frac{\pi}{2}`.
"""

import re
from collections.abc import Iterator

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_FRACTION = re.compile(r"\\(?:frac|binom)(?![A-Za-z]) ?")
_TOKEN = re.compile(r" ?(?:(\\sqrt) ?(?=\{)|(\d|[A-Za-z]|\\[A-Za-z]+)) ?")
OPEN, CLOSE = ("(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", "{"), (
    ")",
    "]",
    r"\}",
    r"\rangle",
    r"\rfloor",
    r"\rceil",
    "}",
)
TOKEN = re.compile(r"⟦[^⟧]*⟧|\\[A-Za-z]+|\\.|.", re.DOTALL)


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """(token, where it begins, how deep in braces and brackets it stands); a bracket stands outside of itself."""
    depth = 0
    for match in TOKEN.finditer(text):
        token = match[0]
        depth -= token in CLOSE
        yield token, match.start(), depth
        depth += token in OPEN


def split_at(text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """The parts of the text between the separators outside all brackets, and the separators."""
    parts, found, start = [], [], 0
    for token, at, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[start:at])
            found.append(token)
            start = at + len(token)
    return [*parts, text[start:]], found


def braced(text: str) -> str:
    """The text with braces around both arguments of each fraction, where these are a digit, a letter, a name or a root."""
    ends = _ends_of_braces(text)
    opened: dict[int, int] = {}
    closed: dict[int, int] = {}
    for fraction in _FRACTION.finditer(text):
        at = fraction.end()
        for _ in range(2):
            if at in ends:
                at = ends[at]
                continue
            token = _TOKEN.match(text, at)
            if not token:
                break
            end = ends.get(token.end(), -1) if token[1] else token.end()
            if end < 0 or token[2] in (r"\frac", r"\binom"):
                break
            opened[token.start()] = opened.get(token.start(), 0) + 1
            closed[end] = closed.get(end, 0) + 1
            at = end
    parts, start = [], 0
    for at in sorted({*opened, *closed}):
        parts.append(text[start:at] + "}" * closed.get(at, 0) + "{" * opened.get(at, 0))
        start = at
    return re.sub(r" (?=\})|(?<=\{) ", "", "".join([*parts, text[start:]])) if parts else text


def _ends_of_braces(text: str) -> dict[int, int]:
    """Where each brace ends that begins somewhere."""
    ends: dict[int, int] = {}
    begun: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            begun.append(brace.start())
        elif brace[0] == "}" and begun:
            ends[begun.pop()] = brace.end()
    return ends
