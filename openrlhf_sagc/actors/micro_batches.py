"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

from openrlhf_sagc.decisions.micro_batches import ByLength


def sort_micro_batches(buffer, strategy, shuffle: bool) -> ByLength:
    """In the place of `micro_batch_sampler` of OpenRLHF's replay buffer: as many micro-batches, of samples of like lengths."""
    batches = type(buffer).micro_batch_sampler(buffer, strategy, shuffle)
    lengths_N = [int(sample.total_length) for sample in buffer.items]
    return ByLength(batches.sampler, lengths_N, batches.num_batches, strategy.accumulated_gradient)
