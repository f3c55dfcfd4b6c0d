"""Inside the policy's actors: a rollout with several optimizer steps, each of which trains a mini-batch of its samples.

The first mini-batch is trained by the policy that the rollout began with. So training's own forward pass gives its old
log-probabilities, and only those of the others are made before it is trained.
"""

import torch
from deepspeed.accelerator import get_accelerator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.seqlen_balancing import ceildiv

from openrlhf_sagc.decisions.micro_batches import ByLength


def deal_at_random(samples: list[Experience], sizes: list[int]) -> list[list[Experience]]:
    """Deal samples out to mini-batches whose sizes stay within one of each other, whatever their lengths and rewards.

    Args:
        samples: at least as many as there are mini-batches, so that each gets one.
        sizes: of the mini-batches so far.

    Returns:
        What each gets.
    """
    # Ranks with equally many samples choose the same order.
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    parts: list[list[Experience]] = [[] for _ in sizes]
    for turn, sample in enumerate(torch.randperm(len(samples)).tolist()):
        parts[smallest_first[turn % len(parts)]].append(samples[sample])
    return parts


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
