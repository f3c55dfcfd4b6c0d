"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): which groups a step keeps, and why it drops the others.

The sampler also says how many groups to dispatch. That rule and the sizes of its estimates are ours.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from openrlhf_sagc.decisions.records import FEWEST, Candidate

EQUAL = ("all_right", "all_wrong", "constant")  # reasons for which a group has no advantage
REASONS = (*EQUAL, "out_of_range", "reward_missing")
PRIOR_GROUPS = 8.0  # groups of a size that the model of the success rates weighs as much as
NOISE = 8 * 2.0**-23  # of the largest score: 8 ulps of a float32, which its arithmetic leaves between equal ones
DEVIATIONS = 2.0  # standard errors by which verdicts must fall short of a rate before it is doubted
MARGIN = 1.0  # standard deviations of the number of kept groups by which a dispatch exceeds the expected need


class Verdict(NamedTuple):
    """What became of a group.

    `group_size` counts its members. `reason` is why it is dropped (one of REASONS, or a filter's own), None if it is kept. Of the members that
    have a reward, `right` is the share of right ones, and `right_pairs` that of pairs which are both right; both are None
    where that is not known.
    """

    group_size: int
    reason: str | None
    right: float | None = None
    right_pairs: float | None = None


class GroupFilter(Protocol):
    """Says of a group why it is dropped, or None if it is kept; its state is plain data."""

    def admit(self, group: Candidate) -> str | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DynamicSampler:
    """Judges groups by their scores, and learns from the verdicts which share of the groups of a size is kept.

    A pure state machine: `judge` a group at a time, `observe` the verdicts of a step once it is over.

    The share is estimated across group sizes. Prompts have a success rate p ~ Beta, so a group of G is kept with
    probability 1 - E[p^G] - E[(1-p)^G]. At sizes that were seen the measured share counts more.

    Args:
        tolerance: a group whose scores differ by at most this, or by NOISE of the largest, has no signal; None keeps every
            group with all its scores.
        score_range: (low, high): equal scores at or below low are all wrong, at or above high all right.
        check_range: drop groups whose mean score is not strictly inside score_range as well.
        max_gen_batches: a step dispatches at most this many times the groups it needs.
        discount: factor by which a step's verdicts fade with every later step.
        filter: judges groups in the place of tolerance and range, which decide no more.

    Raises:
        ValueError: an argument is out of its range; the message names it.
    """

    def __init__(
        self,
        *,
        tolerance: float | None = 1e-6,
        score_range: tuple[float, float] = (0.0, 1.0),
        check_range: bool = False,
        max_gen_batches: int = 10,
        discount: float = 0.9,
        filter: GroupFilter | None = None,
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
        self.filter = filter
        self._seen: dict[int, float] = {}  # discounted number of groups, by size
        self._kept: dict[int, float] = {}  # those of them that were kept
        self._groups = 0.0  # discounted number of groups whose right samples are known, of any size
        self._right = 0.0  # sum of their shares of right samples
        self._right_pairs = 0.0  # sum of their shares of right pairs

    def judge(self, scores_R: Sequence[float | None], candidate: Callable[[], Candidate] | None = None) -> Verdict:
        """The verdict on a group with these raw scores, before any shaping; None stands for a reward that failed.

        A group with such is judged by its other scores, if these are FEWEST at least. `candidate` makes what a filter sees.
        """
        scores, size = [score for score in scores_R if score is not None], len(scores_R)
        if not scores or len(scores) < min(size, FEWEST):
            return Verdict(size, "reward_missing")
        reason = self.filter.admit(candidate()) if self.filter and candidate else self._reason_to_drop(scores)
        count = len(scores)
        if count < 2:
            return Verdict(size, reason)
        middle = sum(self.score_range) / 2
        right = sum([score > middle for score in scores])
        return Verdict(size, reason, right / count, right * (right - 1) / (count * (count - 1)))

    def observe(self, verdicts: Iterable[Verdict]) -> None:
        """Learn from all verdicts of one step."""
        verdicts = list(verdicts)
        for table in (self._seen, self._kept):
            for size in table:
                table[size] *= self.discount
        for size, reason, *_ in verdicts:
            self._seen[size] = self._seen.get(size, 0.0) + 1
            self._kept[size] = self._kept.get(size, 0.0) + (reason is None)
        known: list[Any] = [verdict for verdict in verdicts if verdict.right is not None]
        self._groups = self.discount * self._groups + len(known)
        self._right = self.discount * self._right + sum(verdict.right for verdict in known)
        self._right_pairs = self.discount * self._right_pairs + sum(verdict.right_pairs for verdict in known)

    def acceptance_rate(self, group_size: int) -> float:
        """Estimated share of groups of this size that are kept; 1 without a tolerance."""
        if self.tolerance is None:
            return 1.0
        # A success rate that is uniform has mean 1/2 and mean square 1/3.
        mean = (self._right + PRIOR_GROUPS / 2) / (self._groups + PRIOR_GROUPS)
        square = (self._right_pairs + PRIOR_GROUPS / 3) / (self._groups + PRIOR_GROUPS)
        model = survival(mean, square, group_size)
        kept, seen = self._kept.get(group_size, 0.0), self._seen.get(group_size, 0.0)
        return max((kept + PRIOR_GROUPS * model) / (seen + PRIOR_GROUPS), 1e-3)  # rounding can leave 0

    def groups_known(self, group_size: int) -> float:
        """How many judged groups the acceptance rate of this size counts as."""
        return PRIOR_GROUPS + self._seen.get(group_size, 0.0)

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on, between two steps; JSON-serialisable."""
        return {
            "seen": sorted([size, self._seen[size], self._kept[size]] for size in self._seen),
            "groups": self._groups,
            "right": self._right,
            "pairs": self._right_pairs,
            **({"filter": self.filter.state_dict()} if self.filter else {}),
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`."""
        self._seen = {size: seen for size, seen, _ in state["seen"]}
        self._kept = {size: kept for size, _, kept in state["seen"]}
        self._groups, self._right, self._right_pairs = state["groups"], state["right"], state["pairs"]
        if self.filter and "filter" in state:
            self.filter.load_state_dict(state["filter"])

    def _reason_to_drop(self, scores: Sequence[float]) -> str | None:
        if self.tolerance is None:
            return None
        low, high = self.score_range
        noise = NOISE * max(max(scores), -min(scores))
        if max(scores) - min(scores) <= max(self.tolerance, noise):
            return "all_right" if min(scores) >= high else "all_wrong" if max(scores) <= low else "constant"
        if self.check_range and not low < math.fsum(scores) / len(scores) < high:
            return "out_of_range"
        return None


def groups_to_ask(needed: int, rate: float) -> int:
    """The fewest groups to dispatch so that `needed` of them are kept, with a margin.

    Each group is kept with probability `rate`. The number of kept groups is taken as normal, so this is the least n with
    n * rate - MARGIN * sqrt(n * rate * (1 - rate)) >= needed - 1/2.
    """
    spread = MARGIN * math.sqrt(rate * (1 - rate))
    root = (spread + math.sqrt(spread**2 + 4 * rate * (needed - 0.5))) / (2 * rate)
    return max(math.ceil(root**2), needed)


def doubted(rate: float, groups: float, judged: int, kept: int) -> float:
    """An acceptance rate that counts as so many judged groups, once others were judged and kept.

    It is never above the rate, and falls no further than to the upper end of what the verdicts allow. So chance alone
    dispatches nothing more, and a step that expected too much asks for the rest in a few refills instead of one by one.
    """
    weight = groups + judged
    mean = (groups * rate + kept) / weight
    error = math.sqrt(max(mean * (1 - mean), 0.0) / weight)  # rounding can leave a mean above 1
    return min(rate, mean + DEVIATIONS * error)


def survival(mean: float, square: float, group_size: int) -> float:
    """1 - E[p^G] - E[(1-p)^G] for p ~ Beta with this mean and mean square."""
    variance = min(max(square - mean**2, 1e-6), mean * (1 - mean) * (1 - 1e-6))
    strength = mean * (1 - mean) / variance - 1
    right, wrong = mean * strength, (1 - mean) * strength
    all_right = math.prod((right + i) / (strength + i) for i in range(group_size))
    all_wrong = math.prod((wrong + i) / (strength + i) for i in range(group_size))
    return 1 - all_right - all_wrong
