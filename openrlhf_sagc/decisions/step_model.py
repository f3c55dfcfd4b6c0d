"""How long a step takes at each group size, learned from all steps, whatever their size.

A step's seconds are modelled as

    seconds = c0 + c1 * longest + c2 * tokens + c3 * squares + c4 * trained,    all c >= 0.

`longest` is the tokens of the longest response, `tokens` and `squares` are the tokens and the sum of squared lengths (the
work of attention) of the responses on the busiest engine, `trained` is the tokens that are trained. The coefficients are
fitted to what was seen, so that a step teaches about all sizes. The features at a size that was not tried are worked out
from the prompts that were seen: the spread between them as it was, the spread within them as log-normal. What the seconds
at a size are off this model is learned for that size. The model is ours; docs/controller.md derives it.
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from openrlhf_sagc.decisions.group_lengths import is_finite
from openrlhf_sagc.decisions.least_squares import least_squares
from openrlhf_sagc.decisions.objectives import Forecast

SHARES_F = np.array([0.1, 0.4, 0.1, 0.2, 0.2])  # of the first step's seconds, before any is known
PRIOR_STEPS = 0.3  # steps that each of these shares weighs as much as
ERROR = 0.1  # what a step is off the model, of log seconds
ERROR_STEPS = 4.0  # steps that this weighs as much as
MOST_ERROR = 1.0  # of the log seconds: lengths far beyond all that were seen say nothing of a size
SIZE_ERROR = 0.05  # standard deviation of what a size is off the model, of log seconds, before any step
MOST_OFF = 3.0  # factor by which a step may be off the model; more, as with a checkpoint that is saved, counts as that
PROMPTS = 1024  # recent prompts that the model knows
QUANTILES_K = (np.arange(5) + 0.5) / 5  # at which the longest response of a group is taken


class StepModel:
    """Learns from steps, each of which is `observe`, then `timed`; `forecast` says what a step at a size would take.

    Args:
        num_engines: engines that share the rollouts, at least 1.
        discount: factor by which a step's evidence fades with every later step, in (0, 1].
    """

    def __init__(self, num_engines: int, discount: float = 0.98) -> None:
        self._num_engines, self._discount = num_engines, discount
        self._prompts: list[list[float]] = []  # mean of the log tokens and number of the responses to each
        self._within = [0.0, 0.0]  # squares of log tokens less their prompt's mean; degrees of freedom
        self._longest = self._mean_tokens = 1.0
        self._first_F = np.ones(len(SHARES_F))  # features of the first step
        self._unit = 0.0  # seconds of the first step that was timed
        self._pending: tuple[int, np.ndarray] | None = None  # size and features of the step that is not timed yet
        self._squares_FF = np.zeros((len(SHARES_F), len(SHARES_F)))
        self._seen: dict[int, tuple[float, np.ndarray]] = {}  # by size: steps, sum of features over seconds
        self._fit()

    def observe(
        self, size: int, num_groups: int, groups: Sequence[Sequence[int]], running: Sequence[Sequence[bool]]
    ) -> None:
        """The rollouts of a step are over.

        Args:
            size, num_groups: of the groups that it trains.
            groups: response tokens of every group that it rolled out.
            running: which of these responses did not finish.
        """
        self._pending = None
        # A prompt whose group was stopped comes again: so all prompts are seen, the slow ones too.
        whole = [np.asarray(group, float) for group, unfinished in zip(groups, running) if not any(unfinished)]
        if not whole:
            return
        is_first = not self._prompts
        self._within = [self._discount * total for total in self._within]
        for tokens_R in whole:
            logs_R = np.log(np.maximum(tokens_R, 1))
            self._prompts.append([float(logs_R.mean()), len(logs_R)])
            self._within[0] += float(np.square(logs_R - logs_R.mean()).sum())
            self._within[1] += len(logs_R) - 1
        del self._prompts[:-PROMPTS]
        self._mean_tokens = max(float(sum(x.sum() for x in whole)) / sum(map(len, whole)), 1.0)
        all_B = [np.asarray(group, float) for group in groups]
        longest = max(float(tokens_R.max()) for tokens_R in all_B)
        self._longest = max(self._longest, longest)
        tokens_B, squares_B = (np.array([np.power(x, power).sum() for x in all_B]) for power in (1, 2))
        most, mean = (longest, tokens_B.max(), squares_B.max()), (tokens_B.mean(), squares_B.mean())
        features_F = np.maximum(self._features(len(all_B), num_groups * size, most, mean), 1.0)
        if is_first:
            self._first_F = features_F
        self._pending = size, features_F

    def timed(self, seconds: float) -> None:
        """The step that was observed last took so long, training included; a step need not be timed.

        Raises:
            ValueError: that is no finite number of at least 0; the state is unchanged.
        """
        if not is_finite(seconds, 0.0):
            raise ValueError(f"a step's seconds must be finite and not negative, got {seconds}")
        if self._pending is None or not seconds:
            return
        (size, features_F), self._pending = self._pending, None
        self._unit = self._unit or float(seconds)
        relative_F = self._relative(features_F)
        expected = float(relative_F @ self._shares_F)
        taken = min(max(seconds / self._unit, expected / MOST_OFF), expected * MOST_OFF)
        relative_F = relative_F / taken  # the errors are relative
        self._squares_FF = self._discount * self._squares_FF + np.outer(relative_F, relative_F)
        self._seen = {x: (self._discount * n, self._discount * sum_F) for x, (n, sum_F) in self._seen.items()}
        steps, sum_F = self._seen.get(size, (0.0, np.zeros(len(SHARES_F))))
        self._seen[size] = steps + 1, sum_F + relative_F
        self._fit()

    @property
    def is_timed(self) -> bool:
        """Whether any step was timed."""
        return self._unit > 0

    @property
    def has_seen(self) -> bool:
        """Whether it can forecast: it has seen a group whose responses all finished."""
        return bool(self._prompts)

    def forecast(
        self, size: int, num_groups: int, acceptance_rate: float = 1.0, prompt_ratio: float = 1.0
    ) -> Forecast:
        """What a step is expected to take, in seconds if any step was timed.

        Args:
            size, num_groups: of the groups that it trains.
            acceptance_rate: share of the groups rolled out that it trains, in (0, 1].
            prompt_ratio: prompts of a short round over those that it needs, at least 1; 1 without tail batching.
        """
        samples = num_groups * size
        relative_F = self._relative(self._features_of(size, num_groups, acceptance_rate, prompt_ratio))
        expected = float(relative_F @ self._shares_F)
        steps, fit = self._fit_of(size)
        steps += self._variance / SIZE_ERROR**2
        off = -math.log(fit) * (1 - self._variance / SIZE_ERROR**2 / steps)
        error = math.sqrt(self._variance * (relative_F @ self._covariance_FF @ relative_F / expected**2 + 1 / steps))
        error = min(error, MOST_ERROR)
        seconds = (self._unit or 1.0) * expected * math.exp(off)
        return Forecast(samples * (size - 1) / size, seconds, error)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue identically; JSON-serialisable."""
        return {
            "prompts": [list(prompt) for prompt in self._prompts],
            "within": list(self._within),
            "longest": self._longest,
            "mean_tokens": self._mean_tokens,
            "first": self._first_F.tolist(),
            "unit": self._unit,
            "pending": self._pending and [self._pending[0], self._pending[1].tolist()],
            "squares": self._squares_FF.tolist(),
            "seen": {str(size): [steps, sum_F.tolist()] for size, (steps, sum_F) in self._seen.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; the number of engines may differ."""
        self._prompts = [list(prompt) for prompt in state["prompts"]]
        self._within = list(state["within"])
        self._longest, self._mean_tokens, self._unit = state["longest"], state["mean_tokens"], state["unit"]
        self._first_F, self._squares_FF = np.array(state["first"]), np.array(state["squares"])
        pending = state["pending"]
        self._pending = (pending[0], np.array(pending[1])) if pending else None
        self._seen = {int(size): (steps, np.array(sum_F)) for size, (steps, sum_F) in state["seen"].items()}
        self._fit()

    def _features(self, groups: float, samples: int, most: Sequence[float], mean: Sequence[float]) -> np.ndarray:
        """[FEATURES], of `groups` groups that are spread over the engines.

        Args:
            most: longest response; tokens of the group with the most; squares of the one with the most.
            mean: tokens and squares of a group.
        """
        others = max(groups / self._num_engines - 1, 0.0)  # groups on the engine of the largest
        busiest = [largest + others * average for largest, average in zip(most[1:], mean)]
        return np.array([1.0, most[0], *busiest, samples * self._mean_tokens])

    def _features_of(self, size: int, num_groups: int, acceptance_rate: float, prompt_ratio: float) -> np.ndarray:
        """[FEATURES] that a step of other responses to the prompts that were seen is expected to have.

        A short round dispatches `prompt_ratio` times the groups and ends when all but these are back. What short rounds
        leave behind comes in a long round as soon as it is `num_groups` prompts; others fill that up. The features are
        means over both.
        """
        groups, samples = num_groups / acceptance_rate, num_groups * size
        mean_P, count_P = np.array(self._prompts).T
        within2 = self._within[0] / max(self._within[1], 1.0)
        # The fewer responses, the more of a mean's deviation is chance.
        between2 = max(mean_P.var() - within2 * (1 / count_P).mean(), 0.0)
        kept_P = np.sqrt(between2 / np.maximum(between2 + within2 / count_P, 1e-12))
        log_P = mean_P.mean() + kept_P * (mean_P - mean_P.mean())
        logs = (
            log_P[:, None] + math.sqrt(within2) * _normal_tops(size),
            np.repeat(log_P + within2 / 2, len(QUANTILES_K)),
            np.repeat(2 * log_P + 2 * within2, len(QUANTILES_K)),
        )
        longest = math.log(self._longest)
        groups_3N = np.array([np.minimum(x.ravel(), power * longest) for x, power in zip(logs, (1, 1, 2))])
        groups_3N = np.exp(groups_3N) * [[1], [size], [size]]  # longest response, tokens and squares of each group
        groups_3N = groups_3N[:, np.argsort(groups_3N[0])]
        last = max(round(groups_3N.shape[1] / prompt_ratio), 1)
        limit = groups_3N[0, last - 1]
        short_3N = np.minimum(groups_3N, [[limit], [size * limit], [size * limit**2]])
        even_N = np.ones(groups_3N.shape[1])
        rounds = [(1.0, short_3N, even_N, groups * prompt_ratio)]
        if last < groups_3N.shape[1]:
            left = min((prompt_ratio - 1) / acceptance_rate, 1.0)  # by a short round, in steps of prompts
            slow = max(acceptance_rate, min(prompt_ratio - 1, 1.0))  # share of a long round's groups
            weights_N = even_N * (1 - slow) / groups_3N.shape[1]
            weights_N[last:] += slow / (groups_3N.shape[1] - last)
            rounds.append((left, groups_3N, weights_N, groups))
        features_RF = [
            self._features(
                count,
                samples,
                [_expected_most(x, weights_N, count) for x in of_3N],
                np.average(of_3N[1:], axis=1, weights=weights_N).tolist(),
            )
            for _, of_3N, weights_N, count in rounds
        ]
        return np.average(features_RF, axis=0, weights=[share for share, *_ in rounds])

    def _relative(self, features_F: np.ndarray) -> np.ndarray:
        """Features in units of the first step's."""
        return features_F / self._first_F

    def _fit(self) -> None:
        """The shares of the first step's seconds that explain all steps best, with the prior; none is negative."""
        normal_FF = self._squares_FF + PRIOR_STEPS * np.eye(len(SHARES_F))
        moment_F = sum((sum_F for _, sum_F in self._seen.values()), start=PRIOR_STEPS * SHARES_F)
        shares_F = least_squares(normal_FF, moment_F)
        self._shares_F, self._covariance_FF = shares_F, np.linalg.inv(normal_FF)
        fits = [self._fit_of(size) for size in self._seen]
        total = shares_F @ self._squares_FF @ shares_F - math.fsum(steps * fit**2 for steps, fit in fits)
        count = math.fsum(steps for steps, _ in fits)
        self._variance = (max(total, 0.0) + ERROR_STEPS * ERROR**2) / (count + ERROR_STEPS)  # around the sizes' fits

    def _fit_of(self, size: int) -> tuple[float, float]:
        """Steps of this size, and the mean of what the model expects of them over what they took."""
        steps, sum_F = self._seen.get(size, (0.0, None))
        return steps, float(sum_F @ self._shares_F / steps) if steps else 1.0


@cache
def _normal_tops(size: int) -> np.ndarray:
    """[K] quantiles of the largest of `size` standard normals."""
    return np.array([NormalDist().inv_cdf(quantile ** (1 / size)) for quantile in QUANTILES_K])


def _expected_most(values_N: np.ndarray, weights_N: np.ndarray, draws: float) -> float:
    """Expected largest of so many draws from these values, with replacement and with chances as the weights."""
    order_N = np.argsort(values_N)
    below_N1 = np.concatenate([[0.0], weights_N[order_N].cumsum()])
    return float(values_N[order_N] @ np.diff((below_N1 / below_N1[-1]) ** draws))
