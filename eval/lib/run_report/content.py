"""What a report holds, before it is Markdown or a page."""

from typing import NamedTuple


class Table(NamedTuple):
    """Rows under titles; `alignment` has an l or r for each column."""

    titles: list[str]
    rows: list[list[str]]
    alignment: str


class Figure(NamedTuple):
    """An SVG picture: the file's name without its ending, what it shows, and its text."""

    name: str
    caption: str
    svg: str


class Section(NamedTuple):
    """Sentences, tables and figures under a title."""

    title: str
    blocks: list[str | Table | Figure]


def table(rows: list[dict[str, str]], left: int = 1) -> Table:
    """Of rows with the same keys, the first `left` columns to the left."""
    titles = [*rows[0]]
    return Table(
        titles, [[str(cell) for cell in row.values()] for row in rows], "l" * left + "r" * (len(titles) - left)
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number as tables have it; a dash for none."""
    return "–" if value is None or value != value or abs(value) == float("inf") else f"{value:,.{digits}f}"


def with_interval(found: dict[str, float | None], digits: int = 2) -> str:
    """A value with its interval."""
    ends = "" if found["low"] is None else f" [{number(found['low'], digits)}, {number(found['high'], digits)}]"
    return number(found["value"], digits) + ends
