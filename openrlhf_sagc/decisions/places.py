"""The places of a step: which accepted groups it trains for sure, while others still run."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from openrlhf_sagc.decisions.records import Group


class Places:
    """Gives the places of one step to accepted groups.

    Places are for prompts that must finish, in the order of their dispatch, as long as such prompts run: the first to come
    back are the short ones. The others have what these leave. So what has a place may be trained while groups still run, and
    none of it is ever surplus. All is counted as it changes, so that a group costs the same however many are in flight.

    Args:
        num_groups: places.
        running, accepted: groups when the step begins.
    """

    def __init__(self, num_groups: int, running: Iterable[Group], accepted: Iterable[Group]) -> None:
        self.taken: set[int] = set()  # numbers of the groups that have a place
        self._num_groups = num_groups
        self._fresh_taken = 0  # by groups whose prompts need not finish
        self._owed: list[Group] = []  # accepted without a place, prompts that must finish: a heap by number
        self._fresh: deque[Group] = deque()  # the others, in order of acceptance
        self._owed_accepted = 0
        self._owed_running: list[int] = []  # numbers, in order
        for group in running:
            self.run(group)
        for group in accepted:
            self.accept(group)

    @property
    def must_finish_running(self) -> int:
        """Number of groups that run and whose prompts must finish."""
        return len(self._owed_running)

    def run(self, group: Group) -> None:
        """The group runs."""
        if group.prompt.must_finish:
            insort(self._owed_running, group.number)  # nearly always behind the last

    def end(self, group: Group) -> None:
        """The group runs no more."""
        if group.prompt.must_finish:
            del self._owed_running[bisect_left(self._owed_running, group.number)]

    def accept(self, group: Group) -> None:
        """The group may have a place."""
        if group.prompt.must_finish:
            heappush(self._owed, group)
            self._owed_accepted += 1
        else:
            self._fresh.append(group)

    def take(self) -> list[Group]:
        """Accepted groups that have a place now, whatever else comes back; each is given once."""
        given: list[Group] = []
        owed, fresh = self._owed, self._fresh
        while owed and len(self.taken) + bisect_left(self._owed_running, owed[0].number) < self._num_groups:
            given.append(heappop(owed))
            self.taken.add(given[-1].number)
        while fresh and self._fresh_taken + self.must_finish_running + self._owed_accepted < self._num_groups:
            given.append(fresh.popleft())
            self.taken.add(given[-1].number)
            self._fresh_taken += 1
        return given
