"""In a policy's actor: samples are cut into micro-batches by their length, for optimizer steps and for forward passes.

The gradient of the optimizer step is the same sum, since its loss is normalised over all of its samples.
"""

import torch
from deepspeed.accelerator import get_accelerator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.utils.seqlen_balancing import ceildiv

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
            # No more than the whole step has: OpenRLHF reads that many micro-batches before it trains the first.
            most = max(min(per_step, len(lengths_N)), count)
            wanted = worthwhile_parts(sorted(lengths_N, reverse=True), count, most)
            # Ranks wait for each other in each micro-batch: the same number on all, which all have to call this.
            wanted, fewest = strategy.all_reduce(torch.tensor([wanted, -len(lengths_N)]), op="max").tolist()
            count = per_step = min(wanted, -fewest)
        return ByLength(batches.sampler, lengths_N, count, per_step)


def make_old_log_probs(model_actor, samples: list[Experience]) -> None:
    """Give samples their old log-probabilities, those of the policy as it is now.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
        samples: of this rank. Every rank has one at least, and all ranks make the same number of forward passes.
    """
    strategy, buffer = model_actor.strategy, model_actor.trainer.replay_buffer
    counts = strategy.all_gather(torch.tensor([len(samples)]))
    batches = min(ceildiv(counts.max().item(), strategy.args.rollout.micro_batch_size), counts.min().item())
    lengths_N = [int(sample.total_length) for sample in samples]
    for places in ByLength(range(len(samples)), lengths_N, batches, batches):
        batch = buffer.collate_fn([samples[place] for place in places])
        log_probs_BT = model_actor.forward(
            batch.sequences, batch.action_mask, batch.attention_mask, mm_train_inputs_list=batch.mm_train_inputs
        )
        for place, log_probs_T in zip(places, log_probs_BT):
            samples[place].action_log_probs = log_probs_T[: len(samples[place].action_mask)].clone()
    get_accelerator().empty_cache()  # training has other shapes
