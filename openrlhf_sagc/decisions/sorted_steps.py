"""Sorted steps: a frame of steps whose prompts are sorted by their expected lengths, so that none waits for a far longer one.

A frame takes the prompts of the next steps from the data. Which of them share a step follows from earlier rollouts alone,
so every response is sampled to its end under current weights, and none is chosen by its outcome. The rule is ours.
"""

import math
from hashlib import blake2b

from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.step import Step

STEPS = 10  # of a frame, about
MOST_STEPS = 15  # of a frame that an episode's end makes longer
MOST_RATIO = 1.06  # at which no more prompts are stopped in a frame than a step has groups


class SortedSteps:
    """Cuts frames into steps of like prompts, which come in an order drawn by the seed, so that lengths show no ramp.

    A round is `decide`, then `observe` once its step is closed. At a ratio of 1 nothing is stopped, and each prompt is
    trained in the frame that takes it from the data. A surplus stops the slowest of a step, whose prompts finish in the
    next frame. Without dynamic sampling a prompt is so trained within 2 * MOST_STEPS steps.

    Args:
        prompt_ratio: prompts dispatched over those needed, from 1 to MOST_RATIO, rounded down to whole prompts.
        seed: of the order of steps.

    Raises:
        ValueError: the ratio is out of its range; the message begins with its name.
    """

    def __init__(self, *, prompt_ratio: float = 1.0, seed: int = 0) -> None:
        if not 1 <= prompt_ratio <= MOST_RATIO:
            raise ValueError(f"prompt_ratio must be from 1 to {MOST_RATIO} where steps are sorted, got {prompt_ratio}")
        self.prompt_ratio = float(prompt_ratio)
        self._seed = seed
        self._left = 0  # steps that the frame may still have
        self._rounds = 0

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """The next round, whose step needs these groups."""
        begins = self.is_over(outlook)
        self._left = steps_of_frame(outlook.left) if begins else self._left
        place = fraction(self._seed, self._rounds)
        ratio = int(self.prompt_ratio * num_groups + 1e-9) / num_groups
        return Round(False, ratio, group_size, self._left, place, begins)

    def is_over(self, outlook: Outlook) -> bool:
        """Whether the next round begins a frame."""
        return not self._left or outlook.is_frame_over

    def observe(self, waiting: int, step: Step | None = None) -> None:
        """The round is over."""
        self._left -= 1
        self._rounds += 1

    def metrics(self) -> dict[str, float]:
        """`sorted_round` is 1."""
        return {"sorted_round": 1.0}

    def state_dict(self) -> dict[str, int]:
        """What `load_state_dict` needs to go on, between two rounds; JSON-serialisable."""
        return {"frame_left": self._left, "sorted_rounds": self._rounds}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`, or begin a frame after that of another batcher."""
        self._left, self._rounds = state.get("frame_left", 0), state.get("sorted_rounds", 0)


def steps_of_frame(left: float) -> int:
    """Of the next frame, where an episode has so many steps left: its frames are about as long, and none of them is short.

    A short frame has few lengths to choose from, so its steps would wait longer.
    """
    if math.isinf(left):
        return STEPS
    return max(math.ceil(left / max(round(left / STEPS), 1) - 1e-9), 1)


def fraction(seed: int, number: int) -> float:
    """In [0, 1), always the same for a seed and a number, and else as if drawn."""
    digest = blake2b(f"{seed} {number}".encode(), digest_size=6).digest()
    return math.ldexp(int.from_bytes(digest, "big"), -48)
