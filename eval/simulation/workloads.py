"""Made-up rollouts for the simulator: lengths and answers of a set of prompts that is gone through in epochs."""

import math
from typing import NamedTuple

import numpy as np

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


class WorkloadSource:
    """A workload as a source of `SimulatedTraining`; every epoch has each prompt once, in a new order.

    `progress` is the share of the training that is over, set by who runs it.
    """

    has_correct = True

    def __init__(self, workload: Workload, seed: int):
        self.workload, self.progress = workload, 0.0
        self._normals_P2 = np.random.default_rng(seed).standard_normal((PROMPTS, 2))
        self._left: list[int] = []

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[int]:
        """`count` prompts, for `draw_rollouts`."""
        drawn: list[int] = []
        while len(drawn) < count:
            self._left = self._left or generator.permutation(PROMPTS).tolist()
            missing = count - len(drawn)
            drawn += self._left[:missing]
            self._left = self._left[missing:]
        return drawn

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Response tokens [B, size] of a group for each prompt, and whether they are correct [B, size]."""
        work, normals_B2 = self.workload, self._normals_P2[prompts_B]
        logs_BG = work.within * generator.standard_normal((len(prompts_B), size))
        logs_BG += math.log(work.median) + work.between * normals_B2[:, :1]
        tokens_BG = np.rint(np.exp(np.clip(logs_BG, 0, math.log(work.cap)))).astype(int)
        skill_B1 = math.sqrt(1 - HARDNESS**2) * normals_B2[:, 1:] - HARDNESS * normals_B2[:, :1]
        logits_B1 = work.logit + work.drift * self.progress + 2 * skill_B1
        return tokens_BG, generator.random(tokens_BG.shape) < 1 / (1 + np.exp(-logits_B1))
