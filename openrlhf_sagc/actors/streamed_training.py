"""Inside the policy's actors: a step's gradients are accumulated in buckets of groups, while other groups still decode.

The optimizer steps once, with the last bucket. Until then nobody knows how many tokens the loss is a mean over. So every
bucket's loss is a sum over a constant, and the right divisor enters as DeepSpeed's loss scale: the optimizer divides norm
and gradients by it before it clips them. The gradient is that of a step trained at once; sums are in another order.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from openrlhf.trainer.ppo_utils.experience import Experience


def train_bucket(model_actor, kl_ctl: float) -> float:
    """Run in a policy's actor with a bucket in its replay buffer: accumulate its gradients. Returns seconds."""
    start = time.perf_counter()
    with model_actor.trainer.buckets.held_back():
        model_actor.fit(kl_ctl)
    return time.perf_counter() - start


def join_buckets(trainer, divisor: float) -> None:
    """The samples that come next are a bucket of the step, or its last part.

    Args:
        trainer: OpenRLHF's ActorPPOTrainer, whose `training_step` is made for these samples.
        divisor: what every bucket's loss is divided by; a power of two, so that dividing rounds nothing.

    Raises:
        RuntimeError: the optimizer has no loss scale.
    """
    optimizer = trainer.actor.model.optimizer
    if not hasattr(type(optimizer), "loss_scale"):
        raise RuntimeError(
            f"--train.stream auto needs a DeepSpeed optimizer with a loss scale, which {type(optimizer).__name__} has not: "
            "use --train.stream off"
        )
    if getattr(trainer, "buckets", None) is None:
        trainer.buckets = Buckets(trainer, divisor)
    trainer.training_step = partial(trainer.buckets.training_step, trainer.training_step)


class Buckets:
    """The buckets of one step.

    Args:
        trainer, divisor: as of `join_buckets`.
    """

    def __init__(self, trainer, divisor: float) -> None:
        self._trainer, self._divisor = trainer, divisor
        self._ppo_train, trainer.ppo_train = trainer.ppo_train, self.ppo_train
        self._ends_step = True
        self._tokens = 0.0  # actions trained so far, on this rank
        self._weights: dict[str, str | None] = {}  # metric -> what it is a mean over
        # Of the buckets, each with [2] action tokens and samples of this rank.
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
        """The training step `train` of a micro-batch, which ends the optimizer's with the last one of the last bucket."""
        buffer, strategy = self._trainer.replay_buffer, self._trainer.strategy
        count = len(buffer.ends_optimizer_step)
        buffer.ends_optimizer_step = [False] * (count - 1) + [self._ends_step]
        self._tokens += experience.action_mask.sum().item()
        constant = torch.full_like(loss_batch_info["batch_num_tokens"], self._divisor / strategy.accumulated_gradient)
        info = {**loss_batch_info, "batch_num_tokens": constant}
        theirs = strategy.optimizer_step
        if buffer.ends_optimizer_step[step]:
            strategy.optimizer_step = partial(self._optimizer_step, theirs)
        try:
            status = train(experience, kl_ctl, step, info)
        finally:
            strategy.optimizer_step = theirs
        self._weights |= status["weights"]
        self._count += torch.tensor([status["num_action_tokens"], status["num_samples"]], dtype=torch.float64)
        return status

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """OpenRLHF's scalars of a bucket; with the last bucket those of the whole step."""
        self._count = torch.zeros(2, dtype=torch.float64)
        status = self._ppo_train(kl_ctl)
        self._statuses.append((status, self._count))
        if not self._ends_step:
            return status
        self._trainer.ppo_train, self._trainer.buckets = self._ppo_train, None
        return self._merged()

    def _optimizer_step(self, step, *args, **kwargs) -> None:
        """OpenRLHF's optimizer step of gradients that are still to be divided."""
        tokens = self._trainer.strategy.all_reduce(torch.tensor(self._tokens, dtype=torch.float64), op="sum").item()
        optimizer = self._trainer.actor.model.optimizer
        optimizer.loss_scale = tokens / self._divisor
        try:
            step(*args, **kwargs)
        finally:
            optimizer.loss_scale = 1.0  # the scaler is saved in checkpoints

    def _merged(self) -> dict[str, float]:
        """Means over all samples or action tokens of the step; learning rate and norm are those of its end."""
        counts = self._trainer.strategy.all_reduce(torch.stack([count for _, count in self._statuses]), op="sum")
        merged = dict(self._statuses[-1][0])
        for name in merged:
            weight = self._weights.get(name)
            if weight is None:
                continue
            shares = counts[:, 0 if weight == "token" else 1]
            values = torch.tensor([status[name] for status, _ in self._statuses], dtype=torch.float64)
            merged[name] = (values @ shares / shares.sum()).item()
        return merged
