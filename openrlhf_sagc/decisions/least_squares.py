"""Least squares with coefficients that are not negative."""

from itertools import product

import numpy as np


def least_squares(normal_FF: np.ndarray, moment_F: np.ndarray) -> np.ndarray:
    """The x >= 0 with the least x'Nx / 2 - m'x, for a positive definite N.

    It is the minimum over those features alone whose x is above 0. With so few features all their sets are tried.
    """
    best_F, least = np.zeros(len(moment_F)), 0.0
    for used in product((False, True), repeat=len(moment_F)):
        places = np.flatnonzero(used)
        found = np.linalg.solve(normal_FF[np.ix_(places, places)], moment_F[places])
        height = -float(found @ moment_F[places]) / 2
        if height < least and (found >= 0).all():
            best_F, least = np.zeros(len(moment_F)), height
            best_F[places] = found
    return best_F
