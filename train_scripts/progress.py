"""One line of progress that is rewritten, with the time left; without a terminal, a line for each tenth."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, TaskProgressColumn, TextColumn

TENTHS = 10
MEASURED = 0.05  # the share after which the speed says something


class TimeLeft:
    """Estimates the seconds that are left, from the mean speed since the first report; the estimate never grows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.first: tuple[float, float] | None = None
        self.least = math.inf

    def __call__(self, done: float) -> float | None:
        """Seconds that are left when the share `done` (0 to 1) is done; None before a twentieth is."""
        now = self.clock()
        if self.first is None:
            self.first = now, done
        started, before = self.first
        if done - before < MEASURED:
            return None
        self.least = min(self.least, (now - started) / (done - before) * (1 - done))
        return self.least


@contextlib.contextmanager
def progress_line(console: Console, description: str) -> Iterator[Callable[[float, str], None]]:
    """Yields show(done, text), which tells how much is done, from 0 to 1, and what there is to say of it."""
    columns = TaskProgressColumn(), TextColumn("{task.fields[left]}  {task.description}")
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(description, total=1.0, left="")
        printed, time_left = 0, TimeLeft()

        def show(done: float, text: str) -> None:
            nonlocal printed
            left = time_left(done)
            words = "" if left is None else f", {left:.0f} s left"
            progress.update(bar, completed=done, description=text, left=words[2:])
            if not console.is_terminal and math.floor(done * TENTHS) > printed:
                printed = math.floor(done * TENTHS)
                console.print(f"{done:.0%} done{words}: {text}")

        yield show
