"""The pool of an asynchronous run: prompts stay in flight over steps, and a step closes on the first groups that are accepted.

A group's age is the number of updates between the weights of its first token and the update that trains it. No group is
dropped for its age: a step waits for those that would become too old, and dispatches no more than can be trained in time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Group


class Pool(NamedTuple):
    """`prompts` in flight at most, besides those that the next update trains; `max_age` of a group; `episodes` of the run.

    Steps are numbered as the updates that train them, and each needs `num_groups`.
    """

    prompts: int
    max_age: int
    episodes: int

    def room(self, flight: InFlight, queue: PromptQueue, step: int, num_groups: int, to_fill: int) -> int:
        """Groups to dispatch now in this step.

        `to_fill` groups, those that run included, are expected to fill it; 0 for a step without any groups so far. When the
        run has no other prompts left, nothing is dispatched but what fills its last step.
        """
        running, accepted = len(flight.running), len(flight.accepted)
        # Group number i of those in flight, from 0, is trained i // num_groups steps later at the latest.
        in_time = (flight.weights + self.max_age + 1 - step) * num_groups - running - accepted
        room = min(self.prompts - running - max(accepted - num_groups, 0), in_time)
        left = queue.left_until(self.episodes) or to_fill - running
        return max(int(min(room, left)), 0)

    def waits(self, flight: InFlight, queue: PromptQueue, step: int, num_groups: int) -> bool:
        """Whether a step that has its groups waits for others: those that would become too old, or the last of the run."""
        running = [parts.group for parts in flight.running.values() if self._is_of_run(parts.group)]
        if not running:
            return False
        if len(self._of_run(flight)) <= num_groups and not queue.left_until(self.episodes):
            return True
        left = [*self.order(flight.accepted)[num_groups:], *running]
        weights = sorted(group.weights for group in left if self._is_of_run(group))
        return any(made + self.max_age <= step + place // num_groups for place, made in enumerate(weights))

    def is_over(self, flight: InFlight, queue: PromptQueue) -> bool:
        """Whether every prompt of the run is trained or dropped."""
        return not self._of_run(flight) and not queue.left_until(self.episodes)

    def order(self, groups: Iterable[Group]) -> list[Group]:
        """These groups as steps train them: the oldest first, so that what only fills the last step comes behind."""
        return sorted(groups, key=lambda group: group.number)

    def _of_run(self, flight: InFlight) -> list[Group]:
        groups = [*flight.accepted, *(parts.group for parts in flight.running.values())]
        return [group for group in groups if self._is_of_run(group)]

    def _is_of_run(self, group: Group) -> bool:
        return group.prompt.episode <= self.episodes
