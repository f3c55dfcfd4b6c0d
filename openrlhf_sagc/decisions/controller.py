"""Straggler-aware group control: the group size (samples per prompt) as an online constrained choice.

The problem is that of "Faster Synchronous On-Policy RL via Straggler-Aware Group Sizing" (arXiv 2606.02218): take the
largest group size that pays, while the long-term rate of straggler events stays under a limit. We know the paper by its
abstract only. The event, the hazard model, the utility and the rule below are ours; docs/controller.md derives them.

- A group of rollout lengths has a *straggler event* when its longest rollout is at least `straggler_ratio` times its
  median: S = 1[max >= ratio * median].
- A rollout is a straggler with *hazard* h, the same for all sizes. h has a Beta posterior whose evidence fades by
  `discount` every step. Stragglers *cluster* in some prompts: with rate r = -log(1 - h) and clustering c, a group of G
  has an event with probability q_G = 1 - (1 + c * r * (G - 1))^(-1 / c), the gamma frailty model of survival analysis.
  c -> 0 is independence, q_G = 1 - (1 - h)^(G - 1). c is the value at which h predicts as many events as were observed.
- A group that was stopped before all its rollouts had finished counts as well, since such groups are the slow ones. Its
  unfinished rollouts count with the chance that, having come so far, they would have become stragglers.
- The *virtual queue* Q <- max(Q + s - limit, 0) bounds the sum of s - limit over the run, where s is a step's share of
  groups with an event. The *balance* Z <- max(Z + s - limit, -limit / (1 - discount)) is the same sum with credit for
  steps under the limit; the credit is at most the limit times the steps that the evidence remembers. Z <= Q.
- The next size maximises V * U(G) - W * q_G with V = `tradeoff`; ties go to the smaller size (drift plus penalty). The
  utility U is that of the `objective`: `size` is log(G / G_min) / log(G_max / G_min), `throughput` follows the effective
  samples a second that are expected at each size (objectives.py). The *price* is W = max(Z + max(V * p - V / 2, 0), 0), where V * p is the
  Lagrange multiplier of the limit in the estimated problem: p is the slope, at the limit, of the concave hull of the
  points (q_G, U(G)), 0 if it falls there or the largest size meets the limit. Z alone would have to grow to V * p, which is an excess over
  the limit. With this place-holder backlog (Huang and Neely, "Delay reduction via Lagrange multipliers in stochastic
  network optimization") it only has to grow to V / 2.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from openrlhf_sagc.decisions.group_lengths import is_finite
from openrlhf_sagc.decisions.objectives import OBJECTIVES, Forecast, size_utilities, throughput_utilities
from openrlhf_sagc.decisions.straggler_model import StragglerModel, refuse_bad_numbers

BACKLOG_LEFT = 0.5  # part of V that the balance itself has to hold: below it, the noise of single steps moves the size
TIE = 1e-9  # in units of V: at a balance of V / 2, two sizes have the same value but for rounding
INFEASIBLE_Z = 3.0  # standard errors of `feasible`; many, since it is asked at every step of a run


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
        objective: "size", as large as the limit allows, or "throughput", the most effective samples a second within the
            limit, for which `observe` needs forecasts.

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
        objective: str = "size",
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
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective}")

        self.group_sizes = tuple(int(size) for size in sizes)
        self.straggler_ratio = float(straggler_ratio)
        self.max_straggler_rate = float(max_straggler_rate)
        self.tradeoff = float(tradeoff)
        self.discount = float(discount)
        self.objective = objective
        self._most_credit = self.max_straggler_rate / (1 - self.discount) if self.discount < 1 else math.inf

        self._group_size = int(initial_group_size or self.group_sizes[0])
        self._model = StragglerModel(self.straggler_ratio, self.discount)
        self._queue = 0.0
        self._balance = 0.0
        self._steps = 0
        self._rate = 0.0
        self._rate_sum = 0.0
        self._price = 0.0

    @property
    def group_size(self) -> int:
        """Samples per prompt for the next step."""
        return self._group_size

    def observe(
        self,
        groups: Iterable[Sequence[float]],
        running: Iterable[Sequence[bool]] | None = None,
        forecasts: Sequence[Forecast] | None = None,
        frame_ends: bool = True,
    ) -> None:
        """Learn from one step and choose the size of the next.

        Args:
            groups: for each dispatched group, before any filtering, its rollout lengths (tokens or seconds, >= 0).
                A group counts with the size it has here. A step without groups changes nothing.
            running: for each of these groups, which rollouts did not finish: they were stopped, or their agent failed,
                at the length given. None where all have finished.
            forecasts: what the next step is expected to give and to take at each of `group_sizes`. They are for the
                objective throughput, which is that of size without them.
            frame_ends: whether the next step may have any size. Within a frame, such as the short rounds of tail batching
                and their long round, the size stays. It may fall, though, while the balance is above V / 2.

        Raises:
            ValueError: a length is negative, NaN or infinite, a group is empty, `running` has another shape than
                `groups`, or a forecast is no number above 0; the state is unchanged.
        """
        self._check(forecasts)
        rate = self._model.observe(groups, running)
        if rate is None:
            return
        excess = rate - self.max_straggler_rate
        self._queue = max(self._queue + excess, 0.0)
        self._balance = max(self._balance + excess, -self._most_credit)
        self._rate = rate
        self._rate_sum += rate
        self._steps += 1
        size, self._price = self._best_size(forecasts)
        if frame_ends or (size < self._group_size and self._balance > BACKLOG_LEFT * self.tradeoff):
            self._group_size = size

    def metrics(self) -> dict[str, float]:
        """State after the last `observe`, for the log.

        `group_size` is the size for the next step, `straggler_rate` the last step's share of groups with an event,
        `straggler_rate_mean` its mean over all steps (what the limit bounds), `virtual_queue`, `balance`, `price`,
        `hazard` and `clustering` as in the module's description, `feasible` 0 where even the smallest size is seen to
        break the limit, beyond chance.
        """
        feasible = self._model.least_rate(self.group_sizes[0], INFEASIBLE_Z) <= self.max_straggler_rate
        return {
            "group_size": float(self._group_size),
            "straggler_rate": self._rate,
            "straggler_rate_mean": self._rate_sum / max(self._steps, 1),
            "virtual_queue": self._queue,
            "balance": self._balance,
            "price": self._price,
            "hazard": self._model.hazard,
            "clustering": self._model.clustering,
            "feasible": float(feasible),
        }

    def state_dict(self) -> dict[str, float | int | dict[str, list[float]]]:
        """What `load_state_dict` needs to continue identically; plain numbers, lists and strings, JSON-serialisable."""
        return {
            "group_size": self._group_size,
            **self._model.state_dict(),
            "virtual_queue": self._queue,
            "balance": self._balance,
            "steps": self._steps,
            "rate": self._rate,
            "rate_sum": self._rate_sum,
            "price": self._price,
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
        names = ("virtual_queue", "balance", "steps", "rate", "rate_sum", "price")
        refuse_bad_numbers({name: state[name] for name in names}, {"balance": -sys.float_info.max})
        self._model.load_state_dict(state)  # the last to raise
        self._group_size, self._steps = int(state["group_size"]), int(state["steps"])
        self._queue, self._balance = float(state["virtual_queue"]), float(state["balance"])
        self._rate, self._rate_sum = float(state["rate"]), float(state["rate_sum"])
        self._price = float(state["price"])

    def _best_size(self, forecasts: Sequence[Forecast] | None) -> tuple[int, float]:
        """The next size, and the weight W of the event probability with which it was chosen."""
        probabilities = self._model.event_probabilities(self.group_sizes)
        if forecasts is None or self.objective == "size":
            utilities = size_utilities(self.group_sizes)
        else:
            utilities = throughput_utilities(forecasts, probabilities, self.max_straggler_rate)
        slope = _slope_at_limit(probabilities, utilities, self.max_straggler_rate)
        price = max(self._balance + self.tradeoff * max(slope - BACKLOG_LEFT, 0.0), 0.0)
        values = [self.tradeoff * u - price * q for u, q in zip(utilities, probabilities)]
        tied = max(values) - TIE * self.tradeoff
        return next(size for size, value in zip(self.group_sizes, values) if value >= tied), price

    def _check(self, forecasts: Sequence[Forecast] | None) -> None:
        if forecasts is not None and len(forecasts) != len(self.group_sizes):
            raise ValueError(f"forecasts must be one for each of {list(self.group_sizes)}, got {len(forecasts)}")
        for size, forecast in zip(self.group_sizes, forecasts or ()):
            if not all(is_finite(number, 0.0) for number in forecast) or not min(forecast[:2]):
                raise ValueError(f"the forecast at size {size} must have finite numbers above 0, got {forecast}")


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
