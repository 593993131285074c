"""Quantiles of a noisy histogram, with the standard deviation that the noise gives them.

Implements, for the noisy totals of one key:

1. The best linear estimate of the bins. Without coarse bins these are the totals. A coarse bin of
   g bins with the sum x, whose own total is y, adds (y - x) / (g + 1) to each: all totals have the
   same variance sigma^2, so the bins then have the covariance sigma^2 (I - 11'/(g + 1)).
2. F(k), the sum of the first k bins, made monotone: the closest increasing sequence in the sense of
   least squares (pool adjacent violators), then clipped to [0, N] with N = F(B).
3. The quantile at f is where F, linear inside a bin, first reaches f N.
4. Its deviation is half of the distance between the quantiles at the ranks f N - d and f N + d,
   where d is the deviation of F - f N at the quantile.

Where N <= 0 there is no quantile. All of it is post-processing of released totals. What is lost
inside a bin is not part of the deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import Process

Floats = NDArray[np.float64]
_BINS_WITHOUT = 8  # with fewer bins, coarse ones would add more noise than they take away


def coarse_size(bins: int) -> int:
    """How many bins a coarse bin has, where only quantiles are asked for."""
    return 0 if bins < _BINS_WITHOUT else isqrt(bins)


def quantiles(
    totals: Floats, process: Process, deviations: Floats, fractions: Sequence[float]
) -> tuple[Floats, Floats]:
    """The quantiles of each row and their deviations: (rows, fractions), NaN where there are none.

    `totals` are the noisy ones, (rows, process.width); `deviations` that of a row's totals.
    """
    found = np.full((len(totals), len(fractions)), np.nan)
    spread = np.full_like(found, np.nan)
    edges, shares = np.array(process.edges), np.array(fractions)
    _quantiles(
        np.ascontiguousarray(totals), process.coarse, deviations, edges, shares, found, spread
    )
    return found, spread


@numba.njit(nogil=True, cache=True)
def _quantiles(totals, coarse, deviations, edges, fractions, found, spread):  # type: ignore[no-untyped-def]
    bins = len(edges) - 1
    below = np.empty(bins + 1)  # F(0), ..., F(B)
    weight = np.empty(bins + 1, np.int64)  # of pooled blocks
    for row in range(len(totals)):
        _add_up(totals[row], coarse, bins, below)
        if below[bins] <= 0:
            continue
        _make_monotone(below, weight)
        for number in range(len(fractions)):
            rank = fractions[number] * below[bins]
            k, value = _reach(below, edges, rank)
            part = (value - edges[k - 1]) / (edges[k] - edges[k - 1])
            variance = _variance(k, part, fractions[number], coarse, bins)
            off = deviations[row] * np.sqrt(variance)
            found[row, number] = value
            _, low = _reach(below, edges, rank - off)
            _, high = _reach(below, edges, rank + off)
            spread[row, number] = (high - low) / 2


@numba.njit(nogil=True, cache=True)
def _add_up(totals, coarse, bins, below):  # type: ignore[no-untyped-def]
    """F of the best linear estimate of the bins."""
    below[0] = 0.0
    size = bins if coarse == 0 else coarse
    for begin in range(0, bins, size):
        end = min(begin + size, bins)
        share = 0.0
        if coarse > 0:
            inside = 0.0
            for k in range(begin, end):
                inside += totals[k]
            share = (totals[bins + begin // coarse] - inside) / (end - begin + 1)
        for k in range(begin, end):
            below[k + 1] = below[k] + totals[k] + share


@numba.njit(nogil=True, cache=True)
def _make_monotone(below, weight):  # type: ignore[no-untyped-def]
    """Pool adjacent violators among F(1), ..., F(B - 1), then clip; F(0) and F(B) stay."""
    last = len(below) - 1
    blocks = 0  # their means are in below[1 : blocks + 1]
    for k in range(1, last):
        mean, count = below[k], 1
        while blocks > 0 and below[blocks] > mean:
            total = weight[blocks] + count
            mean = (mean * count + below[blocks] * weight[blocks]) / total
            count = total
            blocks -= 1
        blocks += 1
        below[blocks], weight[blocks] = mean, count
    at = last
    for block in range(blocks, 0, -1):  # from the end: no mean is overwritten before it is read
        mean = min(max(below[block], 0.0), below[last])
        for _ in range(weight[block]):
            at -= 1
            below[at] = mean


@numba.njit(nogil=True, cache=True)
def _reach(below, edges, rank):  # type: ignore[no-untyped-def]
    """The bin, from 1, and the place in which F first reaches a rank."""
    last = len(edges) - 1
    if rank <= 0:
        return 1, edges[0]
    if rank >= below[last]:
        return last, edges[last]
    k = 1
    while below[k] < rank:
        k += 1
    part = (rank - below[k - 1]) / (below[k] - below[k - 1])
    return k, edges[k - 1] + part * (edges[k] - edges[k - 1])


@numba.njit(nogil=True, cache=True)
def _variance(k, part, fraction, coarse, bins):  # type: ignore[no-untyped-def]
    """Of F - fraction F(B) at a part of the bin k, for totals of variance 1."""
    size = bins if coarse == 0 else coarse
    variance = 0.0
    for begin in range(0, bins, size):
        end = min(begin + size, bins)
        together = 0.0
        for b in range(begin + 1, end + 1):
            weight = (1.0 if b < k else part if b == k else 0.0) - fraction
            variance += weight * weight
            together += weight
        if coarse > 0:
            variance -= together * together / (end - begin + 1)
    return variance
