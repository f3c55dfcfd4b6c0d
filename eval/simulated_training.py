"""Simulated training: the steps of openrlhf_sagc/rollout.py on an engine model instead of vLLM.

Controller, dynamic sampler, tail batcher and length predictor are the objects that training has. What runs once a step
has its groups is stopped; its prompts and those of surplus groups come again, in the next step or a long round, and are
then waited for. All of a step is generated before it is trained, on the same GPUs.
"""

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from cluster import Cluster
from engine_model import CostModel, Request
from rollout_lengths import LogNormal, Trace

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.dynamic_sampling import DynamicSampler
from openrlhf_sagc.length_prediction import LengthPredictor
from openrlhf_sagc.tail_batching import Round, TailBatcher


class Prompt(NamedTuple):
    """`of_source` is what the source of lengths drew; `owed` if its group was stopped or discarded before."""

    of_source: int | float
    owed: bool = False


class SimulatedTraining:
    """One run; `step()` simulates one training step after another.

    Args:
        controller, sampler: as in training.
        source: of prompts and response lengths.
        costs: of engines and training.
        gpus: a multiple of `costs.gpus_per_engine`.
        hold: what a step keeps at every group size, "samples" or "prompts".
        samples, prompts: of a step, where they are held.
        prompt_tokens: of every prompt.
        signal: what the controller observes, "tokens" or "seconds" (from admission to end).
        batcher: as in training; None without tail batching.
        predictor: as in training; None where engines are balanced by the number of rollouts.
        seed: of the draws.
    """

    def __init__(
        self,
        controller: StragglerAwareGroupController,
        sampler: DynamicSampler,
        source: Trace | LogNormal,
        costs: CostModel,
        *,
        gpus: int,
        hold: str,
        samples: int,
        prompts: int,
        prompt_tokens: int,
        signal: str = "tokens",
        batcher: TailBatcher | None = None,
        predictor: LengthPredictor | None = None,
        seed: int = 0,
    ):
        self.controller, self.sampler, self.source, self.costs = controller, sampler, source, costs
        self.gpus, self.hold, self.samples, self.prompts = gpus, hold, samples, prompts
        self.prompt_tokens, self.signal = prompt_tokens, signal
        self.batcher, self.predictor = batcher, predictor
        self.cluster = Cluster(costs, gpus // costs.gpus_per_engine)
        self._generator = np.random.default_rng(seed)
        self._returned: deque[Prompt] = deque()
        self._dispatched = 0
        self._owed: set[int] = set()  # groups that are waited for
        self._round = Round(True, 1.0, 0)
        self._running: dict[int, tuple[Prompt, list[float]]] = {}  # prompt, scores of the rollouts dispatched
        self._accepted: dict[int, tuple[Prompt, int]] = {}  # prompt, tokens of the whole group
        self._lengths: list[list[float]] = []  # of the step's groups that came back
        self._stopped: list[list[bool]] = []  # their rollouts
        self._tokens_max = 0
        self._finishes: list[float] = []  # seconds at which its rollouts ended, stopped ones included

    def step(self) -> dict[str, float]:
        """One training step.

        Returns:
            Its figures: `seconds` and their parts `generation_seconds`, `experience_seconds`, `train_seconds`,
            `sync_seconds`; `group_size`, `prompts` and `samples` trained, `dispatched` groups; `idle_fraction`, 1 -
            mean / last of the seconds at which its rollouts end (a stopped one ends with the step);
            `straggler_rate`; `tokens_max`, the longest response that ended; `tokens_mean` of the responses trained;
            `long_round`, 1 or 0; `rollouts` simulated; `preemptions`.

        Raises:
            RuntimeError: the groups that a step may dispatch did not fill it.
            ValueError: a rollout does not fit an engine's KV cache.
        """
        size = self.controller.group_size
        needed = self.prompts if self.hold == "prompts" else self.samples // size
        start, dispatched = self.cluster.now, self._dispatched
        preemptions = self._preemptions()
        self._lengths, self._stopped, self._finishes, self._accepted, self._tokens_max = [], [], [], {}, 0
        self._round = Round(True, 1.0, size)
        if self.batcher:
            self._round = self.batcher.decide(needed, size, waiting=len(self._returned), drained=False)
        self.sampler.begin(needed, size, over_dispatch=self._round.prompt_ratio)
        self._generate()
        self._stop()
        self.controller.observe(self._lengths, self._stopped)
        response_tokens = self._close_step(needed)
        trained_tokens = response_tokens + needed * size * self.prompt_tokens
        self.sampler.end()
        if self.batcher:
            self.batcher.observe(len(self._returned))

        generation, costs = self.cluster.now - start, self.costs
        parts = {
            "generation": costs.generation_base + generation,
            "experience": costs.experience_base + costs.experience_per_token * trained_tokens / self.gpus,
            "train": costs.train_base + costs.train_per_token * trained_tokens / self.gpus,
            "sync": costs.sync,
        }
        return {
            "seconds": sum(parts.values()),
            **{f"{part}_seconds": seconds for part, seconds in parts.items()},
            "group_size": size,
            "prompts": needed,
            "samples": needed * size,
            "dispatched": self._dispatched - dispatched,
            "idle_fraction": 1 - (np.mean(self._finishes) - start) / generation,
            "straggler_rate": self.controller.metrics()["straggler_rate"],
            "tokens_max": self._tokens_max,
            "tokens_mean": response_tokens / (needed * size),
            "long_round": float(self.batcher is not None and self._round.long),
            "rollouts": len(self._finishes),
            "preemptions": self._preemptions() - preemptions,
        }

    def _generate(self) -> None:
        self._dispatch(self.sampler.decide())
        while self._running:
            if self.sampler.full and not self._owed:
                break
            self._take_back(*self.cluster.next_group())
            self._dispatch(self.sampler.decide())

    def _dispatch(self, count: int) -> None:
        if not count:
            return
        under_way = len(self._owed) + sum(prompt.owed for prompt, _ in self._accepted.values())
        waiting = max(self.sampler.num_groups - under_way, 0) if self._round.long else 0
        prompts = [self._returned.popleft() for _ in range(min(count, waiting, len(self._returned)))]
        prompts += map(Prompt, self.source.draw_prompts(count - len(prompts), self._generator))
        tokens_BG, correct_BG = self.source.draw_rollouts(
            [prompt.of_source for prompt in prompts], self._round.rollouts, self._generator
        )
        scores_BG = np.zeros(tokens_BG.shape) if correct_BG is None else correct_BG.astype(float)
        groups, expected = {}, {}
        for prompt, tokens_G, scores_G in zip(prompts, tokens_BG.tolist(), scores_BG.tolist()):
            # An engine decodes a token at least, the end of the text.
            groups[self._dispatched] = [Request(self.prompt_tokens, max(tokens, 1)) for tokens in tokens_G]
            self._running[self._dispatched] = prompt, scores_G
            if self.predictor:
                expected[self._dispatched] = len(tokens_G) * self.predictor.predict(str(prompt.of_source))
            if prompt.owed:
                self._owed.add(self._dispatched)
            self._dispatched += 1
        size = self.sampler.group_size
        keep = size if self._round.rollouts > size else None
        self.cluster.dispatch(groups, keep=keep, expected=expected if self.predictor else None)

    def _take_back(self, group: int, requests: list[Request]) -> None:
        """Measure and judge a group; the prompt of one that was stopped is put back.

        Of more rollouts than a group has, the first to end are the group.
        """
        prompt, scores = self._running.pop(group)
        self._owed.discard(group)
        now, size = self.cluster.now, self.sampler.group_size
        self._finishes += [now if request.ended is None else request.ended for request in requests]
        order = sorted(range(len(requests)), key=lambda i: (requests[i].ended or math.inf, i))[:size]
        members = [requests[i] for i in order]
        stopped_G = [request.ended is None for request in members]
        tokens_G = [request.decoded if request.ended is None else request.tokens for request in members]
        seconds_G = [
            (now if request.ended is None else request.ended) - (now if request.started is None else request.started)
            for request in members
        ]
        self._lengths.append(tokens_G if self.signal == "tokens" else seconds_G)
        self._stopped.append(stopped_G)
        self._tokens_max = max(self._tokens_max, *(request.tokens for request in members if request.ended), 0)
        if self.predictor:
            self.predictor.observe(str(prompt.of_source), tokens_G, stopped_G)
        if any(stopped_G):
            self.sampler.withdraw()
            self._returned.append(prompt._replace(owed=True))
            return
        if self.sampler.observe([scores[i] for i in order]) is None:
            self._accepted[group] = prompt, sum(tokens_G)

    def _stop(self) -> None:
        for group, requests in self.cluster.stop().items():
            self._take_back(group, requests)

    def _close_step(self, needed: int) -> int:
        """Put back the prompts of surplus groups; response tokens of those that are trained, owed ones first."""
        numbers = sorted(self._accepted, key=lambda group: (not self._accepted[group][0].owed, group))
        groups = [self._accepted[group] for group in numbers]
        if len(groups) < needed:
            dropped = ", ".join(
                f"{count} {reason.replace('_', ' ')}" for reason, count in self.sampler.dropped.items()
            )
            raise RuntimeError(
                f"{self.sampler.dispatched} prompts of {self.sampler.group_size} samples gave {len(groups)} of the "
                f"{needed} groups of a step (dropped: {dropped})"
            )
        self._returned.extend(prompt._replace(owed=True) for prompt, _ in groups[needed:])
        return sum(tokens for _, tokens in groups[:needed])

    def _preemptions(self) -> int:
        return sum(engine.preemptions for engine in self.cluster.engines)
