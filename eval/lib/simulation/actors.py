"""The policy's actors of a simulated run: the tokens that they process, and the seconds that it takes.

A padded micro-batch costs as many tokens as its longest sample has, times its samples. Ranks wait for each other in every
micro-batch, as ZeRO 3 makes them. What a micro-batch costs beyond its tokens is left out, so that a bucket's further ones
cost nothing. Packed samples cost their own tokens, and a pass over them takes as long as on the rank that has the most: in the
forward pass of all, and in each optimizer step. That ranks also wait for each other within it is left out.

Samples are dealt to ranks and sorted by the functions of training. OpenRLHF's cuts stand here once more; a test compares
them with OpenRLHF's own.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from lib.simulation.costs import CostModel
from lib.simulation.work import Work

from openrlhf_sagc.decisions.buckets import BucketPlan
from openrlhf_sagc.decisions.micro_batches import ByLength, deal, worthwhile_parts
from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.decisions.step import Step


class Actors:
    """Data-parallel actors, one on each of their GPUs, or on the `rank_gpus` of their work.

    Args:
        costs: of experience and training.
        work: what the actors do, and what they leave out.
        gpus: of the whole run.
        prompt_tokens: of every prompt.
        seed: of the order in which samples are shuffled.
    """

    def __init__(self, costs: CostModel, work: Work, *, gpus: int, prompt_tokens: int, seed: int = 0):
        self.costs, self.work = costs, work
        self.ranks = (work.actor_gpus or gpus) // work.rank_gpus
        self._prompt_tokens, self._generator = prompt_tokens, np.random.default_rng(seed)

    def seconds(
        self, groups: Iterable[Group], step_samples: int | None = None, dealt: list[list[list[int]]] | None = None
    ) -> tuple[float, float]:
        """Seconds of these groups' experience, and of their training without `train_base`.

        Args:
            step_samples: number of samples of the whole rollout; None if the groups are all of it.
            dealt: what earlier buckets have left for this last one, as of `bucket_seconds`; None if there were none.

        Raises:
            ValueError: there are fewer samples than ranks, which OpenRLHF refuses.
        """
        dealt = dealt or self.none_dealt()
        experience, training = self.bucket_seconds(groups, step_samples, dealt)
        later = sum(padded_tokens(self._cut(shares, step_samples)) for shares in dealt[1:])
        return experience, training + self.costs.train_per_token * later

    def none_dealt(self) -> list[list[list[int]]]:
        """For each optimizer step that the actors train by itself, and each rank: no sample."""
        steps = self.work.optimizer_steps if self.work.in_parts else 1
        return [[[] for _ in range(self.ranks)] for _ in range(steps)]

    def bucket_seconds(
        self, groups: Iterable[Group], step_samples: int | None, dealt: list[list[list[int]]]
    ) -> tuple[float, float]:
        """The same for a bucket; `dealt` gets the lengths of its samples, by optimizer step and rank."""
        lengths_N = [self._prompt_tokens + tokens for group in groups for tokens in group.samples]
        if self.work.micro_batches == "packed":
            shares = packed_shares(lengths_N, self.ranks)
            forward = max(map(sum, shares)) / self.work.rank_gpus
            training = sum(map(max, zip(*self.packed_steps(shares)))) / self.work.rank_gpus
        else:
            if len(lengths_N) < self.ranks:
                raise ValueError(f"{len(lengths_N)} samples are too few for {self.ranks} GPUs of actors")
            if self.work.by_length:
                lengths_N = [lengths_N[place] for place in deal(lengths_N, self.ranks)]
            forward = padded_tokens(self.forward_batches(lengths_N)) if self.work.has_forward else 0
            if len(dealt) > 1:
                return self.costs.experience_base, self._seconds_in_parts(lengths_N, step_samples, dealt)
            training = padded_tokens(self.micro_batches(lengths_N, step_samples))
        experience = self.costs.experience_per_token * forward if self.work.has_forward else 0.0
        return self.costs.experience_base + experience, self.costs.train_per_token * training

    def _seconds_in_parts(self, lengths_N: list[int], step_samples: int | None, dealt: list[list[list[int]]]) -> float:
        """Seconds for the first optimizer step's samples, and for the old log-probabilities of the others."""
        firsts, others, steps = [], [], len(dealt)
        for rank, share in enumerate(even_parts(lengths_N, self.ranks)):
            order, turn = self._generator.permutation(len(share)), sum(len(shares[rank]) for shares in dealt)
            parts = [[share[place] for place in order[(step - turn) % steps :: steps]] for step in range(steps)]
            for shares, part in zip(dealt, parts):
                shares[rank] += part
            firsts.append(parts[0])
            others.append([length for part in parts[1:] for length in part])
        count = self._even_count(others)
        forward = padded_tokens(self._batches(others, count, count, by_length=True))
        training = padded_tokens(self._cut(firsts, step_samples))
        return self.costs.experience_per_token * forward + self.costs.train_per_token * training

    def packed_steps(self, shares: list[list[int]]) -> list[list[int]]:
        """Tokens of each rank's packed samples, longest first, in each optimizer step, as its replay buffer gives them.

        Of as many neighbours in length as there are steps, one goes to each: the longest to the step with the fewest tokens.
        """
        count = max(min(self.work.optimizer_steps, *map(len, shares)), 1)
        steps, tokens = [[0] * count for _ in shares], self._generator.random(count)
        for first in range(0, max(map(len, shares)), count):
            for place, step in enumerate(tokens.argsort().tolist(), first):
                for rank, share in enumerate(shares):
                    if place < len(share):
                        steps[rank][step] += share[place]
                        tokens[step] += share[place]
        return steps

    def forward_batches(self, lengths_N: list[int]) -> list[list[list[int]]]:
        """Lengths in each rank's batches of a forward pass, as OpenRLHF's `split_rollout_samples` cuts them."""
        count = self._micro_batches_of(len(lengths_N))
        batches = even_parts(lengths_N, self.ranks * count)
        return [batches[start : start + count] for start in range(0, len(batches), count)]

    def micro_batches(self, lengths_N: list[int], step_samples: int | None = None) -> list[list[list[int]]]:
        """Lengths in each rank's micro-batches of the training, as its replay buffer gives them.

        Args:
            step_samples: as in `seconds`.
        """
        per_rank = self.ranks * self.work.micro_batch_size
        per_step = math.ceil(math.ceil((step_samples or len(lengths_N)) / per_rank) / self.work.optimizer_steps)
        shares = even_parts(lengths_N, self.ranks)
        if step_samples and self.work.by_length:
            return self._cut(shares, step_samples)
        return self._batches(shares, self._micro_batches_of(len(lengths_N)), per_step, self.work.by_length)

    def _cut(self, shares: list[list[int]], step_samples: int | None) -> list[list[list[int]]]:
        """Lengths in each rank's micro-batches of a share that goes into one optimizer step."""
        count = self._even_count(shares)
        if step_samples and self.work.by_length:
            most = math.ceil(step_samples / (self.ranks * self.work.micro_batch_size))
            most = math.ceil(most / self.work.optimizer_steps)
            sorted_shares = [sorted(share, reverse=True) for share in shares]
            wanted = max(worthwhile_parts(x, count, max(count, min(most, len(x)))) for x in sorted_shares)
            count = min(wanted, *map(len, shares))  # as `sort_bucket` has the ranks agree on
        return self._batches(shares, count, count, self.work.by_length)

    def _even_count(self, shares: list[list[int]]) -> int:
        """Micro-batches of each rank's share: as many on all, with a sample in each at least."""
        sizes = [len(share) for share in shares]
        return min(math.ceil(max(sizes) / self.work.micro_batch_size), *sizes)

    def _batches(self, shares: list[list[int]], count: int, per_step: int, by_length: bool) -> list[list[list[int]]]:
        """Lengths in each rank's micro-batches, by length or shuffled."""
        ranks = []
        for lengths_N in shares:
            order = self._generator.permutation(len(lengths_N)).tolist()
            batches = [*ByLength(order, lengths_N, count, per_step)] if by_length else even_parts(order, count)
            ranks.append([[lengths_N[place] for place in batch] for batch in batches])
        return ranks

    def _micro_batches_of(self, samples: int) -> int:
        """Micro-batches of each rank: as many on all, with a sample in each at least."""
        return min(math.ceil(samples / (self.ranks * self.work.micro_batch_size)), samples // self.ranks)


class SimulatedStream:
    """Groups that the actors train while others still decode; in the place of training's `Stream`, with its buckets.

    The driver makes the experience of one bucket after the other, and the actors train them in their order. A step is
    `begin`, `send` any number of times, `rest`, then `hidden_and_left`. `samples` says how many the step has, `dealt` what
    the buckets have, as of `Actors.bucket_seconds`.
    """

    def __init__(self, actors: Actors):
        self._actors = actors

    def begin(self, step: Step) -> None:
        """A step begins, with nothing left of the one before."""
        self._plan = BucketPlan(
            step.num_groups,
            step.group_size,
            ranks=self._actors.ranks,
            micro_batch_size=self._actors.work.micro_batch_size,
            optimizer_steps=self._actors.work.optimizer_steps,
        )
        self.dealt = self._actors.none_dealt()
        self.samples = step.num_groups * step.group_size
        self._made = 0.0  # when the driver has made the experience of the last bucket
        self._trainings: list[tuple[float, float]] = []  # begin and end of each

    def send(self, groups: list[Group], now: float) -> None:
        """These groups are committed `now`, in seconds on the cluster's clock."""
        bucket = self._plan.add(groups)
        if not bucket:
            return
        experience, training = self._actors.bucket_seconds(bucket, self.samples, self.dealt)
        self._made = max(self._made, now) + experience
        begin = max(self._made, self._trainings[-1][1] if self._trainings else 0.0)
        self._trainings.append((begin, begin + training))

    def rest(self, trained: list[Group]) -> list[Group]:
        """The groups that are still to be trained."""
        return self._plan.rest(trained)

    def hidden_and_left(self, now: float) -> tuple[float, float]:
        """Seconds of training that generation has hidden until it ended `now`, and those until the buckets are trained."""
        hidden = sum(min(end, now) - min(begin, now) for begin, end in self._trainings)
        return hidden, max([0.0, *(end - now for _, end in self._trainings[-1:])])


def packed_shares(lengths_N: list[int], ranks: int) -> list[list[int]]:
    """Lengths of each rank's packed samples, longest first: OpenRLHF's `get_capped_partitions` where a batch has room for them.

    The longest is dealt first, to the rank whose samples cost least so far, with their attention.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    cheapest = [(0, rank) for rank in range(ranks)]
    for length in sorted(lengths_N, reverse=True):
        cost, rank = cheapest[0]
        shares[rank].append(length)
        heapq.heapreplace(cheapest, (cost + length * (24576 + length), rank))
    return shares


def even_parts(items: Sequence[int], count: int) -> list[list[int]]:
    """`count` parts of the items in their order, whose sizes differ by one at most."""
    bounds = [len(items) * part // count for part in range(count + 1)]
    return [list(items[start:end]) for start, end in pairwise(bounds)]


def padded_tokens(ranks: Iterable[list[list[int]]]) -> int:
    """Tokens of the lengths in each rank's micro-batches, as the rank with the most has them in each."""
    return sum(max(len(batch) * max(batch) for batch in side_by_side) for side_by_side in zip(*ranks))
