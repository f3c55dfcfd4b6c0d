"""How likely a group of some size is to have a straggler event, learned from the lengths of all groups.

The module controller.py describes the model. The model is ours. It is pure: it has no clock and no randomness.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from openrlhf_sagc.decisions.group_lengths import (
    is_finite,
    lengths_by_size,
    medians,
    ratios_to,
    reaches_ratio,
    unfinished_by_size,
)
from openrlhf_sagc.decisions.stopped_rollouts import StragglerChance

PRIOR_A, PRIOR_B = 1.0, 20.0  # of the hazard's Beta posterior
CLUSTERINGS = np.concatenate([[1e-6], np.geomspace(0.05, 50, 15)])  # grid on which the clustering is fitted


class StragglerModel:
    """One hazard for all group sizes, a clustering of stragglers in some prompts, and events counted by size.

    Args:
        straggler_ratio: a rollout of this multiple of its group's median is a straggler, > 1.
        discount: factor by which a step's evidence fades with every later step, in (0, 1].
    """

    def __init__(self, straggler_ratio: float, discount: float) -> None:
        self.straggler_ratio = straggler_ratio
        self.discount = discount
        self._a, self._b = PRIOR_A, PRIOR_B
        self._seen: dict[int, tuple[float, float]] = {}  # size -> discounted groups, discounted events
        self._chance = StragglerChance(straggler_ratio, discount)

    @property
    def hazard(self) -> float:
        """Posterior mean probability that one rollout of a group is a straggler."""
        return self._a / (self._a + self._b)

    @property
    def clustering(self) -> float:
        """Clustering at which the hazard predicts as many events as were observed, and the one of the prior."""
        seen = sorted(self._seen.items())
        expected: Any = sum(groups * _event_probability(self.hazard, CLUSTERINGS, size) for size, (groups, _) in seen)
        observed = PRIOR_A + sum(events for _, (_, events) in seen)
        if not seen or observed >= expected[0]:
            return float(CLUSTERINGS[0])
        return float(np.interp(observed, expected[::-1], CLUSTERINGS[::-1]))

    def event_probabilities(self, sizes: Sequence[int]) -> list[float]:
        """q_G of every size."""
        hazard, clustering = self.hazard, self.clustering
        return [float(self._can_have_event(size) and _event_probability(hazard, clustering, size)) for size in sizes]

    def least_rate(self, size: int, standard_errors: float) -> float:
        """Lower bound of the share of groups of this size with an event (Wilson's, on discounted counts); 0 if unseen."""
        groups, events = self._seen.get(size, (0.0, 0.0))
        if not groups:
            return 0.0
        z2 = standard_errors**2
        error = standard_errors * math.sqrt(max(events * (1 - events / groups), 0.0) + z2 / 4)
        return (events + z2 / 2 - error) / (groups + z2)

    def observe(self, groups: Iterable[Sequence[float]], running: Iterable[Sequence[bool]] | None) -> float | None:
        """Learn from one step; its share of groups with an event, None if it has no groups.

        Args:
            groups, running: as of `StragglerAwareGroupController.observe`.

        Raises:
            ValueError: they are not lengths, or their shapes differ; the state is unchanged.
        """
        groups = list(groups)
        by_size = lengths_by_size(groups)
        if not by_size:
            return None
        unfinished = unfinished_by_size(groups, running) if running is not None else {}
        events, hits, trials = {}, 0.0, 0
        ratios_N, finished_N = [], []
        for size, lengths in by_size.items():
            stopped = unfinished.get(size, np.zeros(lengths.shape, dtype=bool))
            ratios, chances = self._straggler_chances(lengths, stopped)
            # Exact sums: the order of the groups does not matter.
            events[size] = math.fsum(1 - np.prod(1 - chances, axis=1))
            if not self._can_have_event(size):
                continue  # no trial: it would say that stragglers are rarer than they are
            hits += math.fsum(chances.ravel())
            trials += (size - 1) * len(lengths)
            ratios_N.append(ratios.ravel())
            finished_N.append(~stopped.ravel())
        if ratios_N:
            self._chance.observe(np.concatenate(ratios_N), np.concatenate(finished_N))
        hits = min(hits, float(trials))
        self._a = PRIOR_A + self.discount * (self._a - PRIOR_A) + hits
        self._b = PRIOR_B + self.discount * (self._b - PRIOR_B) + trials - hits
        self._seen = {size: (self.discount * n, self.discount * e) for size, (n, e) in self._seen.items()}
        for size, lengths in by_size.items():
            if not self._can_have_event(size):
                continue
            n, e = self._seen.get(size, (0.0, 0.0))
            self._seen[size] = (n + len(lengths), e + events[size])
        return sum(events.values()) / len(groups)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue identically; JSON-serialisable."""
        return {
            "hazard_a": self._a,
            "hazard_b": self._b,
            "seen": {str(size): list(counts) for size, counts in sorted(self._seen.items())},
            "stopped": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            ValueError: an entry is out of its range; the state is unchanged.
        """
        lowest = {"hazard_a": PRIOR_A, "hazard_b": PRIOR_B}
        refuse_bad_numbers({name: state[name] for name in lowest}, lowest)
        seen = _seen_from(state["seen"])
        self._chance.load_state_dict(state["stopped"])  # the last to raise
        self._a, self._b, self._seen = float(state["hazard_a"]), float(state["hazard_b"]), seen

    def _can_have_event(self, size: int) -> bool:
        """Whether a group of this size can have an event: of two lengths the longer is below twice their median."""
        return size > 2 or self.straggler_ratio < 2

    def _straggler_chances(self, lengths: np.ndarray, stopped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[groups, size] ratios to the median, and chances to be a straggler: 0 or 1 unless the rollout was stopped."""
        median = medians(lengths)
        ratios = ratios_to(median, lengths)
        chances = reaches_ratio(lengths, median, self.straggler_ratio).astype(np.float64)
        if stopped.any() and self._can_have_event(lengths.shape[1]):
            # At most half of a group can lie above its median, which may not be known yet.
            ranks = np.argsort(np.lexsort((stopped, lengths), axis=1), axis=1)
            may_be = stopped & (ranks >= (lengths.shape[1] + 1) // 2)
            chances[may_be] = np.maximum(chances, self._chance.estimate(ratios))[may_be]
        return ratios, chances


def refuse_bad_numbers(numbers: dict[str, Any], lowest: dict[str, float]) -> None:
    """Raise ValueError unless all are finite and at least their `lowest`, which is 0 where it is not given."""
    wrong = {name: number for name, number in numbers.items() if not is_finite(number, lowest.get(name, 0.0))}
    if wrong:
        raise ValueError(f"controller state holds numbers that are not finite or too small: {wrong}")


def _event_probability(hazard: float, clustering: float | np.ndarray, size: int) -> float | np.ndarray:
    """q_G of the gamma frailty model; `clustering` > 0, of any shape, gives the result its shape."""
    return -np.expm1(-np.log1p(clustering * -math.log1p(-hazard) * (size - 1)) / clustering)


def _seen_from(saved: Any) -> dict[int, tuple[float, float]]:
    """Discounted groups and events by size, from a state's "seen"; ValueError if it is anything else."""
    try:
        seen = {int(size): (groups, events) for size, (groups, events) in saved.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"controller state's seen must map sizes to groups and events, got {saved}") from None
    for size, (groups, events) in seen.items():
        if size < 1 or not is_finite(groups, 0.0) or not is_finite(events, 0.0) or events > groups:
            raise ValueError(f"controller state's seen has {groups} groups and {events} events of size {size}")
    return {size: (float(groups), float(events)) for size, (groups, events) in seen.items()}
