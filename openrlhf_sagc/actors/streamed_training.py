"""Inside the policy's actors: a rollout is trained in buckets while groups decode, or its optimizer steps one by one.

The first optimizer step ends with the last bucket. Until then nobody knows how many tokens the loss is a mean over. So every
bucket's loss is a sum over a constant, and the right divisor enters as DeepSpeed's loss scale: the optimizer divides norm
and gradients by it before it clips them. The gradient is that of a step trained at once; sums are in another order.

Where a rollout has several optimizer steps, the samples of every bucket are dealt out to them at random. Those of the
first step are trained at once. The others get their old log-probabilities, and wait for their step.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.actors.mini_batches import deal_at_random, make_old_log_probs
from openrlhf_sagc.actors.optimizer_clock import OPTIMIZER_SECONDS


def train_bucket(model_actor, kl_ctl: float) -> float:
    """Run in a policy's actor with a bucket in its replay buffer: train what can be trained of it. Returns seconds."""
    start = time.perf_counter()
    with model_actor.trainer.buckets.held_back():
        model_actor.fit(kl_ctl)
    return time.perf_counter() - start


def join_buckets(model_actor, divisor: float | None, steps: int) -> None:
    """The samples that come next are a bucket of the rollout, or its last part.

    Args:
        model_actor: OpenRLHF's PolicyModelActor, whose trainer's `training_step` is made for these samples.
        divisor: what every bucket's loss is divided by; a power of two, so that dividing rounds nothing. None if the
            rollout is one bucket.
        steps: optimizer steps of the rollout.

    Raises:
        RuntimeError: the optimizer has no loss scale.
    """
    trainer = model_actor.trainer
    optimizer = trainer.actor.model.optimizer
    if divisor is not None and not hasattr(type(optimizer), "loss_scale"):
        raise RuntimeError(
            f"--train.stream auto needs a DeepSpeed optimizer with a loss scale, which {type(optimizer).__name__} has not: "
            "use --train.stream off"
        )
    if getattr(trainer, "buckets", None) is None:
        trainer.buckets = Buckets(model_actor, divisor, steps)
    trainer.training_step = partial(trainer.buckets.training_step, trainer.training_step)


class Buckets:
    """The buckets of one rollout; a rollout that is not streamed is one bucket.

    Args:
        model_actor, divisor, steps: as of `join_buckets`.
    """

    def __init__(self, model_actor, divisor: float | None, steps: int) -> None:
        self._model_actor, self._trainer, self._divisor = model_actor, model_actor.trainer, divisor
        self._ppo_train, self._trainer.ppo_train = self._trainer.ppo_train, self.ppo_train
        self._ends_step = True
        self._sizes = [0] * steps  # samples that each optimizer step has so far
        self._waiting: list[list[Experience]] = [[] for _ in range(steps - 1)]  # for each step after the first
        self._weights: dict[str, str | None] = {}  # metric -> what it is a mean over
        # Of what was trained at a time, each with [2] action tokens and samples of this rank.
        self._statuses: list[tuple[dict, torch.Tensor]] = []

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """While this is entered, the optimizer does not step."""
        self._ends_step = False
        try:
            yield
        finally:
            self._ends_step = True

    def training_step(self, train, experience: Experience, kl_ctl: float, step: int, loss_batch_info: dict) -> dict:
        """The training step `train` of a micro-batch; the last one ends the optimizer step if no bucket comes after."""
        buffer, strategy = self._trainer.replay_buffer, self._trainer.strategy
        count = len(buffer.ends_optimizer_step)
        buffer.ends_optimizer_step = [False] * (count - 1) + [self._ends_step]
        theirs = strategy.optimizer_step
        if self._divisor is not None:
            constant = torch.full_like(
                loss_batch_info["batch_num_tokens"], self._divisor / strategy.accumulated_gradient
            )
            loss_batch_info = {**loss_batch_info, "batch_num_tokens": constant}
            if buffer.ends_optimizer_step[step]:
                strategy.optimizer_step = partial(self._optimizer_step, theirs)
        try:
            status = train(experience, kl_ctl, step, loss_batch_info)
        finally:
            strategy.optimizer_step = theirs
        self._weights |= status["weights"]
        self._count += torch.tensor([status["num_action_tokens"], status["num_samples"]], dtype=torch.float64)
        return status

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """Train a bucket, after the last one the further optimizer steps. Returns OpenRLHF's scalars, at the end of all."""
        trainer, buffer = self._trainer, self._trainer.replay_buffer
        if self._waiting:
            first, *others = deal_at_random(buffer.items, self._sizes)
            make_old_log_probs(self._model_actor, [sample for part in others for sample in part])
            for waiting, part in zip(self._waiting, others):
                waiting += part
            self._sizes = [size + len(part) for size, part in zip(self._sizes, [first, *others])]
            buffer.items = first
        status = self._train(kl_ctl)
        if not self._ends_step:
            return status
        for waiting in self._waiting:
            buffer.items = waiting
            self._train(kl_ctl)
            waiting.clear()
        trainer.ppo_train, trainer.buckets = self._ppo_train, None
        return self._merged()

    def _train(self, kl_ctl: float) -> dict[str, float]:
        """OpenRLHF's training of what is in the replay buffer, and its scalars."""
        self._count = torch.zeros(2, dtype=torch.float64)
        status = self._ppo_train(kl_ctl)
        self._statuses.append((status, self._count))
        return status

    def _optimizer_step(self, step, *args, **kwargs) -> None:
        """OpenRLHF's optimizer step of gradients that are still to be divided."""
        tokens, _ = self._trainer.step_weights.tokens_and_samples()
        optimizer = self._trainer.actor.model.optimizer
        optimizer.loss_scale = tokens / self._divisor
        try:
            step(*args, **kwargs)
        finally:
            optimizer.loss_scale = 1.0  # the scaler is saved in checkpoints

    def _merged(self) -> dict[str, float]:
        """Means over the rollout's samples or action tokens, the optimizer's seconds, the last learning rate and norm."""
        counts = self._trainer.strategy.all_reduce(torch.stack([count for _, count in self._statuses]), op="sum")
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
