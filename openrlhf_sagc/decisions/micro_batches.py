"""Samples by their lengths: which rank trains each, and in which micro-batch.

A padded micro-batch costs as many tokens as its longest sample has, times its samples. So ranks get like shares of long
samples, and an optimizer step has micro-batches of like lengths, the more samples the shorter they are.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

# Share of a full micro-batch's padded tokens that a further one has to spare, since every micro-batch has fixed costs.
# Chosen, not tuned.
LEAST_SPARED = 1 / 8


class ByLength:
    """Micro-batches of a rank's samples: lists of indices, in each optimizer step the longest samples first.

    The samples of an optimizer step are cut so that its micro-batches have about as many padded tokens each: short samples
    share one with many others. None has more padded tokens than the largest one of an even cut, and needs no more memory.

    Args:
        sampler: indices of all samples, in another order for every epoch.
        lengths_N: [N] tokens of each sample.
        micro_batches: of all samples.
        per_step: micro-batches of an optimizer step; the last one has what is left.
    """

    def __init__(self, sampler: Iterable[int], lengths_N: list[int], micro_batches: int, per_step: int) -> None:
        self._sampler, self._lengths_N, self._micro_batches = sampler, lengths_N, micro_batches
        self._firsts = [*range(0, micro_batches, per_step), micro_batches]

    def __len__(self) -> int:
        return self._micro_batches

    def __iter__(self) -> Iterator[list[int]]:
        order, lengths_N = list(self._sampler), self._lengths_N
        for first, last in pairwise(self._firsts):
            # OpenRLHF's even cut says which samples the optimizer step has.
            start, end = (len(order) * place // self._micro_batches for place in (first, last))
            step = sorted(order[start:end], key=lambda sample: -lengths_N[sample])
            for of_batch in pairwise(even_bounds([lengths_N[sample] for sample in step], last - first)):
                yield step[slice(*of_batch)]


def even_bounds(lengths_N: list[int], parts: int) -> list[int]:
    """Cut samples so that the part with the most padded tokens has as few as can be, and likewise the parts behind it.

    Args:
        lengths_N: [N] tokens of each sample, longest first.
        parts: 1 to N; every part gets a sample.

    Returns:
        [parts + 1] place of the first sample of each part, then N.
    """
    bounds, count = [0], len(lengths_N)
    for left in range(parts, 0, -1):
        start = bounds[-1]
        longest = lengths_N[start]
        most = count - start - (left - 1)
        budgets = range(longest, longest * most + 1)
        budget = budgets[bisect_left(budgets, True, key=partial(_fits, lengths_N, start, left))]
        bounds.append(start + budget // longest)
    return bounds


def worthwhile_parts(lengths_N: list[int], least: int, most: int) -> int:
    """The number of micro-batches that costs least: their padded tokens, and LEAST_SPARED of a full one's for each.

    A full micro-batch has as many samples as an even cut into `least` gives one, all as long as the longest.

    Args:
        lengths_N: [N] tokens of each sample, longest first.
        least, most: micro-batches to choose from, 1 to N.
    """
    price = LEAST_SPARED * lengths_N[0] * -(-len(lengths_N) // least)
    own = sum(lengths_N)
    best, lowest = least, float("inf")
    for parts in range(least, most + 1):
        if parts * price + own >= lowest:  # no cut has fewer padded tokens than the samples have
            break
        bounds = even_bounds(lengths_N, parts)
        cost = parts * price + sum(lengths_N[start] * (end - start) for start, end in pairwise(bounds))
        if cost < lowest:
            best, lowest = parts, cost
    return best


def _fits(lengths_N: list[int], start: int, parts: int, budget: int) -> bool:
    """Whether the samples from `start` on go into so many parts of at most `budget` padded tokens each."""
    for _ in range(parts):
        if start < len(lengths_N):
            start += budget // lengths_N[start]
    return start >= len(lengths_N)


def deal(lengths_N: list[int], ranks: int) -> list[int]:
    """An order of the samples whose `ranks` parts have about as many tokens each, every part longest first.

    OpenRLHF cuts the samples into parts as even as can be, and gives every rank one. Samples are dealt out in turns, from
    the longest, one way and back.

    Args:
        lengths_N: [N] tokens of each sample.
    """
    count = len(lengths_N)
    left = iter(sorted(range(count), key=lambda sample: -lengths_N[sample]))
    shares = [count * (rank + 1) // ranks - count * rank // ranks for rank in range(ranks)]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for turn in range(max(shares)):
        for rank in range(ranks)[:: -1 if turn % 2 else 1]:
            if len(parts[rank]) < shares[rank]:
                parts[rank].append(next(left))
    return [sample for part in parts for sample in part]
