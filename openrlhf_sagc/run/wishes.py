"""What the command wishes of the run's other processes while they work, and what the trainer says of its training.

Both are words in the store of Ray's head, so they reach every node. Each process looks there in a thread of its own, since
its others may wait for rollouts.
"""

import functools
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from ray.experimental import internal_kv
from ray.runtime_context import get_runtime_context  # ray's own of this name starts a cluster where there is none

LOOK = 0.5  # seconds between two looks


class GivenUp(Exception):
    """The run ends before its last step, as the command wished."""


class Wish(NamedTuple):
    """What the command has wished so far.

    Attributes:
        end: to end with the last finished step.
        may_save: that step may be saved.
        saves: times it has wished a checkpoint after the step under way.
    """

    end: bool = False
    may_save: bool = True
    saves: int = 0


class Training(NamedTuple):
    """Where the trainer is.

    Attributes:
        since: seconds since 1970 at which it began to train a step; None while it waits for rollouts or evaluates.
        usual: seconds that it expects from there until the step is saved; None if it has not trained any.
    """

    since: float | None = None
    usual: float | None = None


def tell(word: Wish | Training) -> bool:
    """Let the processes of this job know; whether they can, so not where Ray does not run yet, or its head does not answer."""
    with suppress(Exception):  # no training ends because nobody hears of it
        if internal_kv._internal_kv_initialized():
            internal_kv._internal_kv_put(_key(type(word)), json.dumps(word), namespace=__name__)
            return True
    return False


def told(kind: type) -> Any:
    """The last word of this kind; None if there is none."""
    text = (
        internal_kv._internal_kv_get(_key(kind), namespace=__name__)
        if internal_kv._internal_kv_initialized()
        else None
    )
    return kind(*json.loads(text)) if text else None


def _key(kind: type) -> str:
    return f"{get_runtime_context().get_job_id()} {kind.__name__}"


@functools.cache
def wishes() -> "Wishes":
    """Those that this process hears."""
    return Wishes()


class Wishes:
    """The command's wish, as this process has heard of it."""

    def __init__(self) -> None:
        self.wish = Wish()
        self._callbacks: list[Callable[[], None]] = []
        self._saves = 0  # of the wish, which were taken
        if internal_kv._internal_kv_initialized():
            threading.Thread(target=self._listen, name="wishes", daemon=True).start()

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call this, in a thread, once the command wishes the end."""
        self._callbacks.append(callback)

    def look(self) -> None:
        """Go on, unless the command wishes the end.

        Raises:
            GivenUp: it does.
        """
        if self.wish.end:
            raise GivenUp

    def take_save(self) -> bool:
        """Whether a checkpoint of the step that is over is wished, and was not taken yet."""
        wanted = self.wish.saves > self._saves or (self.wish.end and self.wish.may_save)
        self._saves = self.wish.saves
        return wanted

    def _listen(self) -> None:
        while not self.wish.end:
            time.sleep(LOOK)
            try:
                self.wish = told(Wish) or self.wish
            except Exception:  # Ray is busy, or on its way out, which others notice
                continue
        for callback in self._callbacks:
            callback()
