"""Made-up rollouts for the simulator: lengths and answers of a set of prompts that is gone through in epochs."""

import math
from typing import NamedTuple

import numpy as np
from lib.simulation.lengths import capped_mean

PROMPTS = 1024  # of the set
HARDNESS = 0.5  # correlation of a prompt's length with the logit of its failure rate


class Workload(NamedTuple):
    """Response tokens exp(log median + between * N + within * N), the first normal drawn once a prompt, cut off at `cap`.

    A response is right with the prompt's rate, whose logit is normal around `logit` with standard deviation 2, lower for
    long prompts; in the course of training the logit moves by `drift`. With `slow_share` of the engines each step of
    theirs takes twice as long.
    """

    median: float = 2000.0
    between: float = 0.9
    within: float = 0.4
    cap: int = 16384
    logit: float = 0.0
    drift: float = 0.0
    slow_share: float = 0.0


WORKLOADS = {
    "mid": Workload(),
    "hard": Workload(logit=-4.0),
    "learning": Workload(logit=-3.0, drift=4.0),
    "slow nodes": Workload(slow_share=0.125),
    "short": Workload(median=600, between=0.5, within=0.6, logit=-1.0),
}


class WorkloadSource:
    """A workload as a source of `SimulatedTraining`; every epoch has each prompt once, in a new order.

    `progress` is the share of the training that is over, set by who runs it. With an `order`, a generator of its own, the
    order of the prompts does not depend on what else is drawn.
    """

    has_correct = True

    def __init__(self, workload: Workload, seed: int, order: np.random.Generator | None = None):
        self.workload, self.progress, self._order = workload, 0.0, order
        self._normals_P2 = np.random.default_rng(seed).standard_normal((PROMPTS, 2))
        self._left: list[int] = []

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[int]:
        """`count` prompts, for `draw_rollouts`."""
        drawn: list[int] = []
        while len(drawn) < count:
            self._left = self._left or (self._order or generator).permutation(PROMPTS).tolist()
            missing = count - len(drawn)
            drawn += self._left[:missing]
            self._left = self._left[missing:]
        return drawn

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Response tokens [B, size] of a group for each prompt, and whether they are correct [B, size]."""
        work = self.workload
        logs_BR = work.within * generator.standard_normal((len(prompts_B), size))
        logs_BR += self._mean_logs(prompts_B)[:, None]
        tokens_BR = np.rint(np.exp(np.clip(logs_BR, 0, math.log(work.cap)))).astype(int)
        return tokens_BR, generator.random(tokens_BR.shape) < self.success_rates(prompts_B)[:, None]

    def success_rates(self, prompts_B: list[int]) -> np.ndarray:
        """Chance [B] that a response to each prompt is right, at this progress."""
        work, normals_B2 = self.workload, self._normals_P2[prompts_B]
        skill_B = math.sqrt(1 - HARDNESS**2) * normals_B2[:, 1] - HARDNESS * normals_B2[:, 0]
        return 1 / (1 + np.exp(-(work.logit + work.drift * self.progress + 2 * skill_B)))

    def expected_tokens(self, prompts_B: list[int]) -> np.ndarray:
        """Mean response tokens [B] of each prompt, before they are rounded."""
        return capped_mean(self._mean_logs(prompts_B), self.workload.within, self.workload.cap)

    def _mean_logs(self, prompts_B: list[int]) -> np.ndarray:
        """Mean [B] of the log tokens, before the cap."""
        return math.log(self.workload.median) + self.workload.between * self._normals_P2[prompts_B, 0]
