"""The benchmark of the driver's cost runs a step of each driver, in a process of its own."""

import argparse

import driver_cost
import pytest


@pytest.mark.parametrize("name", ["ours", "unpatched"])
def test_a_step_has_seconds_in_every_part(name):
    arguments = argparse.Namespace(tokens=32, call_seconds=0.25)
    parts = driver_cost.measured_apart(name, 64, 4, arguments)
    assert parts.keys() == {"dispatch", "answers", "samples", "decisions", "experience", "ray's calls"}
    assert min(parts.values()) > 0
    assert parts["ray's calls"] % 0.25 == 0


def test_what_is_served_follows_from_the_nearest_sizes():
    sizes = [100, 1000, 10_000]
    seconds = [0.5 * size**1.1 / 1000 for size in sizes]
    assert driver_cost.exponent_of(sizes, seconds) == pytest.approx(1.1)
    assert driver_cost.served(sizes, seconds) == pytest.approx((3000 / 0.5) ** (1 / 1.1))
