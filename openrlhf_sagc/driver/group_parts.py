"""A group whose rollouts come back one by one, put together again."""

import math
from typing import Any

from openrlhf_sagc.decisions.records import ROLLOUT, Group


class GroupParts:
    """The responses of a group, in the order of its rollouts, as far as they are back.

    Args:
        group: that is dispatched.
        keep_first: rollouts with a reward after which the others are to be stopped; None lets all of them finish. An
            engine that has the whole group stops them by itself.
        sent: seconds on the driver's clock at the dispatch.
    """

    def __init__(self, group: Group, keep_first: int | None, sent: float) -> None:
        self.group = group
        self.responses: list[Any] = [None] * group.rollouts  # None of a rollout that is not back
        self._keep_first = keep_first if len(set(group.engines)) > 1 else None
        self._sent = sent
        self._missing = group.rollouts
        self._rewarded = 0

    @property
    def is_whole(self) -> bool:
        """Whether all rollouts are back."""
        return not self._missing

    @property
    def has_enough(self) -> bool:
        """Whether so many rollouts have a reward that the others are to be stopped."""
        return self._keep_first is not None and self._rewarded >= self._keep_first

    @property
    def left_on(self) -> set[int]:
        """The engines of the rollouts that are not back."""
        return {engine for engine, response in zip(self.group.engines, self.responses) if response is None}

    def put(self, place: int, response: dict) -> None:
        """The response of a rollout is back."""
        self.responses[place] = response
        rollout = response[ROLLOUT]
        self._rewarded += not rollout.stopped and rollout.failure is None
        self._missing -= 1

    def spans(self, now: float = math.inf) -> list[tuple[float, float]]:
        """When each rollout ran, in seconds on the driver's clock: from the end of vLLM's queue; one that runs, to `now`."""
        spans = []
        for response in self.responses:
            if response is None:
                spans.append((self._sent, now))
                continue
            end = self._sent + response[ROLLOUT].seconds
            spans.append((end - response[ROLLOUT].running_seconds, end))
        return spans
