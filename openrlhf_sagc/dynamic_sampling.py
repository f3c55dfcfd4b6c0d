"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): which groups a step keeps, why it drops the others, and how
many to ask for. A pure state machine; sizes of its estimates and the rule of how many to ask for are ours.
"""

import math
from collections import Counter
from collections.abc import Sequence

REASONS = ("all_right", "all_wrong", "constant", "out_of_range", "reward_missing")
PRIOR = 8.0  # groups that the model of the success rates weighs against those seen at a size
MARGIN = 1.0  # standard deviations of the number of accepted groups that are asked for beyond the expected need


def verdict(
    scores_G: Sequence[float | None],
    tolerance: float | None,
    score_range: tuple[float, float] = (0.0, 1.0),
    check_range: bool = False,
) -> str | None:
    """Why a group is dropped (one of REASONS), or None if it is kept.

    Args:
        scores_G: raw scores of the group, before any shaping; None where the reward failed.
        tolerance: a group whose max - min is at most this has no signal; None keeps every group with all its scores.
        score_range: (low, high): equal scores at or below low are all wrong, at or above high all right.
        check_range: drop groups whose mean is not strictly inside score_range as well.
    """
    scores = [score for score in scores_G if score is not None]
    if len(scores) < len(scores_G) or not scores:
        return "reward_missing"
    if tolerance is None:
        return None
    low, high = score_range
    if max(scores) - min(scores) <= tolerance:
        return "all_right" if min(scores) >= high else "all_wrong" if max(scores) <= low else "constant"
    if check_range and not low < math.fsum(scores) / len(scores) < high:
        return "out_of_range"
    return None


class DynamicSampler:
    """Fills one step after another with groups that have a signal.

    A step is `begin`, then `decide` (how many groups to dispatch now), `observe` (a group is back) or `withdraw` (it
    was stopped) in any order, then `end`. The acceptance rate is estimated across group sizes: prompts have a success
    rate p ~ Beta, so a group of G survives with probability 1 - E[p^G] - E[(1-p)^G]; at sizes that were seen the
    measured share counts more.

    Args:
        tolerance, score_range, check_range: see `verdict`.
        max_gen_batches: a step dispatches at most this many times the groups it needs.
        discount: fading of the evidence per step.
    """

    def __init__(
        self,
        *,
        tolerance: float | None = 1e-6,
        score_range: tuple[float, float] = (0.0, 1.0),
        check_range: bool = False,
        max_gen_batches: int = 10,
        discount: float = 0.9,
    ):
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance must be a finite number of at least 0, got {tolerance}")
        low, high = score_range
        if not low < high:
            raise ValueError(f"range must be two numbers, the smaller one first, got {low} {high}")
        if max_gen_batches < 1:
            raise ValueError(f"max_gen_batches must be at least 1, got {max_gen_batches}")
        self.tolerance = tolerance
        self.score_range = (low, high)
        self.check_range = check_range
        self.max_gen_batches = max_gen_batches
        self.discount = discount
        self._seen: dict[int, float] = {}  # discounted number of groups by size
        self._kept: dict[int, float] = {}
        self._groups = 0.0  # discounted sums over groups: of 1, of the share of right samples, of right pairs
        self._right = 0.0
        self._pairs = 0.0
        self.begin(1, 2)

    def begin(
        self, num_groups: int, group_size: int, *, accepted: int = 0, in_flight: int = 0, over_dispatch: float = 1.0
    ) -> None:
        """Open a step that needs `num_groups` of `group_size` each; some may be there or under way already.

        `over_dispatch` times the groups that are expected to fill it are asked for.
        """
        self.num_groups = num_groups
        self.group_size = group_size
        self.accepted = accepted
        self.in_flight = in_flight
        self.over_dispatch = over_dispatch
        self.dispatched = 0
        self.withdrawn = 0
        self.dropped: Counter[str] = Counter()
        self._judged: list[tuple[int, bool]] = []  # size, kept
        self._right_shares: list[tuple[float, float]] = []  # of samples, of pairs of samples

    @property
    def full(self) -> bool:
        """Whether the step has its groups."""
        return self.accepted >= self.num_groups

    @property
    def pass_rate(self) -> float | None:
        """Share of the groups judged in this step that were kept, in %; None if none was judged."""
        return 100 * sum(kept for _, kept in self._judged) / len(self._judged) if self._judged else None

    def decide(self) -> int:
        """How many groups to dispatch now; they count as dispatched."""
        asked = 0
        if not self.full:
            asked = groups_to_ask(self.num_groups - self.accepted, self.acceptance_rate(self.group_size))
            asked = math.ceil(self.over_dispatch * asked - 1e-9)
        allowed = self.max_gen_batches * self.num_groups - self.dispatched
        count = max(min(asked - self.in_flight, allowed), 0)
        self.dispatched += count
        self.in_flight += count
        return count

    def observe(self, scores_G: Sequence[float | None]) -> str | None:
        """A dispatched group is back; why it is dropped, or None if it is kept."""
        reason = verdict(scores_G, self.tolerance, self.score_range, self.check_range)
        self.in_flight -= 1
        size = len(scores_G)
        self._judged.append((size, reason is None))
        if reason != "reward_missing" and size > 1:
            right = sum(score > sum(self.score_range) / 2 for score in scores_G)  # type: ignore[operator]
            self._right_shares.append((right / size, right * (right - 1) / (size * (size - 1))))
        if reason is None:
            self.accepted += 1
        else:
            self.dropped[reason] += 1
        return reason

    def withdraw(self) -> None:
        """A dispatched group was stopped before it could be judged."""
        self.in_flight -= 1
        self.withdrawn += 1

    def end(self) -> None:
        """Close the step: its groups become evidence for the next ones."""
        for table in (self._seen, self._kept):
            for size in table:
                table[size] *= self.discount
        self._groups, self._right, self._pairs = (
            self.discount * total for total in (self._groups, self._right, self._pairs)
        )
        for size, kept in self._judged:
            self._seen[size] = self._seen.get(size, 0.0) + 1
            self._kept[size] = self._kept.get(size, 0.0) + kept
        self._groups += len(self._right_shares)
        self._right += sum(samples for samples, _ in self._right_shares)
        self._pairs += sum(pairs for _, pairs in self._right_shares)

    def acceptance_rate(self, group_size: int) -> float:
        """Estimated share of groups of this size that are kept, from the steps before this one; 1 without a filter."""
        if self.tolerance is None:
            return 1.0
        # A uniform success rate has mean 1/2 and mean square 1/3.
        mean = (self._right + PRIOR / 2) / (self._groups + PRIOR)
        square = (self._pairs + PRIOR / 3) / (self._groups + PRIOR)
        model = survival(mean, square, group_size)
        rate = (self._kept.get(group_size, 0.0) + PRIOR * model) / (self._seen.get(group_size, 0.0) + PRIOR)
        return max(rate, 1e-3)  # rounding can leave 0

    def metrics(self) -> dict[str, float]:
        """Counts of the groups of this step, and the estimated acceptance rate at its size."""
        return {
            "dispatched": float(self.dispatched),
            "gen_batches": self.dispatched / self.num_groups,
            "accepted": float(self.accepted),
            "aborted": float(self.withdrawn),
            "acceptance_rate": self.acceptance_rate(self.group_size),
            **{f"dropped_{reason}": float(self.dropped[reason]) for reason in REASONS},
        }

    def state_dict(self) -> dict:
        """The evidence, between two steps; JSON-serialisable."""
        return {
            "seen": sorted([size, self._seen[size], self._kept[size]] for size in self._seen),
            "groups": self._groups,
            "right": self._right,
            "pairs": self._pairs,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`."""
        self._seen = {size: seen for size, seen, _ in state["seen"]}
        self._kept = {size: kept for size, _, kept in state["seen"]}
        self._groups, self._right, self._pairs = state["groups"], state["right"], state["pairs"]


def groups_to_ask(needed: int, rate: float) -> int:
    """Smallest number of groups of which, each kept with probability `rate`, `needed` are kept with a margin.

    The normal approximation of the binomial: n * rate - MARGIN * sqrt(n * rate * (1 - rate)) >= needed - 1/2.
    """
    spread = MARGIN * math.sqrt(rate * (1 - rate))
    root = (spread + math.sqrt(spread**2 + 4 * rate * (needed - 0.5))) / (2 * rate)
    return max(math.ceil(root**2), needed)


def survival(mean: float, square: float, group_size: int) -> float:
    """1 - E[p^G] - E[(1-p)^G] for p ~ Beta with this mean and mean square."""
    variance = min(max(square - mean**2, 1e-6), mean * (1 - mean) * (1 - 1e-6))
    strength = mean * (1 - mean) / variance - 1
    right, wrong = mean * strength, (1 - mean) * strength
    all_right = math.prod((right + i) / (strength + i) for i in range(group_size))
    all_wrong = math.prod((wrong + i) / (strength + i) for i in range(group_size))
    return 1 - all_right - all_wrong
