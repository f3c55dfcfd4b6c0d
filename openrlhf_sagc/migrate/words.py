"""The words of a text that bash reads: places, quotes, and what bash puts in the place of an expansion."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

INSIDE = rb"(?:[^()]|\((?:[^()]|\([^()]*\)){0,500}\)){0,2000}"  # of $( ): brackets in it are in pairs
SUBSTITUTION = re.compile(rb"\$\((?!\()(" + INSIDE + rb")\)|`([^`]*)`", re.DOTALL)
SAYS = (b"echo", b"printf")  # what puts words into a substitution
EXPANSION = re.compile(rb"\\?[\"']?\\?(?:\$[\w{(@*]|`)")  # begins a word that bash replaces
END = re.compile(rb"^(?:;+|&&?|\|\|?|\d*[<>].*)$")  # of a command within a text
TOKEN = re.compile(
    rb"(?:\\?\$\(" + INSIDE + rb"\)|`[^`]*`|"
    rb"""\\?\$\{[^{}]*\}|\\(?!\r?\n).|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\;`]|["'`])+|;+""",
    re.DOTALL,
)
CLOSED = re.compile(rb"([^\"']*?)\\?[\"']")  # the last word of a text whose quote began before it


@dataclass(frozen=True)
class Word:
    """A word of a command: source[start:end], with its quotes."""

    start: int
    end: int
    text: bytes
    alone: bool = False  # the value of an assignment without quotes, which a space would end

    @property
    def quote(self) -> bytes:
        """The quote around it, with its backslash."""
        found = re.fullmatch(rb"(\\?[\"']).*\1", self.text, re.DOTALL)
        return found[1] if found else b""

    @property
    def bare(self) -> bytes:
        """Without the quotes around it."""
        return self.text[len(self.quote) : len(self.text) - len(self.quote)]


def tokens(source: bytes, start: int, end: int) -> list[Word]:
    """The words of source[start:end], as bash splits them."""
    return [Word(match.start(), match.end(), match[0]) for match in TOKEN.finditer(source, start, end)]


def inner(word: Word) -> list[Word]:
    """Words within a text, without the quotes around it."""
    begin = re.match(rb"\$?(\\?[\"'])", word.text)  # a text in a text has a backslash
    start, end = (begin.end(), len(word.text) - len(begin[1])) if begin else (0, len(word.text))
    found = TOKEN.finditer(word.text, start, end)
    return [Word(word.start + match.start(), word.start + match.end(), match[0]) for match in found]


def cut(words: list[Word]) -> list[Word]:
    """Up to the quote that ends the text which the words are of: one that none of them has opened."""
    is_open = False
    for index, word in enumerate(words):
        if max(word.text.count(b'"'), word.text.count(b"'")) % 2:
            closed = CLOSED.fullmatch(word.text)
            if closed and not is_open:
                last = Word(word.start, word.start + closed.end(1), closed[1])
                return [*words[:index], *[last] * bool(last.text)]
            is_open = not is_open
    return words


def substitutions(word: Word) -> Iterator[tuple[int, int]]:
    """Places of the commands in a word whose output bash puts there: $(command) and `command`."""
    for match in SUBSTITUTION.finditer(word.text):
        begin, end = match.span(match.lastindex or 0)
        yield word.start + begin, word.start + end


def said(source: bytes, words: list[Word]) -> list[Word]:
    """The words that echo makes of its own, in quotes or not."""
    if words and not words[0].quote and re.match(rb"\\[\"']", words[0].text):  # a text in a text
        begin, end = words[0].start, words[-1].end
        words = [Word(begin, end, source[begin:end])]
    return [part for word in words for part in (inner(word) if word.quote else [word])]
