"""The seconds that the policy's optimizer steps take, measured where they are made."""

import time
from typing import Any

from deepspeed.accelerator import get_accelerator

OPTIMIZER_SECONDS = "actor_optimizer_seconds"


class OptimizerClock:
    """Adds up the seconds of the optimizer steps of a step, which rank 0 reports with the training's scalars.

    Args:
        trainer: the trainer of OpenRLHF's PolicyModelActor, which from now on calls its optimizer through this clock.
    """

    def __init__(self, trainer: Any) -> None:
        self._strategy, self._seconds = trainer.strategy, 0.0
        self._optimizer_step, self._ppo_train = trainer.strategy.optimizer_step, trainer.ppo_train
        trainer.strategy.optimizer_step, trainer.ppo_train = self.optimizer_step, self.ppo_train

    def optimizer_step(self, *args, **kwargs) -> None:
        """The strategy's, which does next to nothing in a micro-batch that does not end an optimizer step."""
        # The backward pass may still run on a GPU. Waiting costs nothing: OpenRLHF reads scalars off it right after.
        get_accelerator().synchronize()
        started = time.perf_counter()
        self._optimizer_step(*args, **kwargs)
        get_accelerator().synchronize()
        self._seconds += time.perf_counter() - started

    def ppo_train(self, *args, **kwargs) -> dict[str, float]:
        """The trainer's, with the seconds since the last call."""
        status = self._ppo_train(*args, **kwargs)
        seconds, self._seconds = self._seconds, 0.0
        return {**status, OPTIMIZER_SECONDS: seconds} if self._strategy.is_rank_0() else status


def time_optimizer(trainer: Any) -> None:
    """Give the trainer a clock, if it has none yet."""
    if not hasattr(trainer, "optimizer_clock"):
        trainer.optimizer_clock = OptimizerClock(trainer)
