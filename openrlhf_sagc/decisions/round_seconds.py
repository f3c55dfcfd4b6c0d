"""What a plain step, a sorted step, and a short or long round would take on average, from steps of any kind.

Steps of prompts that were seen are drawn, and decoded at the speed that was seen. The seconds are rough; what matters is
which of them are fewer. Dynamic sampling lets a step wait once more where it may fall short of groups that are kept.
"""

import math
from collections import Counter
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from openrlhf_sagc.decisions.dynamic_sampling import groups_to_ask
from openrlhf_sagc.decisions.engine_speed import EngineSpeed, Ran, Speed
from openrlhf_sagc.decisions.seen_groups import Draws, Seen, SeenGroups
from openrlhf_sagc.decisions.sorted_steps import STEPS
from openrlhf_sagc.decisions.step import Step

RATIO, POOL = 1.5, 4  # of the rounds
SHORT_ROUNDS = 4  # that are drawn
GROUPS, RESIDUALS, NOISE, CHANCES = 2, 3, 5, 7  # roots of the fractions by which each is drawn
NORMALS = np.array([NormalDist().inv_cdf((place + 0.5) / 1024) for place in range(1024)])
FORESEEN = 0.2  # share of the spread between prompts that history must explain before it sorts anything


class Seconds(NamedTuple):
    """Of generation, of a step of each kind."""

    plain: float
    sort: float
    stop: float


class RoundSeconds:
    """Learns from every step, and forecasts the next ones.

    Args:
        num_engines: that share a step's rollouts.
    """

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._engines, self._groups = EngineSpeed(num_engines), SeenGroups()

    def observe(self, step: Step) -> None:
        """The step is closed."""
        ran = [
            Ran(x.tokens, group.began, group.began + min(x.queue_seconds, x.generated), group.began + x.generated)
            for group, rollouts in step.ran
            for x in rollouts
        ]
        kept = {group.number for group in (*step.trained, *step.unused)}
        seen = []
        for group, rollouts in step.ran:
            whole = not any(rollout.stopped for rollout in rollouts)  # one that failed has ended
            tokens = tuple(rollout.tokens for rollout in rollouts)
            seen.append((group.prompt.identity, Seen(tokens, whole, group.number in kept if whole else None)))
        self._engines.observe(ran)
        self._groups.observe(seen, step.num_groups, step.round.long)

    @property
    def is_guess(self) -> bool:
        """Whether too little is known: nothing of the engines, or of the longest responses, see `SeenGroups`."""
        return self._engines.speed is None or self._groups.is_guess

    @property
    def queues(self) -> bool:
        """Whether rollouts were seen to wait for their engines."""
        return self._engines.speed is not None and self._engines.speed.queues

    def forecast(self, num_groups: int, size: int, rate: float, explained: float) -> Seconds | None:
        """Of steps that train so many groups of this size; None before any rollout. The same for the same history.

        Args:
            rate: share of groups that dynamic sampling keeps.
            explained: share of the spread between prompts that is foreseen, see `LengthPredictor`.
        """
        speed, draws = self._engines.speed, self._groups.draws(rate)
        if speed is None or draws is None:
            return None
        steps = _Steps(self._num_engines, speed, draws, num_groups, size, rate, explained)
        plain, sort = steps.frame()
        return Seconds(plain, sort if explained > FORESEEN else plain, steps.rounds())

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on; JSON-serialisable."""
        return {"engines": self._engines.state_dict(), "groups": self._groups.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self._engines.load_state_dict(state["engines"])
        self._groups.load_state_dict(state["groups"])


class _Steps:
    """Draws steps and says what they take."""

    def __init__(
        self, num_engines: int, speed: Speed, draws: Draws, num_groups: int, size: int, rate: float, explained: float
    ) -> None:
        self._num_engines, self._speed, self._draws = num_engines, speed, draws
        self._num_groups, self._size, self._has_filter = num_groups, size, rate < 1
        self._asked = groups_to_ask(num_groups, rate)
        self._used: Counter[int] = Counter()  # fractions
        explained = min(max(explained, FORESEEN), 1.0)
        self._noise = math.sqrt((1 - explained) / explained) * float(draws.logs_S.std())  # of what is expected

    def frame(self) -> tuple[float, float]:
        """Mean seconds of the steps of a frame, as they come and sorted by what is expected of them."""
        drawn = self._drawn(STEPS * self._asked)
        expected = self._expected(drawn)
        orders = np.arange(len(drawn)), np.argsort(expected, kind="stable")
        found = [
            [self._whole(drawn[part], expected[part], waits) for part in np.split(order, STEPS)]
            for order, waits in zip(orders, (False, True))
        ]
        return float(np.mean(found[0])), float(np.mean(found[1]))

    def rounds(self) -> float:
        """Mean seconds of short rounds, and of the long ones that they fill."""
        shorts, left, known = [], [], []
        for _ in range(SHORT_ROUNDS):
            drawn = self._drawn(math.ceil(RATIO * self._asked))
            tokens_GR = self._tokens(drawn)
            ends_GR = self._ends(tokens_GR, self._expected(drawn))
            ends_G = ends_GR.max(axis=1)
            kept_G = self._fractions(CHANCES, len(drawn)) < self._draws.chance_S[drawn]
            closes = np.sort(ends_G[kept_G])[min(self._num_groups, kept_G.sum()) - 1] if kept_G.any() else ends_G.max()
            late_G = ends_G > closes
            decoded_GR = tokens_GR[late_G] * np.minimum(1.0, closes / ends_GR[late_G])
            shorts.append(closes)
            left.append(drawn[late_G])
            known.append(np.log(np.maximum(decoded_GR, 1.0)).mean(axis=1))
        waiting = np.concatenate(left)
        short = float(np.mean(shorts))
        if not len(waiting):
            return short
        parts = waiting[np.argsort(np.concatenate(known), kind="stable")]
        # As many as fill all the long rounds, however few were left.
        parts = parts[np.linspace(0, len(parts) - 1, POOL * self._asked).astype(int)].reshape(POOL, -1)
        longs = [self._whole(part, self._draws.logs_S[part], True) for part in parts]
        count = POOL * self._asked * SHORT_ROUNDS / len(waiting)
        return (count * short + math.fsum(longs)) / (count + POOL)

    def _drawn(self, count: int) -> np.ndarray:
        return (self._fractions(GROUPS, count) * len(self._draws.logs_S)).astype(int)

    def _expected(self, drawn_G: np.ndarray) -> np.ndarray:
        """Log tokens as history foresees them."""
        places_G = (self._fractions(NOISE, len(drawn_G)) * len(NORMALS)).astype(int)
        return self._draws.logs_S[drawn_G] + self._noise * NORMALS[places_G]

    def _tokens(self, drawn_G: np.ndarray) -> np.ndarray:
        """[G, R] of new rollouts of these groups."""
        count = len(drawn_G) * self._size
        return self._draws.tokens(drawn_G, self._fractions(RESIDUALS, count).reshape(-1, self._size))

    def _fractions(self, root: int, count: int) -> np.ndarray:
        """The next of the multiples of this square root without their whole parts, which are spread as if drawn, but more evenly."""
        begin = self._used[root]
        self._used[root] += count
        return np.arange(begin + 1, begin + count + 1) * math.sqrt(root) % 1

    def _whole(self, drawn_G: np.ndarray, expected_G: np.ndarray, waits: bool) -> float:
        """Seconds of a step that runs to its end, and `waits` for what it has to ask for then, which is of like length."""
        tokens_GR = self._tokens(drawn_G)
        seconds = float(self._ends(tokens_GR, expected_G).max())
        if not waits or not self._has_filter:
            return seconds
        chance_G = self._draws.chance_S[drawn_G]
        spread = math.sqrt(max(float((chance_G * (1 - chance_G)).sum()), 1e-9))
        short = NormalDist().cdf((self._num_groups - float(chance_G.sum())) / spread)
        return seconds + short * float(np.median(self._speed.alone(tokens_GR.max(axis=1))))

    def _ends(self, tokens_GR: np.ndarray, expected_G: np.ndarray) -> np.ndarray:
        """[G, R] seconds at which rollouts end that are dealt to the engines, those of the longest groups first."""
        order, count = np.argsort(-expected_G, kind="stable"), tokens_GR.size
        dealt = np.zeros(math.ceil(count / self._num_engines) * self._num_engines)
        dealt[:count] = tokens_GR[order].ravel()
        seconds_ER = self._speed.seconds(dealt.reshape(-1, self._num_engines).T)
        ends_GR = np.empty_like(tokens_GR)
        ends_GR[order] = seconds_ER.T.ravel()[:count].reshape(tokens_GR.shape)
        return ends_GR
