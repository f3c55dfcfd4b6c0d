"""Inside the policy's actors: the samples of an optimizer step are cut into micro-batches by their length.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

import torch
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_sagc.decisions.micro_batches import ByLength, like_a_step, worthwhile_parts


class LengthBuffer(NaiveReplayBuffer):
    """OpenRLHF's replay buffer, whose micro-batches have samples of like lengths.

    An optimizer step has more micro-batches than an even cut gives it where that spares enough padding: `plan` says how many,
    and `micro_batch_sampler` makes them.

    Args:
        buffer: OpenRLHF's, whose place it takes.
    """

    def __init__(self, buffer: NaiveReplayBuffer) -> None:
        self.__dict__.update(vars(buffer))

    def plan(self, strategy, per_step: int) -> int:
        """Decide how finely the samples in the buffer are cut. Every rank has to call this.

        Args:
            per_step: micro-batches of an optimizer step in OpenRLHF's even cut.

        Returns:
            Micro-batches of an optimizer step; the last one may have fewer. Every rank has as many.
        """
        self._even = super().micro_batch_sampler(strategy, shuffle=False).num_batches
        self._per_step = min(per_step, self._even)
        lengths_N = sorted((int(sample.total_length) for sample in self.items), reverse=True)
        self._parts = parts_on_all_ranks(like_a_step(lengths_N, self._even, self._per_step), self._per_step, strategy)
        return self._parts

    def micro_batch_sampler(self, strategy, shuffle: bool) -> ByLength:
        """The optimizer steps of OpenRLHF's even cut, each cut by length as planned."""
        sampler = super().micro_batch_sampler(strategy, shuffle).sampler
        lengths_N = [int(sample.total_length) for sample in self.items]
        return ByLength(sampler, lengths_N, self._even, self._per_step, self._parts)


def parts_on_all_ranks(lengths_N: list[int], least: int, strategy) -> int:
    """`agreed_parts` of the ranks' samples; all of them have to call this, since they wait for each other in each one.

    Args:
        lengths_N: [N] tokens of this rank's samples, longest first.
        least: micro-batches of an even cut, 1 to N on every rank.
    """
    counts = torch.tensor([worthwhile_parts(lengths_N, least), -len(lengths_N)])
    wanted, fewest = strategy.all_reduce(counts, op="max").tolist()
    return min(wanted, -fewest)
