"""Quantiles of histograms: by hand, against dense matrices, and their deviations against noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from dpsqlp.accounting import Process
from dpsqlp.sql.quantiles import coarse_size, quantiles
from support.quick import QUICK

EDGES = (0.0, 10.0, 20.0, 30.0, 40.0)


def histogram(edges: tuple[float, ...] = EDGES, coarse: int = 0) -> Process:
    return Process("h", "histogram", 0, edges=edges, coarse=coarse)


def quantile(totals: list[float], *fractions: float, sd: float = 0.0) -> list[float]:
    found, _ = quantiles(np.array([totals], float), histogram(), np.array([sd]), fractions)
    return [float(value) for value in found[0]]


def sums(process: Process) -> np.ndarray:
    """The matrix from bins to totals."""
    rows = [np.eye(process.bins)]
    if process.coarse:
        groups = range(0, process.bins, process.coarse)
        at = np.arange(process.bins)
        rows.append(
            np.array([(at >= g) & (at < g + process.coarse) for g in groups], dtype=np.float64)
        )
    return np.concatenate(rows)


def test_inside_a_bin_values_are_spread_evenly() -> None:
    assert quantile([10, 10, 10, 10], 0.1, 0.25, 0.5, 0.9) == [4.0, 10.0, 20.0, 36.0]
    assert quantile([0, 8, 0, 2], 0.1, 0.8, 0.9) == [11.25, 20.0, 35.0]


def test_counts_below_zero_are_pooled() -> None:
    """F is 10, 4, 14, 20: the first two become 7."""
    assert quantile([10, -6, 10, 6], 0.25, 0.35, 0.5) == pytest.approx([50 / 7, 10.0, 20 + 30 / 7])


def test_no_quantile_of_a_total_that_is_not_positive() -> None:
    assert all(map(math.isnan, quantile([5, -5, 3, -3], 0.1, 0.5)))
    assert all(map(math.isnan, quantile([5, -9, 3, -3], 0.5)))


@settings(max_examples=30 if QUICK else 200, deadline=None, derandomize=True)
@given(
    bins=st.integers(2, 20),
    coarse=st.sampled_from([0, 2, 3, 5]),
    seed=st.integers(0, 10**6),
)
def test_the_fit_is_that_of_dense_matrices(bins: int, coarse: int, seed: int) -> None:
    """Least squares from all totals, then scipy's isotonic regression of the sums, clipped; and the
    deviation from the covariance of the estimates.
    """
    process = histogram(tuple(map(float, range(bins + 1))), coarse if coarse < bins else 0)
    rng = np.random.default_rng(seed)
    matrix = sums(process)
    totals = matrix @ rng.poisson(20, bins) + rng.normal(0, 15, len(matrix))
    inverse = np.linalg.inv(matrix.T @ matrix)
    below = np.concatenate([[0], np.cumsum(inverse @ matrix.T @ totals)])
    fractions = (0.05, 0.3, 0.5, 0.77, 0.95)
    found, spread = quantiles(totals[None], process, np.array([15.0]), fractions)
    if below[-1] <= 0:
        assert np.isnan(found).all()
        return
    below[1:-1] = np.clip(isotonic_regression(below[1:-1]).x if bins > 1 else [], 0, below[-1])

    def reach(rank: float) -> float:
        if rank <= 0:
            return 0.0
        k = int(np.argmax(below >= rank)) if rank < below[-1] else bins
        part = (rank - below[k - 1]) / (below[k] - below[k - 1]) if rank < below[-1] else 1.0
        return k - 1 + part

    for fraction, value, sd in zip(fractions, found[0], spread[0], strict=True):
        expected = reach(fraction * below[-1])
        assert value == pytest.approx(expected, abs=1e-6)
        weights = np.clip(value - np.arange(bins), 0, 1) - fraction
        off = 15.0 * math.sqrt(weights @ inverse @ weights)
        rank = fraction * below[-1]
        assert sd == pytest.approx((reach(rank + off) - reach(rank - off)) / 2, abs=1e-5)


@pytest.mark.parametrize("coarse", [0, 4])
def test_two_deviations_hold_the_truth(coarse: int) -> None:
    """Of noisy histograms of one smooth distribution, 95 % as for a normal error."""
    rng = np.random.default_rng(5)
    edges = tuple(np.linspace(0, 1, 17))
    process = histogram(edges, coarse)
    counts = 5000 * np.diff(np.array(edges) ** 1.5)
    rows = 4000
    totals = sums(process) @ counts + rng.normal(0, 60, (rows, process.width))
    fractions = (0.1, 0.25, 0.5, 0.9)
    found, spread = quantiles(totals, process, np.full(rows, 60.0), fractions)
    truth = np.array(fractions) ** (1 / 1.5)
    inside = (np.abs(found - truth) <= 2 * spread).mean(axis=0)
    assert (inside >= 0.9).all(), inside


def test_coarse_bins_lower_the_error() -> None:
    """The average over the ranks of the deviation of F(k) - k/B F(B); in deviations of a count."""
    for bins, flat, two in ((8, 1.22, 1.18), (16, 1.68, 1.48), (32, 2.35, 1.83), (64, 3.29, 2.19)):
        edges = tuple(map(float, range(bins + 1)))
        for coarse, expected in ((0, flat), (coarse_size(bins), two)):
            process = histogram(edges, coarse)
            matrix = sums(process)
            covariance = process.depth * np.linalg.inv(matrix.T @ matrix)
            at, ranks = np.arange(bins), range(1, bins)
            weights = np.array([np.where(at < k, 1 - k / bins, -k / bins) for k in ranks])
            variances = np.einsum("ki,ij,kj->k", weights, covariance, weights)
            assert math.sqrt(variances.mean()) == pytest.approx(expected, abs=0.01)
    assert coarse_size(7) == 0
