"""Straggler-aware group control: the group size (samples per prompt) as an online constrained choice.

The problem is the one of "Faster Synchronous On-Policy RL via Straggler-Aware Group Sizing" (arXiv 2606.02218): take
the largest group size that pays while the long-term rate of straggler events stays under a limit. The paper was known
to us by its abstract only; the event, the hazard model, the utility and the rule below are ours.

- A group of rollout lengths has a *straggler event* when its longest rollout is at least `straggler_ratio` times its
  median: S = 1[max >= ratio * median].
- A rollout is a straggler with *hazard* h, shared by all sizes; h has a Beta posterior that forgets by `discount`
  every step. Stragglers *cluster* in some prompts: with rate r = -log(1 - h) and clustering c, a group of G has an event
  with probability q_G = 1 - (1 + c * r * (G - 1))^(-1 / c), the gamma frailty model of survival analysis. c -> 0 is
  independence, q_G = 1 - (1 - h)^(G - 1). c is the value at which h predicts as many events as were observed.
- A group that was stopped before all its rollouts had finished counts as well, since such groups are the slow ones: its
  stopped rollouts with the chance that, having come so far, they would have become stragglers.
- The *virtual queue* Q <- max(Q + s - limit, 0) bounds the sum of s - limit over the run, s being a step's share of
  groups with an event. The *balance* Z <- max(Z + s - limit, -limit / (1 - discount)) is the same sum with credit for
  steps under the limit, at most what the evidence remembers; Z <= Q.
- The next size maximises V * U(G) - W * q_G with V = `tradeoff` and U(G) = log(G / G_min) / log(G_max / G_min), ties to
  the smaller size (drift plus penalty). The *price* is W = max(Z + max(V * p - V / 2, 0), 0), where V * p is the
  Lagrange multiplier of the limit in the estimated problem: p is the slope, at the limit, of the concave hull of the
  points (q_G, U(G)), 0 where the largest size meets the limit. Z alone would have to grow to V * p, which is an excess
  over the limit; with this place-holder backlog (Huang and Neely, "Delay reduction via Lagrange multipliers in
  stochastic network optimization") it needs V / 2.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from openrlhf_sagc.stopped_rollouts import StragglerChance

PRIOR_A, PRIOR_B = 1.0, 20.0
BACKLOG_LEFT = 0.5  # part of V that the balance itself has to hold: below it, the noise of single steps moves the size
CLUSTERINGS = np.concatenate([[1e-6], np.geomspace(0.05, 50, 15)])  # grid on which c is fitted
TIE = 1e-9  # in units of V: at a balance of V / 2, two sizes have the same value but for rounding
INFEASIBLE_Z = 3.0  # standard errors: `feasible` is asked at every step of a run


class StragglerAwareGroupController:
    """Chooses the group size of the next step from the rollout lengths of the steps before it.

    A state machine without clock, randomness or global state: the same history gives the same sizes.

    Args:
        group_sizes: candidate sizes (samples per prompt), each at least 2; a single one is a fixed size, observed.
        straggler_ratio: a group has a straggler event when max / median of its lengths reaches this ratio, > 1.
        max_straggler_rate: limit of the long-term share of groups with an event, in (0, 1).
        tradeoff: weight V of the utility against the limit, > 0; larger follows the limit more slowly.
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
        if not sizes:
            raise ValueError("group_sizes must hold at least one size, got []")
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
        span = math.log(sizes[-1] / sizes[0]) or 1.0
        self._utilities = [math.log(size / sizes[0]) / span for size in self.group_sizes]
        self._most_credit = self.max_straggler_rate / (1 - self.discount) if self.discount < 1 else math.inf

        self._group_size = int(initial_group_size or self.group_sizes[0])
        self._a, self._b = PRIOR_A, PRIOR_B
        self._seen: dict[int, tuple[float, float]] = {}  # size -> discounted groups, discounted events
        self._chance = StragglerChance(self.straggler_ratio, self.discount)
        self._queue = 0.0
        self._balance = 0.0
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
        """False once groups of the smallest size are seen to break the limit, beyond chance.

        The lower bound of their share of events (Wilson's, on discounted counts) lies above the limit.
        """
        groups, events = self._seen.get(self.group_sizes[0], (0.0, 0.0))
        if not groups:
            return True
        z2 = INFEASIBLE_Z**2
        error = INFEASIBLE_Z * math.sqrt(max(events * (1 - events / groups), 0.0) + z2 / 4)
        return (events + z2 / 2 - error) / (groups + z2) <= self.max_straggler_rate

    def observe(self, groups: Iterable[Sequence[float]], running: Iterable[Sequence[bool]] | None = None) -> None:
        """Learn from one step and choose the size of the next.

        Args:
            groups: for each dispatched group, before any filtering, its rollout lengths (tokens or seconds, >= 0).
                A group counts with the size it has here. A step without groups changes nothing.
            running: for each of these groups, which rollouts were stopped while they ran, at the length given; None
                where all have finished.

        Raises:
            ValueError: a length is negative, NaN or infinite, a group is empty, or `running` has another shape than
                `groups`; the state is unchanged.
        """
        groups = list(groups)
        by_size = _lengths_by_size(groups)
        if not by_size:
            return
        running_by_size = _running_by_size(groups, running) if running is not None else {}
        events, hits, trials = {}, 0.0, 0
        ratios_N, finished_N = [], []
        for size, lengths in by_size.items():
            median = _medians(lengths)
            ratios = _ratios(lengths, median)
            stragglers = _stragglers(lengths, median, self.straggler_ratio).astype(np.float64)
            finished = np.ones(lengths.shape, dtype=bool)
            if size in running_by_size:
                finished = ~running_by_size[size]
                # No more than half of a group can lie above its median, which may not be known yet.
                ranks = np.argsort(np.lexsort((~finished, lengths), axis=1), axis=1)
                may_be = ~finished & (ranks >= (size + 1) // 2)
                stragglers[may_be] = np.maximum(stragglers, self._chance.estimate(ratios))[may_be]
            # Exact sums: the order of the groups does not matter.
            events[size] = math.fsum(1 - np.prod(1 - stragglers, axis=1))
            hits += math.fsum(stragglers.ravel())
            trials += (size - 1) * len(lengths)
            ratios_N.append(ratios.ravel())
            finished_N.append(finished.ravel())

        self._chance.observe(np.concatenate(ratios_N), np.concatenate(finished_N))
        hits = min(hits, float(trials))
        self._a = PRIOR_A + self.discount * (self._a - PRIOR_A) + hits
        self._b = PRIOR_B + self.discount * (self._b - PRIOR_B) + trials - hits
        self._seen = {size: (self.discount * n, self.discount * e) for size, (n, e) in self._seen.items()}
        for size, lengths in by_size.items():
            n, e = self._seen.get(size, (0.0, 0.0))
            self._seen[size] = (n + len(lengths), e + events[size])
        self._rate = sum(events.values()) / len(groups)
        excess = self._rate - self.max_straggler_rate
        self._queue = max(self._queue + excess, 0.0)
        self._balance = max(self._balance + excess, -self._most_credit)
        self._rate_sum += self._rate
        self._steps += 1
        self._group_size = self._best_size()

    def metrics(self) -> dict[str, float]:
        """State after the last `observe`, for the log.

        `group_size` is the size for the next step, `straggler_rate` the last step's share of groups with an event,
        `straggler_rate_mean` its mean over all steps (what the limit bounds), `virtual_queue`, `balance`, `price`,
        `hazard` and `clustering` as in the module's description, `feasible` 0 where even the smallest size is seen to
        break the limit.
        """
        clustering = self._clustering()
        return {
            "group_size": float(self._group_size),
            "straggler_rate": self._rate,
            "straggler_rate_mean": self._rate_sum / max(self._steps, 1),
            "virtual_queue": self._queue,
            "balance": self._balance,
            "price": self._price(self._event_probabilities(clustering)),
            "hazard": self.hazard,
            "clustering": clustering,
            "feasible": float(self.feasible),
        }

    def state_dict(self) -> dict[str, float | int | dict[str, list[float]]]:
        """What `load_state_dict` needs to continue identically; plain numbers, lists and strings, JSON-serialisable."""
        return {
            "group_size": self._group_size,
            "hazard_a": self._a,
            "hazard_b": self._b,
            "seen": {str(size): list(counts) for size, counts in sorted(self._seen.items())},
            "stopped": self._chance.state_dict(),
            "virtual_queue": self._queue,
            "balance": self._balance,
            "steps": self._steps,
            "rate": self._rate,
            "rate_sum": self._rate_sum,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`; the arguments may differ but for the saved size, which must be a candidate.

        Raises:
            ValueError: an entry is missing or out of its range, or the saved size is not a candidate here; the state
                is unchanged.
        """
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(f"controller state lacks {sorted(missing)}")
        if state["group_size"] not in self.group_sizes:
            raise ValueError(f"saved group_size {state['group_size']} is not one of {list(self.group_sizes)}")
        lowest = {"hazard_a": PRIOR_A, "hazard_b": PRIOR_B, "balance": -sys.float_info.max}
        wrong = {
            name: state[name]
            for name in ("hazard_a", "hazard_b", "virtual_queue", "balance", "steps", "rate", "rate_sum")
            if not _is_finite(state[name], lowest.get(name, 0.0))
        }
        if wrong:
            raise ValueError(f"controller state holds numbers that are not finite or too small: {wrong}")
        seen = _seen_from(state["seen"])
        self._chance.load_state_dict(state["stopped"])  # the last to raise
        self._group_size, self._steps = int(state["group_size"]), int(state["steps"])
        self._a, self._b, self._seen = float(state["hazard_a"]), float(state["hazard_b"]), seen
        self._queue, self._balance = float(state["virtual_queue"]), float(state["balance"])
        self._rate, self._rate_sum = float(state["rate"]), float(state["rate_sum"])

    def _best_size(self) -> int:
        probabilities = self._event_probabilities(self._clustering())
        price = self._price(probabilities)
        values = [self.tradeoff * u - price * q for u, q in zip(self._utilities, probabilities)]
        tied = max(values) - TIE * self.tradeoff
        return next(size for size, value in zip(self.group_sizes, values) if value >= tied)

    def _event_probabilities(self, clustering: float) -> list[float]:
        """q_G of every candidate size."""
        return [float(_event_probability(self.hazard, clustering, size)) for size in self.group_sizes]

    def _clustering(self) -> float:
        """Clustering at which the hazard predicts as many events as were observed, plus the one of the prior."""
        seen = sorted(self._seen.items())
        expected: Any = sum(groups * _event_probability(self.hazard, CLUSTERINGS, size) for size, (groups, _) in seen)
        observed = PRIOR_A + sum(events for _, (_, events) in seen)
        if not seen or observed >= expected[0]:
            return float(CLUSTERINGS[0])
        return float(np.interp(observed, expected[::-1], CLUSTERINGS[::-1]))

    def _price(self, probabilities: list[float]) -> float:
        """Weight W of the event probability, from the candidates' q_G."""
        slope = _slope_at_limit(probabilities, self._utilities, self.max_straggler_rate)
        return max(self._balance + self.tradeoff * max(slope - BACKLOG_LEFT, 0.0), 0.0)


def _event_probability(hazard: float, clustering: float | np.ndarray, size: int) -> float | np.ndarray:
    """q_G of the gamma frailty model; `clustering` > 0, of any shape, gives the result its shape."""
    return -np.expm1(-np.log1p(clustering * -math.log1p(-hazard) * (size - 1)) / clustering)


def _slope_at_limit(probabilities: list[float], utilities: list[float], limit: float) -> float:
    """Slope of the concave hull of the points (q_G, U(G)) at q = limit: the utility that a little more limit buys.

    0 where all sizes meet the limit, the steepest slope from the smallest size where none does.
    """
    points = list(zip(probabilities, utilities))
    over = [point for point in points if point[0] > limit]
    if not over:
        return 0.0
    under = [point for point in points if point[0] <= limit]
    if not under:
        q_min, u_min = points[0]
        return max(((u - u_min) / (q - q_min) for q, u in points[1:] if q > q_min), default=0.0)
    # The hull's edge over the limit is the highest there among the lines from a point under to a point over it.
    edges = [(u0, (u1 - u0) / (q1 - q0), q0) for (q0, u0), (q1, u1) in itertools.product(under, over)]
    return max(edges, key=lambda edge: edge[0] + edge[1] * (limit - edge[2]))[1]


def _stragglers(lengths: np.ndarray, median: np.ndarray, ratio: float) -> np.ndarray:
    """Which rollouts reach `ratio` times the median of their group; equal lengths never do. [groups, size] bool."""
    with np.errstate(over="ignore"):
        return (lengths >= ratio * median) & (lengths > median)


def _ratios(lengths: np.ndarray, median: np.ndarray) -> np.ndarray:
    """[groups, size] lengths over the median of their group; 1 where both are 0."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.where(lengths == median, 1.0, lengths / median)


def _medians(lengths: np.ndarray) -> np.ndarray:
    """[groups, 1]; the middle two averaged: the lower one would make a group of two an event at random."""
    ordered, size = np.sort(lengths, axis=1), lengths.shape[1]
    low, high = ordered[:, (size - 1) // 2], ordered[:, size // 2]
    return (low + (high - low) / 2)[:, None]


def _lengths_by_size(groups: list[Sequence[float]]) -> dict[int, np.ndarray]:
    """Group size -> [groups of that size, size] float64; ValueError names the first group with bad lengths."""
    by_size: dict[int, list[Sequence[float]]] = {}
    for group in groups:
        by_size.setdefault(len(group), []).append(group)
    try:
        arrays = {size: np.asarray(rows) for size, rows in by_size.items()}
    except ValueError:
        arrays = {}
    if arrays.keys() == by_size.keys() and all(map(_is_valid, arrays.values())):
        return {size: lengths.astype(np.float64) for size, lengths in arrays.items()}
    for index, group in enumerate(groups):
        _check(group, index)
    return {size: np.array([[float(x) for x in row] for row in rows]) for size, rows in by_size.items()}


def _running_by_size(groups: list[Sequence[float]], running: Iterable[Sequence[bool]]) -> dict[int, np.ndarray]:
    """Group size -> [groups of that size, size] bool, in the order of `_lengths_by_size`."""
    rows = list(running)
    if [len(row) for row in rows] != [len(group) for group in groups]:
        raise ValueError("running must have an entry for every rollout of every group")
    by_size: dict[int, list[Sequence[bool]]] = {}
    for row in rows:
        by_size.setdefault(len(row), []).append(row)
    return {size: np.array(rows, dtype=bool) for size, rows in by_size.items()}


def _is_valid(lengths: np.ndarray) -> bool:
    if lengths.ndim != 2 or lengths.shape[1] == 0 or lengths.dtype.kind not in "biuf":
        return False
    return bool(lengths.min() >= 0 and lengths.max() < math.inf)  # NaN fails both


def _check(group: Sequence[float], index: int) -> None:
    if not len(group):
        raise ValueError(f"group {index} has no rollouts")
    for length in group:
        if not _is_finite(length, 0.0):
            raise ValueError(f"group {index} has a length of {length}; lengths must be finite and not negative")


def _is_finite(value: object, lowest: float) -> bool:
    return isinstance(value, Real) and lowest <= value <= sys.float_info.max  # type: ignore[operator]


def _seen_from(saved: Any) -> dict[int, tuple[float, float]]:
    """Discounted groups and events by size, from a state's "seen"; ValueError if it is anything else."""
    try:
        seen = {int(size): (groups, events) for size, (groups, events) in saved.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"controller state's seen must map sizes to groups and events, got {saved}") from None
    for size, (groups, events) in seen.items():
        if size < 1 or not _is_finite(groups, 0.0) or not _is_finite(events, 0.0) or events > groups:
            raise ValueError(f"controller state's seen has {groups} groups and {events} events of size {size}")
    return {size: (float(groups), float(events)) for size, (groups, events) in seen.items()}
