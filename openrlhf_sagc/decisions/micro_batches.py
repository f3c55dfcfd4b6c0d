"""Samples by their lengths: which rank trains each, and in which micro-batch.

A padded micro-batch costs as many tokens as its longest sample has, times its samples. So ranks get like shares of long
samples, and an optimizer step has micro-batches of like lengths, the more samples the shorter they are.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

# Share of a full micro-batch's padded tokens that a further one has to spare, since every micro-batch has fixed costs.
# Chosen, not tuned. With it the quickstart's steps have about the number that takes least on a CPU.
LEAST_SPARED = 1 / 8


class ByLength:
    """Micro-batches of a rank's samples: lists of indices, in each optimizer step the longest samples first.

    The samples of an optimizer step are cut so that its micro-batches have about as many padded tokens each: short samples
    share one with many others. None has more padded tokens than the largest one of an even cut, and needs no more memory.

    Args:
        sampler: indices of all samples, in another order for every epoch.
        lengths_N: [N] tokens of each sample.
        even: micro-batches of all samples in OpenRLHF's even cut, which says what samples an optimizer step has.
        per_step: those of an optimizer step, at most `even`; the last one has what is left.
        parts: micro-batches to make of an optimizer step, from `per_step` on; the last one has as large a share of them as it
            has of the even ones. Every step has as many samples.
    """

    def __init__(self, sampler: Iterable[int], lengths_N: list[int], even: int, per_step: int, parts: int) -> None:
        self._sampler, self._lengths_N, self._even = sampler, lengths_N, even
        firsts = [*range(0, even, per_step), even]
        self._steps = [(first, last, parts * (last - first) // per_step) for first, last in pairwise(firsts)]

    def __len__(self) -> int:
        return sum(parts for _, _, parts in self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        order, lengths_N = list(self._sampler), self._lengths_N
        for first, last, parts in self._steps:
            start, end = (len(order) * place // self._even for place in (first, last))
            step = sorted(order[start:end], key=lambda sample: -lengths_N[sample])
            for of_batch in pairwise(even_bounds([lengths_N[sample] for sample in step], parts)):
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


def worthwhile_parts(lengths_N: list[int], least: int) -> int:
    """The number of micro-batches that costs least: their padded tokens, and LEAST_SPARED of a full one's for each.

    A full micro-batch has as many samples as an even cut into `least` gives one, all as long as the longest.

    Args:
        lengths_N: [N] tokens of each sample, longest first.
        least: micro-batches to choose from, to N.
    """
    price = LEAST_SPARED * lengths_N[0] * -(-len(lengths_N) // least)
    own = sum(lengths_N)
    best, lowest = least, float("inf")
    for parts in range(least, len(lengths_N) + 1):
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


def cut_shares(shares_RN: list[list[int]], least: int) -> list[list[int]]:
    """Cut the samples of every rank into as many micro-batches as the rank wants that wants most, as far as each has samples.

    Args:
        shares_RN: tokens of each rank's samples, longest first.
        least: micro-batches of a rank; every rank has as many samples.

    Returns:
        The bounds of each rank's micro-batches, as of `even_bounds`.
    """
    parts = agreed_parts(shares_RN, least)
    return [even_bounds(lengths_N, parts) for lengths_N in shares_RN]


def agreed_parts(shares_RN: list[list[int]], least: int) -> int:
    """Micro-batches that every rank makes: arguments as of `cut_shares`."""
    wanted = max(worthwhile_parts(lengths_N, least) for lengths_N in shares_RN)
    return min(wanted, *map(len, shares_RN))


def like_a_step(lengths_N: list[int], even: int, per_step: int) -> list[int]:
    """Lengths that stand for those of an optimizer step, as long as nobody knows which samples it gets.

    Args:
        lengths_N: [N] tokens of a rank's samples, longest first.
        even, per_step: as of `ByLength`.

    Returns:
        As many as each step has samples at least, the last one left out; longest first.
    """
    return [lengths_N[place * even // per_step] for place in range(len(lengths_N) * per_step // even)]


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
