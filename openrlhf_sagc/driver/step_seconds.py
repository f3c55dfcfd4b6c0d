"""Where the seconds of a step go: the parts of the log's `timing/step_total`, and the engines' idle tail."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from openrlhf_sagc.training.streamed_training import OPTIMIZER_SECONDS

IDLE_TAIL = "rollout/idle_tail_seconds"
REWARD_WAIT = "rollout/reward_wait_seconds"
# Of an asynchronous run: shares of the time between two steps without any rollout, and without samples to train.
ENGINES_WAIT, ACTORS_WAIT = "rollout/engines_wait_share", "rollout/actors_wait_share"
OTHER = "timing/other"  # of OpenRLHF's training step: what its own timings leave out


def step_seconds(scalars: Mapping[str, float]) -> dict[str, float]:
    """Parts of a step in seconds, `step_seconds/*`; their sum is `timing/step_total`.

    `decoding`, `idle_tail` and `rewards` are generation that training did not hide. In a synchronous run that is all of it. An
    asynchronous run rolls out while it trains, and waits at most for the end, so that rewards and the tail are seen first.

    Args:
        scalars: a step's, as OpenRLHF logs them.
    """
    total, trained = scalars["timing/step_total"], scalars["timing/ppo_train"]
    experience, sync = scalars["timing/make_experience"], scalars["timing/broadcast"]
    optimizer = min(scalars.get(OPTIMIZER_SECONDS, 0.0), trained)  # missing while the actor is frozen
    left = max(total - trained - experience - sync, 0.0)
    generation = min(scalars["timing/generation"], max(left - scalars[OTHER], 0.0))
    rewards = min(scalars[REWARD_WAIT], generation)
    idle_tail = min(scalars[IDLE_TAIL], generation - rewards)
    parts = {
        "decoding": max(generation - idle_tail - rewards, 0.0),  # rounding
        "idle_tail": idle_tail,
        "rewards": rewards,
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
        self._now = 0.0  # when `step_over` was asked last
        self._steps = 0  # that have begun

    def step_over(self) -> float | None:
        """The seconds of the step whose training is over; None if that was the first, or if it was asked for before."""
        self._now, began, self._began = self._clock(), self._began, None
        return None if began is None or self._steps == 1 else self._now - began

    def begin(self) -> None:
        """A step's rollouts begin; they have begun when `step_over` was asked."""
        self._began, self._steps = self._now, self._steps + 1

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is done here belongs to no step."""
        started = self._clock()
        yield
        if self._began is not None:
            self._began += self._clock() - started
