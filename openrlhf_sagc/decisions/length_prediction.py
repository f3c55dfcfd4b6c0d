"""How long the rollouts of a prompt will be, from what its earlier ones showed, and the placement that follows. Ours.

Most of the spread of log lengths lies between prompts. So a prompt's own history, its groups of earlier episodes and its
stopped rollouts, says more than any average.
"""

import hashlib
import heapq
import math
from collections.abc import Sequence

SHRINKAGE = 0.5  # rollouts that the average weighs as much as: variance within prompts over that between them
DISCOUNT = 0.5  # factor by which a prompt's history fades with every new group of it, since the policy changes
AVERAGE_DISCOUNT = 0.99  # factor by which the average fades with every new group of any prompt


class LengthPredictor:
    """Expects the response length of a prompt's rollouts: its own mean log length, shrunk towards the average one."""

    def __init__(self) -> None:
        self._total, self._weight = 0.0, 0.0  # discounted sum of log lengths, and number of rollouts
        self._prompts: dict[str, tuple[float, float]] = {}  # the same by prompt, see `key_of`

    def observe(self, prompt: str, tokens_G: Sequence[float], stopped_G: Sequence[bool]) -> None:
        """Learn from a group.

        Args:
            prompt: its text.
            tokens_G: response tokens of its rollouts, of a stopped one up to then.
            stopped_G: whether each was stopped. Such a rollout counts as at least as long as was expected.
        """
        expected = self.predict(prompt)
        lengths = [max(tokens, expected) if stopped else tokens for tokens, stopped in zip(tokens_G, stopped_G)]
        logs = [math.log(max(length, 1.0)) for length in lengths]
        self._total = AVERAGE_DISCOUNT * self._total + math.fsum(logs)
        self._weight = AVERAGE_DISCOUNT * self._weight + len(logs)
        total, weight = self._prompts.get(key_of(prompt), (0.0, 0.0))
        self._prompts[key_of(prompt)] = DISCOUNT * total + math.fsum(logs), DISCOUNT * weight + len(logs)

    def predict(self, prompt: str) -> float:
        """Expected tokens, as a geometric mean; 1 before anything was observed."""
        if not self._weight:
            return 1.0
        total, weight = self._prompts.get(key_of(prompt), (0.0, 0.0))
        average = self._total / self._weight
        return math.exp((total + SHRINKAGE * average) / (weight + SHRINKAGE))

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on; JSON-serialisable, about 60 bytes a prompt."""
        return {"average": [self._total, self._weight], "prompts": {key: list(p) for key, p in self._prompts.items()}}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`."""
        self._total, self._weight = state["average"]
        self._prompts = {key: tuple(prompt) for key, prompt in state["prompts"].items()}


def key_of(prompt: str) -> str:
    """16 hexadecimal digits that stand for a prompt."""
    return hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest()


def balance(loads_E: Sequence[float], expected_P: Sequence[float]) -> list[tuple[int, int]]:
    """Place prompts on engines: the longest first, each on the engine with the least to do (Graham's LPT rule).

    Args:
        loads_E: what each engine has to do already.
        expected_P: what each prompt adds, in the same unit.

    Returns:
        (prompt, engine) of every prompt, in the order of dispatch.
    """
    heap = [(load, engine) for engine, load in enumerate(loads_E)]
    heapq.heapify(heap)
    assigned = []
    for prompt in sorted(range(len(expected_P)), key=lambda prompt: (-expected_P[prompt], prompt)):
        load, engine = heapq.heappop(heap)
        assigned.append((prompt, engine))
        heapq.heappush(heap, (load + expected_P[prompt], engine))
    return assigned
