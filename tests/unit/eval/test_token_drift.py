"""A parameter that only long prompts move, under Adam with noise and a bound of the norm that binds."""

import pytest
from token_drift import BOUND, NOISE, PARAMETERS, PLAIN, TAIL, drift


@pytest.mark.parametrize("signal", [0.1, 0.3], ids=["noise", "less noise"])
def test_tail_batching_moves_it_as_plain_steps_do(signal):
    plain = drift(signal, PLAIN, "by round", frames=80)
    assert drift(signal, TAIL, "weighed", frames=80) == pytest.approx(plain, rel=0.1)
    assert drift(signal, TAIL, "by round", frames=80) < 0.6 * plain


def test_the_bound_binds_in_a_third_of_the_plain_steps():
    """Norms are log-normal around the noise, with a log-sd of 0.5: a third of them is above exp(0.43 * 0.5) times the median."""
    assert BOUND / (NOISE * PARAMETERS**0.5) == pytest.approx(1.24, abs=0.02)
