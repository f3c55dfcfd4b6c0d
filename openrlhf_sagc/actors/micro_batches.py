"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

from openrlhf_sagc.decisions.micro_batches import ByLength, optimizer_step_bounds


def sort_micro_batches(buffer, strategy, shuffle: bool):
    """In the place of `micro_batch_sampler` of OpenRLHF's replay buffer: its micro-batches, of samples of like lengths."""
    batches = type(buffer).micro_batch_sampler(buffer, strategy, shuffle)
    bounds = optimizer_step_bounds(len(buffer), batches.num_batches, strategy.accumulated_gradient)
    lengths_N = [int(sample.total_length) for sample in buffer.items]
    batches.sampler = ByLength(batches.sampler, lengths_N, bounds)
    return batches
