"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

A padded micro-batch costs as many tokens as its longest sample has, times its samples. The gradient of the optimizer step
is the same sum, since its loss is normalised over all of its samples.
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


def sort_micro_batches(buffer, strategy, shuffle: bool):
    """In the place of `micro_batch_sampler` of OpenRLHF's replay buffer: its micro-batches, of samples of like lengths."""
    batches = type(buffer).micro_batch_sampler(buffer, strategy, shuffle)
    count, per_step = batches.num_batches, strategy.accumulated_gradient
    firsts = [*range(0, count, per_step), count]  # micro-batches that begin an optimizer step
    lengths_N = [int(sample.total_length) for sample in buffer.items]
    batches.sampler = ByLength(batches.sampler, lengths_N, [len(buffer) * first // count for first in firsts])
    return batches
