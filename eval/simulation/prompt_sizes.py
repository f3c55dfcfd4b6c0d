"""A group size for each prompt: what unequal sizes are worth, which sizes are worth most, and a planner that gives them.

A right response counts 1, a wrong one 0. A prompt with success rate p has the noise v = p (1 - p). A group of G estimates
the prompt's gradient with the group's mean as baseline, divided by G - 1, which takes the bias away that the mean brings.
Let a response's score have the mean square s^2, right or wrong. Then the estimate's variance is s^2 v / (G - 1), but for
a part that the gradient's own square makes, which is small where no single response says much. All prompts weigh the same,
so that a step of P groups has the variance s^2 / P^2 sum v / (G - 1). eval/results/prompt_sizes/README.md derives this.
"""

import heapq
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from simulation.workloads import WorkloadSource

from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.length_prediction import LengthPredictor, place_whole
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.decisions.step import Step

SIZES = (4, 8, 16, 32)
DISCOUNT = 0.7  # factor by which a prompt's counts fade with every new group of it, since the policy changes
POPULATION_DISCOUNT = 0.999  # the same for those of all prompts, with every new group of any prompt
POPULATION_PRIOR = 8.0  # groups that a uniform success rate counts as


def noise(rates_P: np.ndarray) -> np.ndarray:
    """p (1 - p) of the success rates p: the variance that a response adds, but for a factor that is the same for all."""
    return rates_P * (1 - rates_P)


def chance_of_signal(rates_P: np.ndarray, sizes_P: np.ndarray) -> np.ndarray:
    """Chance that a group has right and wrong responses."""
    return 1 - rates_P**sizes_P - (1 - rates_P) ** sizes_P


def effective_samples(noise_P: np.ndarray, sizes_P: np.ndarray, groups: float | None = None) -> float:
    """Independent samples, spread evenly over the prompts, whose gradient estimate has the same variance.

    P sum v / sum v / (G - 1), where P is `groups`, or their number. If all sizes are G, it is N (G - 1) / G of the N = P G
    samples. 0 if no prompt has noise.
    """
    total = noise_P.sum()
    count = len(noise_P) if groups is None else groups
    return float(count * total / (noise_P / (sizes_P - 1)).sum()) if total else 0.0


def best_sizes(worth_P: Sequence[float], budget: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """The size of each prompt for which sum worth / (G - 1) is least, within a budget of samples.

    A prompt's worth is its noise over what one of its samples costs, in any unit. Every prompt begins at the smallest size;
    the step to the next size that gains most a sample is taken first, as long as the budget has room for it. Gains fall
    from size to size, so that the sum is least but for a rest of the budget that no step fits.

    Raises:
        ValueError: the budget is less than the smallest size of every prompt.
    """
    left = budget - sizes[0] * len(worth_P)
    if left < 0:
        raise ValueError(f"a budget of {budget} samples does not give {len(worth_P)} prompts {sizes[0]} each")
    chosen = [0] * len(worth_P)
    steps = [
        (high - low, (1 / (low - 1) - 1 / (high - 1)) / (high - low)) for low, high in zip(sizes, sizes[1:])
    ]  # samples, gain a sample
    heap = [(-worth * steps[0][1], prompt) for prompt, worth in enumerate(worth_P)]
    heapq.heapify(heap)
    while heap:
        _, prompt = heapq.heappop(heap)
        if steps[chosen[prompt]][0] > left:
            continue
        left -= steps[chosen[prompt]][0]
        chosen[prompt] += 1
        if chosen[prompt] < len(steps):
            heapq.heappush(heap, (-worth_P[prompt] * steps[chosen[prompt]][1], prompt))
    return [sizes[place] for place in chosen]


class Knowledge(Protocol):
    """What a planner knows of prompts."""

    def worth(self, prompts: list[Prompt]) -> list[float]:
        """Noise of each over the cost of one of its samples."""
        ...

    def observe(self, group: Group, scores_G: Sequence[float], tokens_G: Sequence[int]) -> None:
        """A group is back."""


class Oracle:
    """Knows the success rates and the mean lengths, which count as costs."""

    def __init__(self, source: WorkloadSource) -> None:
        self._source = source

    def worth(self, prompts: list[Prompt]) -> list[float]:
        labels = [prompt.label for prompt in prompts]
        return (noise(self._source.success_rates(labels)) / self._source.mean_tokens(labels)).tolist()

    def observe(self, group: Group, scores_G: Sequence[float], tokens_G: Sequence[int]) -> None:
        """There is nothing to learn."""


class Learned:
    """Knows what a prompt's earlier groups showed: a Beta posterior of the success rate, and the predicted length.

    The prior is the Beta distribution with the mean and the spread of all prompts.

    Args:
        by_rate: the success rate counts; otherwise all prompts have the same noise.
        by_length: the length counts as a sample's cost; otherwise all cost the same.
    """

    def __init__(self, *, by_rate: bool, by_length: bool) -> None:
        self._by_rate, self._by_length = by_rate, by_length
        self._lengths = LengthPredictor()
        self._counts: dict[Any, tuple[float, float]] = {}  # right and wrong, faded
        # Groups, their shares of right responses and of right pairs; a uniform rate has mean 1/2 and mean square 1/3.
        self._population_3 = POPULATION_PRIOR * np.array([1, 1 / 2, 1 / 3])

    def worth(self, prompts: list[Prompt]) -> list[float]:
        prior_right, prior_wrong = self._prior()
        worths = []
        for prompt in prompts:
            right, wrong = self._counts.get(prompt.text, (0.0, 0.0))
            a, b = prior_right + right, prior_wrong + wrong
            worth = a * b / ((a + b) * (a + b + 1)) if self._by_rate else 1.0  # mean of p (1 - p)
            worths.append(worth / self._lengths.predict(prompt.text) if self._by_length else worth)
        return worths

    def observe(self, group: Group, scores_G: Sequence[float], tokens_G: Sequence[int]) -> None:
        text, size, right = group.prompt.text, len(scores_G), sum(scores_G)
        self._lengths.observe(text, tokens_G, [False] * size)
        old_right, old_wrong = self._counts.get(text, (0.0, 0.0))
        self._counts[text] = DISCOUNT * old_right + right, DISCOUNT * old_wrong + size - right
        pairs = right * (right - 1) / (size * (size - 1))
        self._population_3 = POPULATION_DISCOUNT * self._population_3 + [1, right / size, pairs]

    def _prior(self) -> tuple[float, float]:
        mean, square = self._population_3[1:] / self._population_3[0]
        variance = min(max(square - mean**2, 1e-6), 0.999 * mean * (1 - mean))
        strength = mean * (1 - mean) / variance - 1
        return mean * strength, (1 - mean) * strength


class SizesByPrompt(StepPlanner):
    """Gives each prompt a size; the controller's only size is the mean of those that are dispatched.

    A step has as many groups as are expected to hold the step's samples: with dynamic sampling large groups are kept
    more often. The prompts that are drawn later in a step are judged beside those drawn before, whose sizes stay.
    """

    def __init__(self, *policies: Any, knowledge: Knowledge, samples: int, num_engines: int) -> None:
        super().__init__(
            *policies, None, hold="samples", samples=samples, prompts=0, signal="tokens", num_engines=num_engines
        )
        self.knowledge, self._step_samples = knowledge, samples
        self._worths: list[float] = []  # of the prompts that the step has dispatched
        self.sizes: list[int] = [self.controller.group_size]  # of these; of the last step when a step is planned

    def plan(self, flight: GroupsInFlight, queue: PromptQueue) -> Step:
        step = super().plan(flight, queue)
        rates = np.array([self.sampler.acceptance_rate(size) for size in self.sizes])
        step.acceptance_rate = float(rates.mean())
        step.num_groups = max(round(self._step_samples * rates.sum() / (rates @ self.sizes)), 1)
        self._worths, self.sizes = [], []
        return step

    def dispatch(self, step: Step, flight: GroupsInFlight, prompts: list[Prompt]) -> list[Group]:
        step.dispatched += len(prompts)
        self._worths += self.knowledge.worth(prompts)
        sizes = best_sizes(self._worths, step.group_size * len(self._worths))[-len(prompts) :]
        self.sizes += sizes
        engines = place_whole([flight.loads[engine] for engine in range(self._num_engines)], sizes)
        new = flight.new_groups(step, prompts, engines)
        groups = [group._replace(size=size, rollouts=size) for group, size in zip(new, sizes)]
        flight.run(groups)
        return groups

    def judge(self, step: Step, flight: GroupsInFlight, group: Group, scores_G: Any, samples: Any) -> None:
        self.knowledge.observe(group, scores_G, samples)
        super().judge(step, flight, group, scores_G, samples)
