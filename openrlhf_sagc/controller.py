"""Straggler-aware group control: the group size (samples per prompt) as an online constrained choice.

The problem is the one of "Faster Synchronous On-Policy RL via Straggler-Aware Group Sizing" (arXiv 2606.02218): take
the largest group size that pays while the long-term rate of straggler events stays under a limit. The paper was known
to us by its abstract only; the event, the hazard model, the utility and the rule below are ours.

- A group of rollout lengths has a *straggler event* when its longest rollout is at least `straggler_ratio` times its
  median: S = 1[max >= ratio * median].
- A rollout is a straggler with *hazard* h, shared by all sizes, so a group of G has an event with probability
  q_G = 1 - (1 - h)^(G - 1). h has a Beta posterior that forgets by `discount` every step.
- The *virtual queue* Q holds the excess of the observed rate over the limit: Q <- max(Q + s - limit, 0).
- The next size maximises tradeoff * U(G) - Q * q_G with U(G) = log(G / G_min) / log(G_max / G_min), ties to the
  smaller size (drift plus penalty).
"""

import math
from collections.abc import Sequence
from numbers import Real

PRIOR_A, PRIOR_B = 1.0, 20.0


class StragglerAwareGroupController:
    """Chooses the group size of the next step from the rollout lengths of the steps before it.

    A state machine without clock, randomness or global state: the same history gives the same sizes.

    Args:
        group_sizes: candidate sizes (samples per prompt), at least two different ones, each at least 2.
        straggler_ratio: a group has a straggler event when max / median of its lengths reaches this ratio, > 1.
        max_straggler_rate: limit of the long-term share of groups with an event, in (0, 1).
        tradeoff: weight V of the utility against the queue, > 0; larger follows the limit more slowly.
        discount: factor by which a step's evidence on the hazard fades with every later step, in (0, 1].
        initial_group_size: size of the first step, one of `group_sizes`; the smallest if None.

    Raises:
        ValueError: an argument is out of its range; the message names it.
    """

    def __init__(
        self,
        group_sizes: Sequence[int] = (4, 8, 16, 32),
        straggler_ratio: float = 2.5,
        max_straggler_rate: float = 0.2,
        tradeoff: float = 2.0,
        discount: float = 0.98,
        initial_group_size: int | None = None,
    ) -> None:
        sizes = sorted(set(group_sizes))
        if len(sizes) < 2:
            raise ValueError(f"group_sizes must hold at least two different sizes, got {list(group_sizes)}")
        if any(not float(size).is_integer() or size < 2 for size in sizes):
            raise ValueError(f"group_sizes must be whole numbers of at least 2, got {list(group_sizes)}")
        if not 1 < straggler_ratio < math.inf:
            raise ValueError(f"straggler_ratio must be a finite number above 1, got {straggler_ratio}")
        if not 0 < max_straggler_rate < 1:
            raise ValueError(f"max_straggler_rate must lie between 0 and 1, got {max_straggler_rate}")
        if not 0 < tradeoff < math.inf:
            raise ValueError(f"tradeoff must be a finite number above 0, got {tradeoff}")
        if not 0 < discount <= 1:
            raise ValueError(f"discount must lie in (0, 1], got {discount}")
        if initial_group_size is not None and initial_group_size not in sizes:
            raise ValueError(f"initial_group_size must be one of {sizes}, got {initial_group_size}")

        self.group_sizes = tuple(int(size) for size in sizes)
        self.straggler_ratio = float(straggler_ratio)
        self.max_straggler_rate = float(max_straggler_rate)
        self.tradeoff = float(tradeoff)
        self.discount = float(discount)

        self._group_size = int(initial_group_size or self.group_sizes[0])
        self._a, self._b = PRIOR_A, PRIOR_B
        self._queue = 0.0
        self._steps = 0
        self._rate = 0.0
        self._rate_sum = 0.0

    @property
    def group_size(self) -> int:
        """Samples per prompt for the next step."""
        return self._group_size

    @property
    def hazard(self) -> float:
        """Posterior mean probability that one rollout of a group is a straggler."""
        return self._a / (self._a + self._b)

    @property
    def feasible(self) -> bool:
        """Whether the smallest size is expected to stay within the limit."""
        return self._event_probability(self.group_sizes[0]) <= self.max_straggler_rate

    def observe(self, groups: Sequence[Sequence[float]]) -> None:
        """Learn from one step and choose the size of the next.

        Args:
            groups: for each dispatched group, before any filtering, its rollout lengths (tokens or seconds, >= 0).
                A group counts with the size it has here. A step without groups changes nothing.

        Raises:
            ValueError: a length is negative, NaN or infinite, or a group is empty; the state is unchanged.
        """
        groups = [_checked(group, index) for index, group in enumerate(groups)]
        if not groups:
            return
        stragglers = [self._stragglers(lengths) for lengths in groups]
        trials = sum(len(lengths) - 1 for lengths in groups)

        self._a = PRIOR_A + self.discount * (self._a - PRIOR_A) + sum(stragglers)
        self._b = PRIOR_B + self.discount * (self._b - PRIOR_B) + trials - sum(stragglers)
        self._rate = sum(count > 0 for count in stragglers) / len(groups)
        self._queue = max(self._queue + self._rate - self.max_straggler_rate, 0.0)
        self._rate_sum += self._rate
        self._steps += 1
        self._group_size = max(self.group_sizes, key=lambda size: (self._value(size), -size))

    def metrics(self) -> dict[str, float]:
        """State after the last `observe`, for the log.

        `group_size` is the size for the next step, `straggler_rate` the last step's share of groups with an event,
        `straggler_rate_mean` its mean over all steps (what the limit bounds), `feasible` 0 where even the smallest
        size is expected to break the limit.
        """
        return {
            "group_size": float(self._group_size),
            "straggler_rate": self._rate,
            "straggler_rate_mean": self._rate_sum / max(self._steps, 1),
            "virtual_queue": self._queue,
            "hazard": self.hazard,
            "feasible": float(self.feasible),
        }

    def state_dict(self) -> dict[str, float | int]:
        """What `load_state_dict` needs to continue identically; plain numbers, JSON-serialisable."""
        return {
            "group_size": self._group_size,
            "hazard_a": self._a,
            "hazard_b": self._b,
            "virtual_queue": self._queue,
            "steps": self._steps,
            "rate": self._rate,
            "rate_sum": self._rate_sum,
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Continue from `state_dict()` of a controller with the same candidate sizes.

        Raises:
            ValueError: an entry is missing or no finite number, or the saved size is not a candidate here; the state
                is unchanged.
        """
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(f"controller state lacks {sorted(missing)}")
        if state["group_size"] not in self.group_sizes:
            raise ValueError(f"saved group_size {state['group_size']} is not one of {list(self.group_sizes)}")
        wrong = {name: value for name, value in state.items() if not _is_length(value)}
        if wrong:
            raise ValueError(f"controller state must be finite numbers of at least 0, got {wrong}")
        self._group_size, self._steps = int(state["group_size"]), int(state["steps"])
        self._a, self._b = float(state["hazard_a"]), float(state["hazard_b"])
        self._queue = float(state["virtual_queue"])
        self._rate, self._rate_sum = float(state["rate"]), float(state["rate_sum"])

    def _event_probability(self, size: int) -> float:
        return 1 - (1 - self.hazard) ** (size - 1)

    def _value(self, size: int) -> float:
        smallest, largest = self.group_sizes[0], self.group_sizes[-1]
        utility = math.log(size / smallest) / math.log(largest / smallest)
        return self.tradeoff * utility - self._queue * self._event_probability(size)

    def _stragglers(self, lengths: list[float]) -> int:
        """Number of rollouts that reach `straggler_ratio` times the group's median; equal lengths have none."""
        median = _median(lengths)
        return sum(length >= self.straggler_ratio * median and length > median for length in lengths)


def _median(lengths: list[float]) -> float:
    """Median with the middle two averaged: the lower one would make a group of two an event at random."""
    ordered, middle = sorted(lengths), len(lengths) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _checked(group: Sequence[float], index: int) -> list[float]:
    if not len(group):
        raise ValueError(f"group {index} has no rollouts")
    for length in group:
        if not _is_length(length):
            raise ValueError(f"group {index} has a length of {length}; lengths must be finite and not negative")
    return [float(length) for length in group]


def _is_length(value: object) -> bool:
    return isinstance(value, Real) and 0 <= value < math.inf
