"""A BLT written out: its matrices, and its recursion one path at a time or in wider floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpsqlp.mechanisms import Blt
from mechanisms import toeplitz


def first_column(mechanism: Blt) -> np.ndarray:
    """[e], one term after the other."""
    pairs = list(zip(mechanism.theta, mechanism.decay, strict=True))
    terms = (sum(t * d ** (k - 1) for t, d in pairs) for k in range(1, mechanism.triggers))
    return np.array([1.0, *terms])


def matrices(mechanism: Blt) -> tuple[np.ndarray, np.ndarray]:
    """B = A E^-1 by inverting E; then the final row makes all columns as long as the first, and the
    last release is the shortest combination of all rows that is the sum.
    """
    triggers = mechanism.triggers
    encoder = toeplitz.dense(first_column(mechanism))
    decoder = np.tril(np.ones_like(encoder)) @ np.linalg.inv(encoder)
    lengths = np.sum(encoder**2, axis=0)
    final = np.sqrt(np.maximum(lengths[0] - lengths, 0))
    encoder = np.vstack([encoder, final])
    decoder = np.hstack([decoder, np.zeros((triggers, 1))])
    decoder[-1] = np.linalg.lstsq(encoder.T, np.ones(triggers), rcond=None)[0]
    return decoder, encoder


def recursion(mechanism: Blt, normals: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    """Paths without the final row, one in each row, from one normal per trigger. In float64 they
    have the bits of the mechanism's paths.
    """
    theta, decay = (np.array(each, dtype) for each in (mechanism.theta, mechanism.decay))
    buffers = np.zeros((theta.size, len(normals)), dtype)
    xi = np.zeros(len(normals), dtype)
    out = np.empty(normals.shape, dtype)
    for i in range(normals.shape[1]):
        w = normals[:, i].astype(dtype)
        for m in range(theta.size):
            w = w - theta[m] * buffers[m]
        buffers = decay[:, None] * buffers + w
        xi = xi + w
        out[:, i] = xi
    return out


def response(mechanism: Blt) -> np.ndarray:
    """The first column of B without the final row, and read backwards its last row."""
    impulse = np.zeros((1, mechanism.triggers))
    impulse[0, 0] = 1
    column: np.ndarray = recursion(mechanism, impulse)[0]
    return column
