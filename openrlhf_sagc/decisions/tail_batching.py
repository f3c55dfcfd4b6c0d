"""Tail batching (RollPacker, arXiv 2509.21009, section 4.1): short rounds leave slow prompts behind for long rounds.

A short round dispatches more prompts, and more rollouts a prompt, than its step needs. It closes with the first ones that
are done; the others are stopped and their prompts wait. A long round runs waiting prompts to the end, without any
surplus. The bound on the wait and the rounds at an episode's end are ours.
"""

import math

from openrlhf_sagc.decisions.records import Round


class TailBatcher:
    """Says of every step whether it is a short or a long round.

    A round is `decide`, then `observe` once its step is closed. A long round is due when as many prompts wait as a step
    has groups, when prompts have waited for `max_wait` short rounds, or when the episode has no other prompts left. So
    with P groups a step, a prompt behind w others begins its long round within (w // P + 1) * (max_wait + 1) rounds.

    Args:
        prompt_ratio: prompts dispatched in a short round over those needed, at least 1.
        response_ratio: rollouts dispatched for a prompt in a short round over the group size, at least 1. Above 1 a
            group is a selection of short responses.

    Raises:
        ValueError: an argument is out of its range; the message begins with its name.
    """

    def __init__(self, *, prompt_ratio: float = 1.25, response_ratio: float = 1.0):
        for name, ratio in (("prompt_ratio", prompt_ratio), ("response_ratio", response_ratio)):
            if not 1 <= ratio < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 1, got {ratio}")
        self.prompt_ratio = float(prompt_ratio)
        self.response_ratio = float(response_ratio)
        surplus = self.prompt_ratio - 1
        # Twice the rounds that the surplus takes to fill a step.
        self.max_wait = math.ceil(2 / surplus - 1e-9) if surplus else 1
        self._long = False
        self._waited = 0  # short rounds in a row that have left prompts waiting
        self._rounds = [0, 0]  # short, long

    def decide(self, num_groups: int, group_size: int, *, waiting: int, drained: bool) -> Round:
        """The next round.

        Args:
            num_groups, group_size: what its step needs.
            waiting: prompts that were left behind.
            drained: whether the episode has no other prompts.
        """
        due = waiting >= num_groups or self._waited >= self.max_wait or drained
        self._long = waiting > 0 and due
        if self._long:
            return Round(True, 1.0, group_size)
        return Round(False, self.prompt_ratio, math.ceil(self.response_ratio * group_size - 1e-9))

    def observe(self, waiting: int) -> None:
        """The round is over, and `waiting` prompts are left behind."""
        self._rounds[self._long] += 1
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
        return {"waited": self._waited, "rounds": list(self._rounds)}

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`, empty if the run had no tail batching; the ratios may differ."""
        self._waited = state.get("waited", 0)
        self._rounds = list(state.get("rounds", [0, 0]))


class NoTailBatching:
    """Instead of a `TailBatcher` where tail batching is off: no prompt is left behind by two rounds in a row."""

    def decide(self, num_groups: int, group_size: int, *, waiting: int, drained: bool) -> Round:
        """A long round, always."""
        return Round(True, 1.0, group_size)

    def observe(self, waiting: int) -> None:
        """Nothing is learned."""

    def metrics(self) -> dict[str, float]:
        """Nothing is logged."""
        return {}

    def state_dict(self) -> dict:
        """Nothing is saved."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Nothing is restored."""
