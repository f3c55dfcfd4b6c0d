"""Prompts that come once an episode, whose rollouts are drawn when the prompt is."""

import math
from collections import deque

import numpy as np
from lib.simulation.lengths import LogNormal
from lib.simulation.workloads import HARDNESS


class Epochs:
    """A source of prompts with episodes, and of their lengths; frames end with an episode, as in training.

    What the rollouts of a prompt will be is drawn with its episode, the same whatever policy draws it. A group that is
    rolled out again has others.

    Args:
        lengths: of the prompts, whose own number of prompts is not used.
        prompts: of an episode.
        responses: of a prompt.
        seed: of all draws.
        has_correct: whether responses are right or wrong, long ones less often right.
    """

    def __init__(self, lengths: LogNormal, prompts: int, responses: int, seed: int, has_correct: bool = False):
        self.has_correct = has_correct
        self.size, self._lengths, self._responses, self._seed = prompts, lengths, responses, seed
        normals_P2 = np.random.default_rng([seed, 0]).standard_normal((prompts, 2))
        self._logs_P = math.log(lengths.median) + lengths.between * normals_P2[:, 0]
        skills_P = math.sqrt(1 - HARDNESS**2) * normals_P2[:, 1] - HARDNESS * normals_P2[:, 0]
        self._rates_P = 1 / (1 + np.exp(-2 * skills_P))
        self._again = np.random.default_rng([seed, 1])
        self._order, self._tokens_PR = [], np.empty((0, responses), int)
        self._first: dict[int, deque[np.ndarray]] = {}  # of prompts that were drawn and not rolled out yet

    def begin(self, episode: int) -> None:
        generator = np.random.default_rng([self._seed, 2, episode])
        self._order = generator.permutation(len(self._logs_P)).tolist()
        self._tokens_PR, _ = self._lengths.draw_rollouts(self._logs_P.tolist(), self._responses, generator)

    def resume(self) -> None:
        """Nothing is saved."""

    def take(self, count: int) -> tuple[list[tuple], bool]:
        drawn, self._order = self._order[:count], self._order[count:]
        for prompt in drawn:
            self._first.setdefault(prompt, deque()).append(self._tokens_PR[prompt])
        return [(str(prompt), prompt, None) for prompt in drawn], len(drawn) < count

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """As those of LogNormal, and whether they are correct if that is known."""
        tokens_BR, _ = self._lengths.draw_rollouts(self._logs_P[prompts_B].tolist(), size, self._again)
        for row, prompt in enumerate(prompts_B):
            if self._first.get(prompt):
                tokens_BR[row] = self._first[prompt].popleft()
        if not self.has_correct:
            return tokens_BR, None
        return tokens_BR, self._again.random(tokens_BR.shape) < self._rates_P[prompts_B][:, None]

    def expected_tokens(self, prompts_B: list[int]) -> np.ndarray:
        """As those of LogNormal."""
        return self._lengths.expected_tokens(self._logs_P[prompts_B].tolist())

    def longest(self, prompt: str) -> float:
        """Of the group that a prompt will have, by its identity."""
        return float(self._first[int(prompt.partition("\0")[0])][0].max())
