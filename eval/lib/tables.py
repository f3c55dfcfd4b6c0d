"""Tables, for the terminal and as Markdown."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pandas as pd
from rich.console import Console
from rich.table import Table


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """What is printed in here may find no reader any more, as behind `head`, which is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end


def show(title: str, frame: pd.DataFrame, console: Console | None = None) -> None:
    """Print a data frame: numbers to the right with four digits, missing ones empty."""
    table = Table(title=title)
    for column in frame:
        table.add_column(column, justify="right" if frame[column].dtype.kind in "fi" else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        cells = ("" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value) for value in row)
        table.add_row(*cells)
    (console or Console(width=150)).print(table)


def markdown(titles: Iterable[object], rows: Iterable[Iterable[object]], alignment: str = "") -> str:
    """A Markdown table; `alignment` has an l or an r for each column, l for those that it leaves out."""
    titles = list(titles)
    rule = ["---:" if side == "r" else "---" for side in alignment.ljust(len(titles), "l")]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in [titles, rule, *rows])
