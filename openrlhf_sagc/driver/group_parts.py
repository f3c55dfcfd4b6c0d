"""A group whose rollouts come back from several engines, put together again."""

from collections.abc import Sequence
from typing import Any

from openrlhf_sagc.decisions.records import ROLLOUT, Group


class GroupParts:
    """The responses of a group, in the order of its rollouts, as far as they are back.

    Args:
        group: with an engine for each rollout, or for none of them.
        keep_first: rollouts with a reward after which the others are to be stopped; None lets all of them finish.
    """

    def __init__(self, group: Group, keep_first: int | None) -> None:
        self.group = group
        self.responses: list[Any] = [None] * group.rollouts  # None of a rollout that is not back
        self._keep_first = keep_first
        self._missing = group.rollouts
        self._rewarded = 0
        self._began: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all rollouts are back."""
        return not self._missing

    @property
    def has_enough(self) -> bool:
        """Whether so many rollouts have a reward that the others are to be stopped."""
        return self._keep_first is not None and self._rewarded >= self._keep_first

    @property
    def left(self) -> list[int]:
        """Places of the rollouts that are not back."""
        return [place for place, response in enumerate(self.responses) if response is None]

    def sent(self, now: float) -> None:
        """Some of the rollouts go to an engine, at these seconds on the driver's clock."""
        if self._began is None:
            self._began = now

    def put(self, place: int, responses: Sequence[dict], sent: float | None = None) -> None:
        """Responses of the rollouts from `place` on are back, which were sent at these seconds; None if they never were.

        Where the first to finish are the group, seconds of all rollouts count from the first one sent, as a wait. A
        rollout that was held back would look faster than it was otherwise.
        """
        late = 0.0
        if self._keep_first is not None and self._began is not None and sent is not None:
            late = sent - self._began
        for response in responses:
            rollout = response[ROLLOUT]
            if late:
                rollout = rollout._replace(seconds=rollout.seconds + late, queue_seconds=rollout.queue_seconds + late)
                response = {**response, ROLLOUT: rollout}
            self.responses[place] = response
            self._rewarded += not rollout.stopped and rollout.failure is None
            place += 1
        self._missing -= len(responses)
