"""One line of progress that is rewritten, with the time left; without a terminal, a line for each tenth."""

import contextlib
import math
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

TENTHS = 10


@contextlib.contextmanager
def progress_line(console: Console, description: str) -> Iterator[Callable[[float, str], None]]:
    """Yields show(done, text), which tells how much is done, from 0 to 1, and what there is to say of it."""
    columns = TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left  {task.description}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(description, total=1.0)
        printed = 0

        def show(done: float, text: str) -> None:
            nonlocal printed
            progress.update(bar, completed=done, description=text)
            if not console.is_terminal and math.floor(done * TENTHS) > printed:
                printed = math.floor(done * TENTHS)
                left = progress.tasks[bar].time_remaining
                console.print(f"{done:.0%} done" + (f", {left:.0f} s left" if left else "") + f": {text}")

        yield show
