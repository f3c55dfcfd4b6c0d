"""What a group size is worth."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.objectives import Forecast, size_utilities, throughput_utilities

numbers = st.floats(1e-3, 1e3)
sizes_seen = st.lists(st.tuples(numbers, numbers, st.floats(0, 1)), min_size=1, max_size=6)


def test_size_is_the_logarithm_between_the_smallest_and_the_largest():
    assert size_utilities((4, 8, 16, 64)) == pytest.approx([0, 0.25, 0.5, 1])
    assert size_utilities((8,)) == [0]


def test_without_a_limit_that_binds_the_fastest_size_has_utility_0_and_the_others_less():
    forecasts = [Forecast(90, 10, 0), Forecast(100, 10, 0), Forecast(120, 20, 0)]
    assert throughput_utilities(forecasts, [0.1, 0.2, 0.3], 0.5) == pytest.approx([-0.1, 0.0, (120 - 200) / 100])


def test_a_mix_that_just_meets_the_limit_has_utility_0():
    forecasts = [Forecast(50, 10, 0), Forecast(200, 20, 0)]  # 5 and 10 a second
    small, large = throughput_utilities(forecasts, [0.1, 0.5], 0.2)  # three steps of the first for one of the second
    assert 3 * small + large == pytest.approx(0)
    assert small < 0 < large


def test_where_no_size_meets_the_limit_the_smallest_stands_in():
    assert throughput_utilities([Forecast(50, 10, 0), Forecast(60, 10, 0)], [0.3, 0.5], 0.2) == pytest.approx([0, 0.2])


def test_a_size_that_is_little_known_is_tried():
    known, unknown = Forecast(100, 10, 0.0), Forecast(100, 10.2, 0.1)
    worth = throughput_utilities([known, unknown], [0.1, 0.1], 0.5)
    assert worth[1] > worth[0]


@given(sizes_seen, st.floats(0, 1))
def test_no_mix_that_meets_the_limit_is_worth_more_than_nothing(seen, limit):
    """So the mixes of largest ratio are those of largest utility (Dinkelbach)."""
    effective, seconds, probabilities = zip(*sorted(seen, key=lambda size: size[2]))
    assume(probabilities[0] <= limit)
    forecasts = [Forecast(e, s, 0) for e, s in zip(effective, seconds)]
    worth = throughput_utilities(forecasts, probabilities, limit)
    rng, best = np.random.default_rng(0), -math.inf
    mixes = [*np.eye(len(seen)), *rng.dirichlet(np.full(len(seen), 0.3), 200)]
    for mix in mixes:
        if mix @ probabilities <= limit:
            best = max(best, mix @ worth)
    assert best <= 1e-6 * max(map(abs, worth), default=1) + 1e-9
    unlimited = throughput_utilities(forecasts, probabilities, 1.0)
    assert max(unlimited) == pytest.approx(0, abs=1e-9)
    assert np.argmax(np.array(effective) / seconds) in np.flatnonzero(np.array(unlimited) >= -1e-9)


@given(sizes_seen, st.floats(0, 1), st.floats(0.1, 10))
def test_the_unit_of_seconds_and_of_samples_does_not_matter(seen, limit, factor):
    seen = sorted(seen, key=lambda size: size[2])
    probabilities = [size[2] for size in seen]
    plain = throughput_utilities([Forecast(e, s, 0.1) for e, s, _ in seen], probabilities, limit)
    scaled = throughput_utilities([Forecast(2 * e, factor * s, 0.1) for e, s, _ in seen], probabilities, limit)
    assert scaled == pytest.approx(plain, rel=1e-6, abs=1e-6 * max(1, *map(abs, plain)))
