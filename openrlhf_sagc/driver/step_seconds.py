"""Where the seconds of a step go: the parts of the log's `timing/step_total`, and the engines' idle tail."""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from openrlhf_sagc.actors.optimizer_clock import OPTIMIZER_SECONDS
from openrlhf_sagc.decisions.records import Rollout

IDLE_TAIL = "rollout/idle_tail_seconds"
OTHER = "timing/other"  # of OpenRLHF's training step: what its own timings leave out


def step_seconds(scalars: Mapping[str, float]) -> dict[str, float]:
    """Parts of a step in seconds, `step_seconds/*`; their sum is `timing/step_total`.

    `decoding` and `idle_tail` are generation that training did not hide. In a synchronous run that is all of it. An
    asynchronous run rolls out while it trains, and waits at most for the end, so that the tail is what it sees first.

    Args:
        scalars: a step's, as OpenRLHF logs them.
    """
    total, trained = scalars["timing/step_total"], scalars["timing/ppo_train"]
    experience, sync = scalars["timing/make_experience"], scalars["timing/broadcast"]
    optimizer = min(scalars.get(OPTIMIZER_SECONDS, 0.0), trained)  # missing while the actor is frozen
    left = max(total - trained - experience - sync, 0.0)
    generation = min(scalars["timing/generation"], max(left - scalars[OTHER], 0.0))
    idle_tail = min(scalars[IDLE_TAIL], generation)
    parts = {
        "decoding": generation - idle_tail,
        "idle_tail": idle_tail,
        "experience": experience,
        "training": trained - optimizer,
        "optimizer": optimizer,
        "sync": sync,
        "other": left - generation,
    }
    return {f"step_seconds/{name}": seconds for name, seconds in parts.items()}


class StepClock:
    """Seconds from the beginning of one step's rollouts to that of the next, training included, evaluation left out.

    A process's first step has none: engines and actors are still warming up.

    Args:
        clock: seconds that only go up.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began: float | None = None
        self._steps = 0  # that have begun

    def next_step(self) -> float | None:
        """A step's rollouts begin: the seconds of the step before, None if that was the first or if there was none."""
        now, began = self._clock(), self._began
        self._began, self._steps = now, self._steps + 1
        return None if began is None or self._steps == 2 else now - began

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is done here belongs to no step."""
        started = self._clock()
        yield
        if self._began is not None:
            self._began += self._clock() - started


class RunningRollouts:
    """When rollouts ran in the engines, by the driver's clock.

    Args:
        clock: seconds that only go up.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._sent: dict[Hashable, tuple[float, int]] = {}  # call -> when it was sent, and its rollouts
        self._back: list[tuple[float, Sequence[Rollout]]] = (
            []
        )  # when each call was sent that is back, and its rollouts

    def begin(self) -> None:
        """A step's generation begins; calls may run from the step before."""
        self._began, self._back = self._clock(), []

    def send(self, call: Hashable, rollouts: int) -> float:
        """A call for so many rollouts goes to an engine. Returns the clock."""
        now = self._clock()
        self._sent[call] = now, rollouts
        return now

    def take_back(self, call: Hashable, rollouts: Sequence[Rollout]) -> float:
        """A call is back with its rollouts. Returns the clock when it was sent."""
        sent, _ = self._sent.pop(call)
        self._back.append((sent, rollouts))
        return sent

    def idle_tail(self) -> float:
        """Seconds since the step's peak in which fewer than half as many rollouts ran as at the peak."""
        now = self._clock()
        back = [
            (sent + rollout.seconds - rollout.running_seconds, sent + rollout.seconds)
            for sent, rollouts in self._back
            for rollout in rollouts
        ]
        running = [(sent, now) for sent, rollouts in self._sent.values() for _ in range(rollouts)]
        spans_R2 = np.array([*back, *running]).reshape(-1, 2).clip(self._began, now)
        if not len(spans_R2):
            return 0.0
        times_E, places_E = np.unique(spans_R2, return_inverse=True)
        changes_E = np.bincount(places_E.ravel(), weights=np.tile([1, -1], len(spans_R2)))
        running_E = changes_E.cumsum()
        seconds_E = np.diff(times_E, append=now)
        idle_E = running_E < running_E.max() / 2
        idle_E[: running_E.argmax()] = False
        return float(seconds_E[idle_E].sum())
