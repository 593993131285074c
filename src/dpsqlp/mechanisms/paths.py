"""Evaluate noise paths of many keys, a cache-sized chunk at a time.

A path is xi of one (purpose, key, window, round), at sigma = 1. It does not depend on data, so it
may be evaluated in advance, discarded and evaluated again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.prf import Array128
from dpsqlp.mechanisms.base import FloatArray, IntArray, Mechanism

_CHUNK_DRAWS = 1 << 14  # 256 KiB of blocks: they stay in the second-level cache
_CHUNK_ROWS_MIN = 8  # blt interleaves rows


def paths(
    mechanism: Mechanism,
    noise: Noise,
    seeds: Array128,
    start: IntArray,
    stop: IntArray,
    state: FloatArray,
) -> Iterator[tuple[slice, FloatArray, IntArray]]:
    """Continue row r's path from trigger start[r] to stop[r] >= start[r], updating `state`.

    Yields (rows, xi, offsets): xi of triggers start + 1 .. stop of the chunk's row k is
    xi[offsets[k] : offsets[k + 1]].
    """
    first, last = mechanism.draws(start), mechanism.draws(stop)
    ends = np.cumsum(last - first + 1)
    begin = 0
    while begin < len(start):
        passed = ends[begin - 1] if begin else 0
        end = int(np.searchsorted(ends, passed + _CHUNK_DRAWS, side="right"))
        end = min(max(end, begin + _CHUNK_ROWS_MIN), len(start))
        rows = slice(begin, end)
        normals, normal_offsets = noise.draw(seeds[rows], first[rows], last[rows])
        offsets = np.zeros(end - begin + 1, np.int64)
        np.cumsum(stop[rows] - start[rows], out=offsets[1:])
        xi = np.empty(offsets[-1], np.float64)
        mechanism.walk(normals, normal_offsets, start[rows], state[rows], xi, offsets)
        yield rows, xi, offsets
        begin = end


def path_ends(
    mechanism: Mechanism,
    noise: Noise,
    seeds: Array128,
    start: IntArray,
    stop: IntArray,
    state: FloatArray,
) -> FloatArray:
    """xi(stop) of every row; stop > start."""
    values = np.empty(len(start), np.float64)
    for rows, xi, offsets in paths(mechanism, noise, seeds, start, stop, state):
        values[rows] = xi[offsets[1:] - 1]
    return values
