"""Engines that share a clock, and the rollouts that the scheduler has placed on them."""

import heapq
import math
from collections.abc import Collection, Iterable, Mapping

from lib.simulation.costs import CostModel
from lib.simulation.engine import Engine, Request


class Cluster:
    """Engines that share a clock.

    Args:
        costs: of the engines.
        engines: how many.
    """

    def __init__(self, costs: CostModel, engines: int):
        self.costs = costs
        self.now = 0.0
        self.engines = [Engine(costs) for _ in range(engines)]
        self._due = [math.inf] * engines
        self._events: list[tuple[float, int]] = []  # heap; stale where it is not what is due
        self._ended: list[Request] = []  # with the last drop
        self._changed: set[int] = set()  # engines that have to schedule before the clock goes on

    def dispatch(self, requests: Collection[Request]) -> None:
        """Send requests to their engines.

        Raises:
            ValueError: a rollout does not fit an engine's KV cache.
        """
        longest = max((request.prompt_tokens + request.tokens for request in requests), default=0)
        if longest > self.costs.kv_limit:
            raise ValueError(
                f"kv_limit {self.costs.kv_limit} is less than a rollout of {longest} tokens, prompt included"
            )
        self._schedule()
        arrivals: dict[int, list[Request]] = {}
        for request in requests:
            request.arrived = self.now
            arrivals.setdefault(request.engine, []).append(request)
        for index, arrived in arrivals.items():
            self.engines[index].submit(arrived, self.now)
            self._plan(index)

    @property
    def preemptions(self) -> int:
        """Rollouts preempted so far."""
        return sum(engine.preemptions for engine in self.engines)

    def drop(self, groups: Mapping[int, Iterable[int]]) -> None:
        """Stop the rollouts of these groups `now`, by number: the engines on which they run.

        An engine under way ends its step first, and other rollouts may end with it.
        """
        numbers_on: dict[int, set[int]] = {}
        for number, engines in groups.items():
            for index in engines:
                numbers_on.setdefault(index, set()).add(number)
        for index, numbers in numbers_on.items():
            engine = self.engines[index]
            self._ended += engine.run_until(self.now)
            left = [request for request in (*engine.running, *engine.waiting) if request.group in numbers]
            engine.drop(left)
            self._ended += left
            self._changed.add(index)

    def ended(self) -> list[Request]:
        """What was dropped, or ended with that; if there is none, move the clock until a rollout ends."""
        ended, self._ended = self._ended, []
        while not ended:
            self._schedule()
            time, index = heapq.heappop(self._events)
            if time == self._due[index]:
                self.now = time
                ended = self.engines[index].run_to_event()
                self._changed.add(index)
        return ended

    def run_until(self, time: float) -> None:
        """Move the clock on to this time; what ends before it comes with the next `ended`."""
        self._schedule()
        while self._events and self._events[0][0] <= time:
            due, index = heapq.heappop(self._events)
            if due == self._due[index]:
                self.now = due
                self._ended += self.engines[index].run_to_event()
                self._changed.add(index)
            self._schedule()
        self.now = max(self.now, time)

    def stop(self) -> list[Request]:
        """Stop what runs; all of it and what was dropped, in the order of groups and places."""
        left, self._ended = self._ended, []
        left += [request for engine in self.engines for request in (*engine.running, *engine.waiting)]
        for engine in self.engines:
            engine.stop(self.now)
        self._events.clear()
        self._changed.clear()
        self._due = [math.inf] * len(self.engines)
        return sorted(left, key=lambda request: (request.group, request.place))

    def _schedule(self) -> None:
        for index in sorted(self._changed):
            self.engines[index].schedule()
            self._plan(index)
        self._changed.clear()

    def _plan(self, index: int) -> None:
        due = self.engines[index].next_event
        if due != self._due[index]:
            self._due[index] = due
            if due < math.inf:
                heapq.heappush(self._events, (due, index))
