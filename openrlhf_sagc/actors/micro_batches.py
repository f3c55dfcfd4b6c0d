"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

import torch

from openrlhf_sagc.decisions.micro_batches import ByLength, worthwhile_parts


def sort_micro_batches(buffer, strategy, shuffle: bool) -> ByLength:
    """In the place of `micro_batch_sampler` of OpenRLHF's replay buffer: as many micro-batches, of samples of like lengths."""
    batches = type(buffer).micro_batch_sampler(buffer, strategy, shuffle)
    return ByLength(batches.sampler, _lengths_of(buffer), batches.num_batches, strategy.accumulated_gradient)


def sort_bucket(buffer, strategy, shuffle: bool) -> ByLength:
    """The same for a bucket of a step, which has more micro-batches than an even cut where that spares enough padding.

    A bucket has few samples, so that long and short ones share a micro-batch more often than in a whole step.
    """
    batches = type(buffer).micro_batch_sampler(buffer, strategy, shuffle)
    lengths_N, per_step = _lengths_of(buffer), strategy.accumulated_gradient
    # No more than the whole step has: OpenRLHF reads that many micro-batches before it trains the first.
    most = max(min(per_step, len(lengths_N)), batches.num_batches)
    wanted = worthwhile_parts(sorted(lengths_N, reverse=True), batches.num_batches, most)
    # Ranks wait for each other in each micro-batch.
    wanted, fewest = strategy.all_reduce(torch.tensor([wanted, -len(lengths_N)]), op="max").tolist()
    count = min(wanted, -fewest)
    buffer.ends_optimizer_step = [False] * count  # `Buckets` sets the last: only the last bucket ends the step
    return ByLength(batches.sampler, lengths_N, count, count)


def _lengths_of(buffer) -> list[int]:
    return [int(sample.total_length) for sample in buffer.items]
