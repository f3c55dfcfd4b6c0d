"""What is measured of optimizer steps."""

import time

from openrlhf_sagc.training.optimizer_clock import OptimizerClock


def test_seconds_of_steps_add_up_until_they_are_taken():
    clock = OptimizerClock()
    started = time.perf_counter()
    for _ in range(3):
        time.sleep(0.02)
        with clock.runs():
            time.sleep(0.02)
    assert 0.06 <= clock.take() <= time.perf_counter() - started - 0.06
    assert clock.take() == 0.0
