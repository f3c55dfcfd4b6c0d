"""Engines that share a clock, and the rollouts that the scheduler has placed on them."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from lib.simulation.costs import CostModel
from lib.simulation.engine import Engine, Request


class Cluster:
    """Engines that share a clock, and the rollouts that are placed on them.

    Args:
        costs: of the engines.
        engines: how many.
        note_back: called with the number of a group and the places of rollouts of it that have ended.
    """

    def __init__(
        self,
        costs: CostModel,
        engines: int,
        note_back: Callable[[int, Iterable[int]], None] = lambda group, places: None,
    ):
        self.costs = costs
        self._note_back = note_back
        self.now = 0.0
        self.engines = [Engine(costs) for _ in range(engines)]
        self._due = [math.inf] * engines
        self._events: list[tuple[float, int]] = []  # heap; stale where it is not what is due
        self._groups: dict[int, list[Request]] = {}  # not taken back yet, in the order of dispatch
        self._unfinished: dict[int, int] = {}  # rollouts that each of them waits for
        self._whole: deque[int] = deque()  # groups that have ended and can be taken back

    def dispatch(
        self,
        groups: dict[int, list[Request]],
        engines: Iterable[Sequence[int]],
        *,
        keep_first: int | None = None,
    ) -> None:
        """Send groups to engines.

        Args:
            groups: the requests of each, by number.
            engines: of each rollout of each group.
            keep_first: rollouts of a group that end the others; None for all of them.

        Raises:
            ValueError: a rollout does not fit an engine's KV cache.
        """
        longest = max((x.prompt_tokens + x.tokens for requests in groups.values() for x in requests), default=0)
        if longest > self.costs.kv_limit:
            raise ValueError(
                f"kv_limit {self.costs.kv_limit} is less than a rollout of {longest} tokens, prompt included"
            )
        arrivals: dict[int, list[Request]] = {}
        for (group, requests), places in zip(groups.items(), engines):
            self._groups[group] = requests
            self._unfinished[group] = keep_first or len(requests)
            for place, (request, index) in enumerate(zip(requests, places)):
                request.group, request.place, request.engine, request.arrived = group, place, index, self.now
                arrivals.setdefault(index, []).append(request)
        for index, requests in arrivals.items():
            self.engines[index].submit(requests, self.now)
            self._plan(index)

    @property
    def preemptions(self) -> int:
        """Rollouts preempted so far."""
        return sum(engine.preemptions for engine in self.engines)

    def next_group(self) -> tuple[int, list[Request]]:
        """Move the clock to the end of the next group and take it back."""
        while not self._whole:
            time, index = heapq.heappop(self._events)
            if time == self._due[index]:
                self.now = time
                self._take_ended(index)
        group = self._whole.popleft()
        del self._unfinished[group]
        return group, self._groups.pop(group)

    def stop(self) -> dict[int, list[Request]]:
        """Stop what runs; all groups not taken back yet, in the order of dispatch, some of which may be whole."""
        for engine in self.engines:
            engine.stop(self.now)
        left, self._groups = self._groups, {}
        self._unfinished.clear()
        self._whole.clear()
        self._events.clear()
        self._due = [math.inf] * len(self.engines)
        return left

    def _take_ended(self, index: int) -> None:
        """Rollouts of this engine end `now`. Those of groups that are whole by that are dropped on all engines."""
        whole, changed = self._count(self.engines[index].run_to_event()), {index}
        while whole:
            group, *whole = whole
            self._whole.append(group)
            for other in {request.engine for request in self._groups[group] if request.ended is None}:
                whole += self._count(self.engines[other].run_until(self.now))
                left = [
                    request for request in self._groups[group] if request.engine == other and request.ended is None
                ]
                self.engines[other].drop(left)
                changed.add(other)
        for index in sorted(changed):
            self.engines[index].schedule()
            self._plan(index)

    def _count(self, ended: list[Request]) -> list[int]:
        """These requests have ended; the groups that are whole by that."""
        whole = []
        for request in ended:
            self._note_back(request.group, (request.place,))
            self._unfinished[request.group] -= 1
            if not self._unfinished[request.group]:
                whole.append(request.group)
        return whole

    def _plan(self, index: int) -> None:
        due = self.engines[index].next_event
        if due != self._due[index]:
            self._due[index] = due
            if due < math.inf:
                heapq.heappush(self._events, (due, index))
