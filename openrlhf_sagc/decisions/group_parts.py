"""A group whose rollouts come back one by one, and which of them are its members."""

from collections.abc import Collection
from typing import Any

from openrlhf_sagc.decisions.records import ROLLOUT, Group, Rollout


class GroupParts:
    """The responses of a group that runs, in the order of its rollouts, as far as they are back.

    A group may have more rollouts than members. Its members are those that finish first.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.responses: list[Any] = [None] * group.rollouts  # None of a rollout that is not back
        self.generated: set[int] = set()  # places of those that have nothing but their reward to come
        self.is_stopping = False
        self._missing = group.rollouts
        self._rewarded = 0

    @property
    def is_whole(self) -> bool:
        """Whether all rollouts are back."""
        return not self._missing

    @property
    def is_generated(self) -> bool:
        """Whether as many responses are there as the group has members, though rewards may be missing."""
        return self.group.rollouts - self._missing + len(self.generated) >= self.group.size

    @property
    def has_enough(self) -> bool:
        """Whether as many rollouts have a reward as the group has members, so that the others are to be stopped."""
        return self._rewarded >= self.group.size < self.group.rollouts

    @property
    def left_on(self) -> list[int]:
        """The engine of each rollout that is not back."""
        return [engine for engine, response in zip(self.group.engines, self.responses) if response is None]

    @property
    def members(self) -> list[int]:
        """Of a whole group, the places of its members: the first to finish with a reward.

        Rollouts that were stopped come after those, and rollouts without a reward last. So a group that could still have
        become whole counts as stopped, and not as one whose reward failed.
        """
        places = list(range(self.group.rollouts))
        if self.group.size < self.group.rollouts:
            places.sort(key=lambda place: _order_of_finish(self.responses[place][ROLLOUT]))
        return places[: self.group.size]

    def put(self, place: int, response: dict) -> None:
        """The response of a rollout is back; it has its `Rollout` under the key ROLLOUT."""
        self.responses[place] = response
        self.generated.discard(place)
        rollout = response[ROLLOUT]
        self._rewarded += not rollout.stopped and rollout.failure is None
        self._missing -= 1


def needless(running: Collection[GroupParts], needed: int) -> list[GroupParts]:
    """Groups that still generate where `needed` others, at least one, have nothing but rewards to come; each is named once."""
    slow = [parts for parts in running if not parts.is_generated]
    if not 0 < needed <= len(running) - len(slow):
        return []
    found = [parts for parts in slow if not parts.is_stopping and not parts.group.prompt.must_finish]
    for parts in found:
        parts.is_stopping = True
    return found


def _order_of_finish(rollout: Rollout) -> tuple[bool, bool, float]:
    return rollout.failure is not None, rollout.stopped, rollout.generated
