"""Engines that share a clock, with OpenRLHF's placement of groups or by expected lengths."""

import heapq
import math
from collections import deque

from engine_model import CostModel, Engine, Request

from openrlhf_sagc.length_prediction import balance


class Cluster:
    """Engines that share a clock, and groups of rollouts placed on them whole."""

    def __init__(self, costs: CostModel, engines: int):
        self.costs = costs
        self.now = 0.0
        self.engines = [Engine(costs) for _ in range(engines)]
        self._due = [math.inf] * engines
        self._events: list[tuple[float, int]] = []  # heap; stale where it is not what is due
        self._groups: dict[int, list[Request]] = {}  # not taken back yet, in the order of dispatch
        self._unfinished: dict[int, int] = {}  # rollouts that each of them waits for
        self._expected: dict[int, tuple[int, float]] = {}  # engine and expected tokens of groups that run
        self._whole: deque[int] = deque()  # groups that have ended and can be taken back

    def dispatch(
        self,
        groups: dict[int, list[Request]],
        *,
        keep: int | None = None,
        expected: dict[int, float] | None = None,
    ) -> list[int]:
        """Send groups, by number, to the engines with the fewest unfinished rollouts; the engine of each.

        OpenRLHF's `_dispatch_prompts_to_vllm`: loads are counted once, then every group adds its size.

        Args:
            groups: the requests of each.
            keep: rollouts of a group that end the others; None for all of them.
            expected: tokens that each group is expected to decode, by which engines are balanced instead, the longest
                group first.

        Raises:
            ValueError: a rollout does not fit an engine's KV cache.
        """
        lengths = (request.prompt_tokens + request.tokens for requests in groups.values() for request in requests)
        longest = max(lengths, default=0)
        if longest > self.costs.kv_limit:
            raise ValueError(
                f"kv_limit {self.costs.kv_limit} is less than a rollout of {longest} tokens, prompt included"
            )
        placement = self._least_unfinished(groups) if expected is None else self._least_expected(groups, expected)
        arrivals: dict[int, list[Request]] = {}
        for group, index in placement.items():
            requests = groups[group]
            arrivals.setdefault(index, []).extend(requests)
            self._groups[group] = requests
            self._unfinished[group] = keep or len(requests)
            for request in requests:
                request.group = group
        for index, requests in arrivals.items():
            self.engines[index].submit(requests, self.now)
            self._plan(index)
        return [placement[group] for group in groups]

    def _least_unfinished(self, groups: dict[int, list[Request]]) -> dict[int, int]:
        """Group -> engine, in the order of dispatch."""
        loads = [(engine.unfinished, index) for index, engine in enumerate(self.engines)]
        heapq.heapify(loads)
        placement = {}
        for group, requests in groups.items():
            load, index = loads[0]
            heapq.heapreplace(loads, (load + len(requests), index))
            placement[group] = index
        return placement

    def _least_expected(self, groups: dict[int, list[Request]], expected: dict[int, float]) -> dict[int, int]:
        """As the scheduler of training: longest first, what runs counting as at its dispatch."""
        loads = [0.0] * len(self.engines)
        for index, tokens in self._expected.values():
            loads[index] += tokens
        numbers = list(groups)
        assigned = balance(loads, [expected[group] for group in numbers])
        placement = {numbers[position]: index for position, index in assigned}
        self._expected |= {group: (index, expected[group]) for group, index in placement.items()}
        return placement

    def next_group(self) -> tuple[int, list[Request]]:
        """Move the clock to the end of the next group and take it back."""
        while not self._whole:
            time, index = heapq.heappop(self._events)
            if time != self._due[index]:
                continue
            self.now = time
            engine = self.engines[index]
            for request in engine.run_to_event():
                self._unfinished[request.group] -= 1
                if not self._unfinished[request.group]:
                    self._whole.append(request.group)
            for group in self._whole:
                engine.drop([request for request in self._groups[group] if request.ended is None])
            engine.schedule()
            self._plan(index)
        group = self._whole.popleft()
        del self._unfinished[group]
        self._expected.pop(group, None)
        return group, self._groups.pop(group)

    def stop(self) -> dict[int, list[Request]]:
        """Stop what runs; all groups not taken back yet, in the order of dispatch, some of which may be whole."""
        for engine in self.engines:
            engine.stop(self.now)
        left, self._groups = self._groups, {}
        self._unfinished.clear()
        self._expected.clear()
        self._whole.clear()
        self._events.clear()
        self._due = [math.inf] * len(self.engines)
        return left

    def _plan(self, index: int) -> None:
        due = self.engines[index].next_event
        if due != self._due[index]:
            self._due[index] = due
            if due < math.inf:
                heapq.heappush(self._events, (due, index))
