"""Samples by their lengths: which rank trains each, and in which micro-batch.

A padded micro-batch costs as many tokens as its longest sample has, times its samples. So ranks get like shares of long
samples, and an optimizer step has micro-batches of like lengths.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise


class ByLength:
    """Indices of samples in the order of `sampler`, sorted by length inside each optimizer step, longest first.

    Args:
        sampler: indices of all samples, in another order for every epoch.
        lengths_N: [N] tokens of each sample.
        bounds: place of the first sample of each optimizer step, then N.
    """

    def __init__(self, sampler: Iterable[int], lengths_N: list[int], bounds: list[int]) -> None:
        self._sampler, self._lengths_N, self._bounds = sampler, lengths_N, bounds

    def __iter__(self) -> Iterator[int]:
        order = list(self._sampler)
        for start, end in pairwise(self._bounds):
            yield from sorted(order[start:end], key=lambda sample: -self._lengths_N[sample])


def optimizer_step_bounds(samples: int, micro_batches: int, per_step: int) -> list[int]:
    """Place of the first sample of each optimizer step of a rank, then the number of its samples.

    Args:
        samples: of the rank.
        micro_batches: into which they are cut, as even as can be.
        per_step: micro-batches of an optimizer step; the last one has what is left.
    """
    firsts = [*range(0, micro_batches, per_step), micro_batches]
    return [samples * first // micro_batches for first in firsts]


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
