"""What the policy's actor reports of its optimizer steps."""

import time
from types import SimpleNamespace

import pytest

from openrlhf_sagc.actors.optimizer_clock import OPTIMIZER_SECONDS, time_optimizer


class Trainer:
    """Makes `steps` optimizer steps of 0.02 s, each after a backward pass of 0.02 s."""

    def __init__(self, rank=0):
        self.made = []
        self.strategy = SimpleNamespace(optimizer_step=self.step, is_rank_0=lambda: rank == 0)

    def step(self, *args, **kwargs):
        time.sleep(0.02)
        self.made.append((args, kwargs))

    def ppo_train(self, kl_ctl, steps=3):
        for _ in range(steps):
            time.sleep(0.02)
            self.strategy.optimizer_step("optimizer", "model", "scheduler", name="actor")
        return {"policy_loss": kl_ctl}


def test_a_steps_optimizer_seconds_are_reported():
    trainer = Trainer()
    for _ in range(2):  # every step asks for a clock
        time_optimizer(trainer)
        started = time.perf_counter()
        status = trainer.ppo_train(0.5)
        assert status["policy_loss"] == 0.5
        assert 0.06 <= status[OPTIMIZER_SECONDS] <= time.perf_counter() - started - 0.06
    assert trainer.made == [(("optimizer", "model", "scheduler"), {"name": "actor"})] * 6


def test_steps_outside_of_the_training_count_for_the_next():
    trainer = Trainer()
    time_optimizer(trainer)
    trainer.strategy.optimizer_step()
    assert trainer.ppo_train(0.0, steps=0)[OPTIMIZER_SECONDS] >= 0.02
    assert trainer.ppo_train(0.0, steps=0)[OPTIMIZER_SECONDS] == 0.0


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_reports(rank):
    trainer = Trainer(rank)
    time_optimizer(trainer)
    assert (OPTIMIZER_SECONDS in trainer.ppo_train(0.0)) == (rank == 0)
