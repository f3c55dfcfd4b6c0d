"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

import torch
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_sagc.decisions.micro_batches import ByLength, worthwhile_parts


class LengthBuffer(NaiveReplayBuffer):
    """OpenRLHF's replay buffer, whose micro-batches have samples of like lengths.

    `has_bucket` says whether its samples are a bucket of a step. A bucket has few samples, so that long and short ones share
    a micro-batch more often than in a whole step. It has more micro-batches than an even cut where that spares enough padding.

    Args:
        buffer: OpenRLHF's, whose place it takes.
    """

    def __init__(self, buffer: NaiveReplayBuffer) -> None:
        self.__dict__.update(vars(buffer))
        self.has_bucket = False

    def micro_batch_sampler(self, strategy, shuffle: bool) -> ByLength:
        """OpenRLHF's optimizer steps, or the bucket, cut by length."""
        batches = super().micro_batch_sampler(strategy, shuffle)
        lengths_N = [int(sample.total_length) for sample in self.items]
        count, per_step = batches.num_batches, strategy.accumulated_gradient
        if self.has_bucket:
            count = per_step = _batches_of_bucket(lengths_N, count, per_step, strategy)
        return ByLength(batches.sampler, lengths_N, count, per_step)


def _batches_of_bucket(lengths_N: list[int], least: int, per_step: int, strategy) -> int:
    """As many micro-batches as are worth it, and the same number on every rank, which all have to call this."""
    # No more than the whole step has: OpenRLHF reads that many micro-batches before it trains the first.
    most = max(min(per_step, len(lengths_N)), least)
    wanted = worthwhile_parts(sorted(lengths_N, reverse=True), least, most)
    # Ranks wait for each other in each micro-batch.
    wanted, fewest = strategy.all_reduce(torch.tensor([wanted, -len(lengths_N)]), op="max").tolist()
    return min(wanted, -fewest)
