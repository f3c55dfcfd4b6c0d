"""Least squares whose coefficients are not negative."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from openrlhf_sagc.decisions.least_squares import least_squares


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_it_is_the_least(seed, features):
    """Against scipy's."""
    generator = np.random.default_rng(seed)
    rows, goal = generator.standard_normal((12, features)), generator.standard_normal(12)
    assert least_squares(rows.T @ rows, rows.T @ goal) == pytest.approx(nnls(rows, goal)[0], abs=1e-6)
