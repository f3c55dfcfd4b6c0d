"""Records that pass between the policies, the scheduler, the engines and the simulator."""

from collections.abc import Sequence
from typing import Any, NamedTuple

ROLLOUT = "rollout"  # key by which a response of an engine carries its `Rollout`


class Round(NamedTuple):
    """How a step is rolled out.

    `long`: prompts that were put back are drawn first, and run to the end. `prompt_ratio` is prompts dispatched over
    prompts needed. `rollouts` are dispatched for a prompt; the first group_size of them that finish are its group.
    """

    long: bool
    prompt_ratio: float
    rollouts: int

    @property
    def ends_frame(self) -> bool:
        """Whether no prompt is left behind for a later round, as in a long round, which ends a frame of short ones."""
        return self.prompt_ratio == 1


class Prompt(NamedTuple):
    """A training prompt, as it was drawn from the data.

    `episode` counts from 1. `must_finish` says that a group of this prompt was stopped or not trained before: the step
    that draws it waits for it, so that a slow prompt is not put off again and again. `stops` counts how often it was
    stopped all the same, since nothing came back any more.
    """

    text: str
    label: Any
    images: Any
    episode: int
    must_finish: bool = False
    stops: int = 0


class Rollout(NamedTuple):
    """What an engine measured of one rollout; if the rollout did not finish, up to its end.

    `seconds` run from the dispatch inside the engine's actor. `queue_seconds` of them were spent waiting for vLLM's
    scheduler. Where the first to finish of a group on several engines are wanted, both also count the seconds since the
    first of its rollouts was sent. `finished` says that there is a whole response. `stopped` says that the scheduler, or the rollouts of the
    same prompt that finished first, ended this one. `failure` says in one line why there is no reward after all attempts.
    A rollout that is neither finished nor stopped is one whose agent failed.
    """

    tokens: int
    seconds: float
    queue_seconds: float
    finished: bool
    stopped: bool
    failure: str | None

    @property
    def running_seconds(self) -> float:
        """Seconds without the wait."""
        return max(self.seconds - self.queue_seconds, 0.0)


class Labelled(NamedTuple):
    """A prompt's label on its way to an engine, with the number of the group that the engine rolls out."""

    group: int
    label: Any


class Group(NamedTuple):
    """The rollouts of one prompt, from their dispatch on.

    `number` counts groups in the order of dispatch over the whole run. `step` is the step that dispatched the group.
    `rollouts` are dispatched, and `size` of them are the group's members. `engines` has the engine of each rollout, and
    is empty if the scheduler left the whole group to OpenRLHF. `expected_tokens` of each rollout are what it was placed
    by. `samples` are there once the group is accepted.
    """

    number: int
    step: int
    prompt: Prompt
    size: int
    rollouts: int
    engines: tuple[int, ...] = ()
    expected_tokens: int = 0
    samples: Sequence[Any] = ()


def first_to_finish(rollouts: Sequence[Rollout], count: int) -> list[int]:
    """Places of the `count` rollouts of a prompt that are its group: the first to finish with a reward.

    Rollouts that were stopped come after those, and rollouts without a reward last. So a group that could still have
    become whole counts as stopped, and not as one whose reward failed.
    """
    places = list(range(len(rollouts)))
    if len(rollouts) > count:
        places.sort(key=lambda place: _order_of_finish(rollouts[place]))
    return places[:count]


def _order_of_finish(rollout: Rollout) -> tuple[bool, bool, float]:
    return rollout.failure is not None, rollout.stopped, rollout.seconds
