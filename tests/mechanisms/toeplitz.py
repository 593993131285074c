"""The tests' reference mechanism: E = B = A^(1/2), exact and near optimal, quadratic per path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def coefficients(triggers: int) -> FloatArray:
    """f_0 = 1, f_k = f_(k-1) (2k - 1) / (2k)."""
    k = np.arange(1, triggers)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def dense(column: FloatArray) -> FloatArray:
    """The lower triangular Toeplitz matrix with this first column."""
    matrix = np.zeros((column.size, column.size))
    for j in range(column.size):
        matrix[j:, j] = column[: column.size - j]
    return matrix


def sensitivity(triggers: int) -> float:
    return float(np.sqrt(np.sum(coefficients(triggers) ** 2)))


def variance(triggers: int) -> FloatArray:
    return np.cumsum(coefficients(triggers) ** 2)
