"""A discrete-event model of a continuous-batching engine: vLLM's scheduler; cluster.py places groups on such engines.

A step of an engine admits what waits and fits, prefills it, and gives every running rollout a token, those just
prefilled included. It takes

    decode_base + decode_per_request * running + decode_per_kv_token * kv + prefill_per_token * prefilled

seconds, or `launch` if that is longer, where kv is the tokens (of prompts and responses) of all that run. Between two events the
same rollouts run, so kv grows by their number every step, and the seconds of any number of steps have a closed form.

As vLLM does it, rollouts are served in the order of their arrival, at most `max_running` at once. If the KV cache is full,
the rollout that was admitted last is preempted: it waits in front and is prefilled again later, prompt and response.
With drafts (`drafted`) as many steps as give each rollout `tokens_per_iteration` tokens are one that verifies the drafts too,
where that is faster: the closed form has its seconds by the token, and each step takes `drafting` more.
Every rollout of a group has a prompt of its own in the cache and prefills it (OpenRLHF's --vllm.enable_prefix_caching is
off by default). Three things are left out: blocks (the cache is counted in tokens), a limit on the tokens of one step (a
long prefill is one long step), and the way of a result to the driver.
"""

import bisect
import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lib.simulation.costs import CostModel


@dataclass(slots=True, eq=False)
class Request:
    """One rollout on its way through an engine; times are seconds on the cluster's clock."""

    prompt_tokens: int
    tokens: int  # that it decodes before it ends, at least 1
    group: int = 0
    place: int = 0  # in its group
    engine: int = 0
    arrived: float = 0.0
    decoded: int = 0  # tokens so far, as of the last time that it was admitted, preempted or stopped
    finish_step: int = 0  # the engine's step at which it ends; 0 while it waits
    started: float | None = None  # when it was admitted for the first time
    ended: float | None = None


class Engine:
    """One engine, moved from one change of its running rollouts to the next by `run_to_event`.

    `decoded` and `prefilled` count tokens since the start, `preemptions` counts rollouts.
    """

    def __init__(self, costs: CostModel):
        self.costs = costs
        self.clock = 0.0  # seconds at the end of step number `steps`
        self.steps = 0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in the order of admission
        self.kv = 0  # tokens in the cache during the next step
        self.decoded = self.prefilled = self.preemptions = 0
        self._to_prefill = 0  # in the next step
        self._planned = 0  # steps until a rollout ends or is preempted
        self._finishing: list[tuple[int, int, Request]] = []  # heap; entries of preempted rollouts are stale
        self._admissions = itertools.count()

    @property
    def unfinished(self) -> int:
        """Rollouts that run or wait; OpenRLHF balances their number."""
        return len(self.running) + len(self.waiting)

    @property
    def next_event(self) -> float:
        """When the next rollout ends or is preempted, in seconds; inf for an idle engine."""
        return self.clock + self._seconds(self._planned) if self.running else math.inf

    def submit(self, requests: Sequence[Request], now: float) -> None:
        """Queue requests that arrive at `now`, at the latest `next_event`; a step under way is not interrupted."""
        if not self.running:
            self.clock = max(self.clock, now)
        self.waiting.extend(requests)
        steps = self._steps_until(now)
        if steps < self._planned or not self.running:
            self._advance(steps)
            self.schedule()

    def run_to_event(self) -> list[Request]:
        """Decode to the next event; the requests that ended there. `schedule` has to follow."""
        self._advance(self._planned)
        return self._take_ended()

    def run_until(self, now: float) -> list[Request]:
        """Decode to the end of the step under way `now`; the requests that ended with it. `schedule` has to follow."""
        self._advance(self._steps_until(now))
        return self._take_ended()

    def _take_ended(self) -> list[Request]:
        ended = []
        while self._finishing and self._finishing[0][0] <= self.steps:
            finish_step, _, request = heapq.heappop(self._finishing)
            if finish_step == request.finish_step:
                del self.running[request]
                self.kv -= request.prompt_tokens + request.tokens
                request.ended = self.clock
                ended.append(request)
        return ended

    def drop(self, requests: Sequence[Request]) -> None:
        """Stop these requests after the last step; `schedule` has to follow."""
        for request in requests:
            if request in self.running:
                del self.running[request]
                self._preempt(request)
            else:
                self.waiting.remove(request)

    def stop(self, now: float) -> None:
        """Drop everything at `now`, after the step under way."""
        self._advance(self._steps_until(now))
        for request in self.running:
            self._preempt(request)
        self.waiting.clear()
        self.running.clear()
        self._finishing.clear()
        self.kv = self._to_prefill = self._planned = 0

    def _preempt(self, request: Request) -> None:
        request.decoded = request.tokens - (request.finish_step - self.steps)
        request.finish_step = 0
        self.kv -= request.prompt_tokens + request.decoded

    def schedule(self) -> None:
        """Preempt what no longer fits, or else admit what does; then plan up to the next change."""
        costs, steps = self.costs, self.steps
        fits = self.kv <= costs.kv_limit
        while self.kv > costs.kv_limit:
            request, _ = self.running.popitem()
            self._preempt(request)
            self.waiting.appendleft(request)
            self.preemptions += 1
        while fits and self.waiting and len(self.running) < costs.max_running:
            request = self.waiting[0]
            context = request.prompt_tokens + request.decoded
            if self.kv + context > costs.kv_limit:
                break
            self.running[self.waiting.popleft()] = None
            self.kv += context
            self._to_prefill += context
            request.finish_step = steps + request.tokens - request.decoded
            heapq.heappush(self._finishing, (request.finish_step, next(self._admissions), request))
            if request.started is None:
                request.started = self.clock
        while self._finishing and self._finishing[0][0] != self._finishing[0][2].finish_step:
            heapq.heappop(self._finishing)
        if self.running:
            steps_that_fit = (costs.kv_limit - self.kv) // len(self.running) + 1
            self._planned = min(self._finishing[0][0] - steps, steps_that_fit)
        else:
            self._planned = 0

    def _advance(self, steps: int) -> None:
        if not steps:
            return
        self.clock += self._seconds(steps)
        self.steps += steps
        self._planned -= steps
        self.kv += steps * len(self.running)
        self.decoded += steps * len(self.running)
        self.prefilled += self._to_prefill
        self._to_prefill = 0

    def _seconds(self, steps: int) -> float:
        """Seconds of the next `steps` steps, at most the planned ones."""
        if not steps:
            return 0.0
        costs, running = self.costs, len(self.running)
        kv_tokens = steps * self.kv + running * (steps * (steps - 1) // 2)
        base, kv = costs.decode_base + costs.drafting, costs.decode_per_kv_token * kv_tokens
        decoding = steps * (base + costs.decode_per_request * running) + kv
        if costs.drafted:  # only where that pays
            verified = steps * (base + costs.decode_per_request * running * (1 + costs.drafted)) + kv
            decoding = min(decoding, verified / costs.tokens_per_iteration)
        return (
            decoding
            + costs.prefill_per_token * self._to_prefill
            + (self._seconds_of_launches(steps) if costs.launch else 0.0)
        )

    def _seconds_of_launches(self, steps: int) -> float:
        """What the next steps take longer since their kernels' launches do; they get less as the cache grows."""
        costs, running = self.costs, len(self.running)
        first = costs.launch - costs.decode_base - costs.decode_per_request * running
        first -= costs.decode_per_kv_token * self.kv
        less = costs.decode_per_kv_token * running  # with every step
        later = steps - 1 if not less else min(max(math.ceil(first / less) - 1, 0), steps - 1)
        longer = max(first - costs.prefill_per_token * self._to_prefill, 0.0)
        return longer + max(later * first - less * (later * (later + 1) // 2), 0.0)

    def _steps_until(self, now: float) -> int:
        """Fewest steps after which the clock has reached `now`, at most the planned ones."""
        if now <= self.clock or not self._planned:
            return 0
        steps = range(1, self._planned)
        return 1 + bisect.bisect_left(steps, now, key=lambda count: self.clock + self._seconds(count))
