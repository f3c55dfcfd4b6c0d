"""How long the rollouts of a prompt will be, from what its earlier ones showed, and the placement that follows.

Most of the spread of log lengths lies between prompts. So a prompt's own history, its groups of earlier episodes and its
unfinished rollouts, says more than any average. Both rules are ours.
"""

import hashlib
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

SHRINKAGE = 0.5  # rollouts that the average weighs as much as: variance within prompts over that between them
DISCOUNT = 0.5  # factor by which a prompt's history fades with every new group of it, since the policy changes
AVERAGE_DISCOUNT = 0.999  # factor by which the average fades with every new group of any prompt
AVERAGE_ROLLOUTS = 8 / (1 - AVERAGE_DISCOUNT)  # that the average weighs as much as after many groups of 8
ERROR_DISCOUNT = 0.995  # the same for the errors of predictions
PRIOR_GROUPS = 16  # that errors are taken to be those of a policy that stands still, before any was seen
DRIFT_RATE = 0.005  # share of a group's error that all lengths are taken to have moved by
LAST_GROUPS = 256  # with a history, whose expected lengths are ranked beside their own
KEY_BYTES = 5
MOST_PROMPTS = 10**6  # whose history is kept, some 300 MB; those that were observed longest ago are forgotten first


class LengthPredictor:
    """Expects the response length of a prompt's rollouts: its own mean log length, shrunk towards the average one.

    Training moves all lengths. Each group of a prompt with a history shows by how much, and a history counts as it stood
    to the others then.

    `explained` is the share of the spread between prompts, in log lengths, that was foreseen of the last prompts: 1 if
    all was, 0 if a prompt's history said no more than the average, or if there was none, below if it misled.
    `explained_again` is that share of prompts that have a history, which a later episode begins with, by the share of the
    episode's groups so far that had one: other data, or a million prompts, may bring new ones. `rank_correlation` is
    Spearman's, of what was expected of the last groups with a history and what came; 0 where either is all the same.
    """

    def __init__(self) -> None:
        self._total, self._weight = 0.0, 0.0  # discounted sum of log lengths less the drift, and number of rollouts
        self._drift = 0.0  # by which log lengths have moved since the first group
        # The same sums by prompt, see `key_of`; that of the last group is the last.
        self._prompts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._spread, self._groups = 0.0, 0.0  # discounted sum of squares of group means less the average; groups
        self._noise = 0.0  # discounted sum of the variances of these means
        # Of groups with a history: sum of squares less what was expected, and groups; all groups. These fade sooner.
        self._error, self._known, self._judged = 0.0, 0.0, 0.0
        self._pairs: deque[list[float]] = deque(maxlen=LAST_GROUPS)  # log lengths, expected and seen
        self.begin_episode()

    def begin_episode(self) -> None:
        """The next groups are of another episode, or of a run that goes on."""
        self._known_now, self._judged_now = 0, 0  # groups with a history, and all

    @property
    def rank_correlation(self) -> float:
        """See above."""
        ranks_2N = np.array([_ranks(logs_N) for logs_N in zip(*self._pairs)])
        return float(np.corrcoef(ranks_2N)[0, 1]) if ranks_2N.size and ranks_2N.std(axis=1).all() else 0.0

    @property
    def explained(self) -> float:
        """See above; 0 before any group of a prompt as it came from the data."""
        if not self._known or not self._spread:
            return 0.0
        share = self._known / self._judged
        return share * (1 - (self._error / self._known) / (self._spread / self._groups))

    @property
    def explained_again(self) -> float:
        """See above; as if the policy stood still before such a group was seen, when both means are off by chance alone."""
        if not self._spread:
            return 0.0
        still = 2 * self._noise / self._groups
        error = (self._error + PRIOR_GROUPS * still) / (self._known + PRIOR_GROUPS)
        share = self._known_now / self._judged_now if self._judged_now else 1.0
        return share * (1 - error / (self._spread / self._groups))

    def observe(
        self, prompt: str, tokens_R: Sequence[float], unfinished_R: Sequence[bool], *, is_fair: bool = True
    ) -> None:
        """Learn from a group.

        Args:
            prompt: its identity.
            tokens_R: response tokens of its rollouts, of an unfinished one as far as it came.
            unfinished_R: whether each did not finish. Such a rollout counts as at least as long as was expected.
            is_fair: whether it was drawn for its place in the data, and not since it was slow.
        """
        key, lengths_R = key_of(prompt), tokens_R
        whole = not any(unfinished_R)
        if not whole:
            expected = self._expect(key)
            lengths_R = [max(tokens, expected) if cut else tokens for tokens, cut in zip(tokens_R, unfinished_R)]
        if min(lengths_R) < 1:
            lengths_R = [max(length, 1.0) for length in lengths_R]
        logs_R = [math.log(length) for length in lengths_R]
        logs = math.fsum(logs_R)
        if whole and is_fair and self._weight:
            self._judge(key, logs_R, logs / len(logs_R))
        logs -= len(lengths_R) * self._drift
        self._total = AVERAGE_DISCOUNT * self._total + logs
        self._weight = AVERAGE_DISCOUNT * self._weight + len(lengths_R)
        self._learn(key, DISCOUNT, logs, len(lengths_R))

    def _judge(self, key: str, logs_R: list[float], mean: float) -> None:
        """How well the mean log length of a group was foreseen, and what it says of the drift."""
        error = mean - self._expected_log(key)
        spread = mean - self._drift - self._total / self._weight
        self._spread = AVERAGE_DISCOUNT * self._spread + spread**2
        self._groups = AVERAGE_DISCOUNT * self._groups + 1
        noise = math.fsum((log - mean) ** 2 for log in logs_R) / max(len(logs_R) * (len(logs_R) - 1), 1)
        self._noise = AVERAGE_DISCOUNT * self._noise + noise
        known = key in self._prompts
        self._error = ERROR_DISCOUNT * self._error + known * error**2
        self._known, self._judged = ERROR_DISCOUNT * self._known + known, ERROR_DISCOUNT * self._judged + 1
        self._known_now, self._judged_now = self._known_now + known, self._judged_now + 1
        if known:
            self._drift += DRIFT_RATE * error
            self._pairs.append([mean - error, mean])

    def _learn(self, key: str, discount: float, logs: float, rollouts: int) -> None:
        total, weight = self._prompts.get(key, (0.0, 0.0))
        self._prompts[key] = discount * total + logs, discount * weight + rollouts
        self._prompts.move_to_end(key)
        self._forget()

    def predict(self, prompt: str) -> float:
        """Expected tokens, as a geometric mean; 1 before anything was observed."""
        return self._expect(key_of(prompt))

    def _expect(self, key: str) -> float:
        return math.exp(self._expected_log(key)) if self._weight else 1.0

    def _expected_log(self, key: str) -> float:
        total, weight = self._prompts.get(key, (0.0, 0.0))
        average = self._total / self._weight
        return self._drift + (total + SHRINKAGE * average) / (weight + SHRINKAGE)

    def knows(self, prompt: str) -> bool:
        """Whether it has a history of this prompt."""
        return key_of(prompt) in self._prompts

    def remember(self, history: Mapping[str, Sequence[float]]) -> None:
        """Take up what an earlier run measured, before any group.

        Args:
            history: log tokens of rollouts, by `key_of` their prompt.
        """
        for key, logs in history.items():
            self._total += math.fsum(logs)
            self._weight += len(logs)
            self._learn(key, DISCOUNT, math.fsum(logs), len(logs))
        # The average fades as if its last groups had made it.
        most = AVERAGE_ROLLOUTS / max(self._weight, AVERAGE_ROLLOUTS)
        self._total, self._weight = self._total * most, self._weight * most

    def _forget(self) -> None:
        """Keep the history of MOST_PROMPTS prompts."""
        while len(self._prompts) > MOST_PROMPTS:
            self._prompts.popitem(last=False)

    def state_dict(self) -> dict:
        """What `load_state_dict` needs to go on; JSON-serialisable, about 60 bytes a prompt."""
        return {
            "average": [self._total, self._weight],
            "drift": self._drift,
            "judged": [self._spread, self._groups, self._error, self._judged, self._known, self._noise],
            "pairs": list(self._pairs),
            "prompts": {key: list(sums) for key, sums in self._prompts.items()},
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`."""
        self._total, self._weight = state["average"]
        self._drift = state.get("drift", 0.0)
        judged = state.get("judged", [0.0] * 6)
        if len(judged) < 6:  # of a version that did not tell prompts without a history apart
            judged = [0.0] * 6
        self._spread, self._groups, self._error, self._judged, self._known, self._noise = judged
        self._pairs = deque(state.get("pairs", ()), maxlen=LAST_GROUPS)
        known = {
            key: sums for key, sums in state["prompts"].items() if len(key) == 2 * KEY_BYTES
        }  # before format 5: 8 bytes
        self._prompts = OrderedDict((key, (total, weight)) for key, (total, weight) in known.items())
        self._forget()


def _ranks(values_N: Sequence[float]) -> np.ndarray:
    """From 1 on; equal values share their mean rank."""
    _, places_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places_N]


@lru_cache(2**14)
def key_of(prompt: str) -> str:
    """Hexadecimal digits that stand for a prompt of this identity, as in traces."""
    return hashlib.blake2b(prompt.encode(errors="replace"), digest_size=KEY_BYTES).hexdigest()


def balance(
    loads_E: Sequence[float], expected_P: Sequence[float], rollouts: int, whole: bool = False
) -> list[tuple[int, tuple[int, ...]]]:
    """Place rollouts on engines: the longest first, each on the engine with the least to do (Graham's LPT rule).

    Args:
        loads_E: what each engine has to do already.
        expected_P: what each rollout of a prompt adds, in the same unit.
        rollouts: of every prompt.
        whole: whether they go to one engine.

    Returns:
        (prompt, the engine of each of its rollouts) of every prompt, in the order of dispatch.
    """
    heap = [(load, engine) for engine, load in enumerate(loads_E)]
    heapq.heapify(heap)
    longest_first = sorted(
        range(len(expected_P)), key=expected_P.__getitem__, reverse=True
    )  # equal ones keep their order
    apart, together = (1, rollouts) if whole else (rollouts, 1)
    return [(prompt, _least_loaded(heap, expected_P[prompt] * together, apart) * together) for prompt in longest_first]


def place_whole(loads_E: Sequence[float], rollouts_G: Sequence[int]) -> list[tuple[int, ...]]:
    """The engine of each rollout of each group: all of a group on the engine with the fewest, as OpenRLHF places them.

    Args:
        loads_E: the rollouts that run on each engine.
        rollouts_G: of each group, in the order of dispatch.
    """
    heap = [(load, engine) for engine, load in enumerate(loads_E)]
    heapq.heapify(heap)
    placed = []
    for rollouts in rollouts_G:
        load, engine = heap[0]
        heapq.heapreplace(heap, (load + rollouts, engine))
        placed.append((engine,) * rollouts)
    return placed


def _least_loaded(heap: list[tuple[float, int]], expected: float, rollouts: int) -> tuple[int, ...]:
    """The engine of each of these rollouts, whose loads are added to the heap."""
    engines = []
    for _ in range(rollouts):
        load, engine = heap[0]
        heapq.heapreplace(heap, (load + expected, engine))
        engines.append(engine)
    return tuple(engines)
