"""Tail batching (RollPacker, arXiv 2509.21009, section 4.1): short rounds leave slow prompts behind for long rounds.

A short round dispatches more prompts, and more rollouts a prompt, than its step needs. It closes with the first ones that
are done; the others are stopped and their prompts wait. A long round runs waiting prompts to the end, without any
surplus. The bound on the wait, the rounds at an episode's end and the pool are ours.
"""

import math

from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.sorted_steps import fraction
from openrlhf_sagc.decisions.step import Step


class TailBatcher:
    """Says of every step whether it is a short or a long round.

    A round is `decide`, then `observe` once its step is closed. Long rounds are due when as many prompts wait as `pool`
    steps have groups, when prompts have waited for `max_wait` short rounds, or when the episode has no other prompts left. So
    with P groups a step, a prompt behind w others begins its long round within (w // P + 1) * (max_wait + pool) rounds.

    Args:
        prompt_ratio: prompts dispatched in a short round over those needed, at least 1.
        response_ratio: rollouts dispatched for a prompt in a short round over the group size, at least 1. Above 1 a
            group is a selection of short responses.
        pool: long rounds that come together, with like prompts in each of them; 1: prompts come in the order in which they
            wait.
        seed: of the order of such rounds.

    Raises:
        ValueError: an argument is out of its range; the message begins with its name.
    """

    def __init__(
        self, *, prompt_ratio: float = 1.25, response_ratio: float = 1.0, pool: int = 1, seed: int = 0
    ) -> None:
        for name, ratio in (("prompt_ratio", prompt_ratio), ("response_ratio", response_ratio)):
            if not 1 <= ratio < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 1, got {ratio}")
        self.prompt_ratio = float(prompt_ratio)
        self.response_ratio = float(response_ratio)
        surplus = self.prompt_ratio - 1
        # Twice the rounds that the surplus takes to fill the long ones.
        self.max_wait = math.ceil(2 * pool / surplus - 1e-9) if surplus else 1
        self._pool, self._seed = pool, seed
        self._left = 0  # long rounds of the pool that are still to come
        self._long = False
        self._waited = 0  # short rounds in a row that have left prompts waiting
        self._rounds = [0, 0]  # short, long

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """The next round, whose step needs these groups."""
        if self._left and not outlook.is_frame_over:
            self._long = True
            return self._of_pool(group_size, begins=False)
        due = outlook.waiting >= self._pool * num_groups or self._waited >= self.max_wait or outlook.drained
        self._long = outlook.waiting > 0 and due
        if not self._long:
            self._left = 0
            return Round(False, self.prompt_ratio, math.ceil(self.response_ratio * group_size - 1e-9))
        if self._pool == 1:
            return Round(True, 1.0, group_size)
        self._left = self._pool
        return self._of_pool(group_size, begins=True)

    def _of_pool(self, group_size: int, begins: bool) -> Round:
        return Round(True, 1.0, group_size, self._left, fraction(self._seed, sum(self._rounds)), begins)

    def leave(self) -> None:
        """Something else comes next, and draws what the pool has left."""
        self._left = 0

    def observe(self, waiting: int, step: Step | None = None) -> None:
        """The round is over, and `waiting` prompts are left behind."""
        self._rounds[self._long] += 1
        self._left = max(self._left - 1, 0)
        self._waited = self._waited + 1 if waiting and not self._long else 0

    def metrics(self) -> dict[str, float]:
        """`long_round` is 1 for a long last round, `long_share` the share of long rounds so far, `waited` the number of
        short rounds in a row that have left prompts waiting."""
        return {
            "long_round": float(self._long),
            "long_share": self._rounds[True] / max(sum(self._rounds), 1),
            "waited": float(self._waited),
        }

    def state_dict(self) -> dict[str, int | list[int]]:
        """What `load_state_dict` needs to go on, between two rounds; JSON-serialisable."""
        return {"waited": self._waited, "rounds": list(self._rounds), "left": self._left}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`, empty if the run had no tail batching; the ratios may differ."""
        self._waited = state.get("waited", 0)
        self._rounds = list(state.get("rounds", [0, 0]))
        self._left = state.get("left", 0) if self._pool > 1 else 0


class NoTailBatching:
    """Instead of a `TailBatcher` where tail batching is off: no prompt is left behind by two rounds in a row."""

    def decide(self, num_groups: int, group_size: int, outlook: Outlook) -> Round:
        """A long round, always."""
        return Round(True, 1.0, group_size)

    def observe(self, waiting: int, step: Step | None = None) -> None:
        """Nothing is learned."""

    def metrics(self) -> dict[str, float]:
        """Nothing is logged."""
        return {}

    def state_dict(self) -> dict:
        """Nothing is saved."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Nothing is restored."""
