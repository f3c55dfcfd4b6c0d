"""In a policy's actor: a rollout is trained in buckets while groups decode, or its optimizer steps one by one.

The first optimizer step ends with the last bucket. Until then nobody knows how many tokens the loss is a mean over. So every
bucket's loss is a sum over a constant, and the right divisor enters as DeepSpeed's loss scale: the optimizer divides norm
and gradients by it before it clips them. The gradient is that of a step trained at once; sums are in another order.

Where a rollout has several optimizer steps, each trains a mini-batch, and the samples of every bucket are dealt out to these
at random. The first is trained by the policy that the rollout began with, and training's own forward pass gives its old
log-probabilities. The others get theirs before it is trained, and wait for their step.
"""

import time
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

OPTIMIZER_SECONDS = "actor_optimizer_seconds"


def train_bucket(model_actor, kl_ctl: float) -> float:
    """Run in a policy's actor with a bucket in its replay buffer: train what can be trained of it. Returns seconds."""
    start = time.perf_counter()
    model_actor.trainer.ends_rollout = False
    try:
        model_actor.fit(kl_ctl)
    finally:
        model_actor.trainer.ends_rollout = True
    return time.perf_counter() - start


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


class Buckets:
    """What one rank has trained of a rollout, and what of it waits; a rollout that is not streamed is one bucket.

    Args:
        steps: optimizer steps of the rollout.
    """

    def __init__(self, steps: int) -> None:
        self.waiting: list[list[Experience]] = [[] for _ in range(steps - 1)]  # for each step after the first
        self._sizes = [0] * steps  # samples that each optimizer step has so far
        self._weights: dict[str, str | None] = {}  # metric -> what it is a mean over
        # Of what was trained at a time, each with [2] action tokens and samples of this rank.
        self._statuses: list[tuple[dict, torch.Tensor]] = []
        self._count = torch.zeros(2, dtype=torch.float64)

    def deal(self, samples: list[Experience]) -> tuple[list[Experience], list[Experience]]:
        """The samples of a bucket that the first optimizer step has, and the others, which wait from now on."""
        if not self.waiting:
            return samples, []
        first, *others = parts = deal_at_random(samples, self._sizes)
        for waiting, part in zip(self.waiting, others):
            waiting += part
        self._sizes = [size + len(part) for size, part in zip(self._sizes, parts)]
        return first, [sample for part in others for sample in part]

    def add(self, status: dict) -> None:
        """A micro-batch was trained, of which OpenRLHF's training step says this."""
        self._weights |= status["weights"]
        self._count += torch.tensor([status["num_action_tokens"], status["num_samples"]], dtype=torch.float64)

    def end_training(self, status: dict[str, float]) -> None:
        """The samples of a bucket, or of a further optimizer step, were trained; these are OpenRLHF's scalars of them."""
        self._statuses.append((status, self._count))
        self._count = torch.zeros(2, dtype=torch.float64)

    def merged(self, strategy: Any) -> dict[str, float]:
        """Means over the rollout's samples or action tokens, the optimizer's seconds, the last learning rate and norm.

        Every rank has to call this.
        """
        counts = strategy.all_reduce(torch.stack([count for _, count in self._statuses]), op="sum")
        merged = dict(self._statuses[-1][0])
        for name in merged:
            weight = self._weights.get(name)
            if weight is None:
                continue
            shares = counts[:, 0 if weight == "token" else 1]
            values = torch.tensor([status[name] for status, _ in self._statuses], dtype=torch.float64)
            merged[name] = (values @ shares / shares.sum()).item()
        if OPTIMIZER_SECONDS in merged:  # on rank 0
            merged[OPTIMIZER_SECONDS] = sum(status[OPTIMIZER_SECONDS] for status, _ in self._statuses)
        return merged
