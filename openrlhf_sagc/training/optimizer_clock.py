"""The seconds that the policy's optimizer steps take, measured where they are made."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from deepspeed.accelerator import get_accelerator

OPTIMIZER_SECONDS = "actor_optimizer_seconds"


class OptimizerClock:
    """Adds up the seconds of optimizer steps."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def runs(self) -> Iterator[None]:
        """While this is entered, the optimizer may step."""
        # The backward pass may still run on a GPU. Waiting costs nothing: OpenRLHF reads scalars off it right after.
        get_accelerator().synchronize()
        started = time.perf_counter()
        yield
        get_accelerator().synchronize()
        self._seconds += time.perf_counter() - started

    def take(self) -> float:
        """The seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
