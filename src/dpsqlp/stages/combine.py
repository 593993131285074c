"""combine: one row per (key, window, prev) instead of one per record.

Sums of integers modulo 2^64, so any order and any partial grouping within a trigger give the same
result; groups can be combined again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Words
from dpsqlp.stages.batch import Records
from dpsqlp.stages.bound import Bounded


@dataclass(frozen=True, slots=True)
class Groups:
    """What a trigger adds to keys."""

    key: Words
    key_text: Encoded
    window: NDArray[np.int64]
    prev: NDArray[np.int64]
    votes: NDArray[np.int64]
    values: NDArray[np.int64]  # (groups, processes)

    def __len__(self) -> int:
        return len(self.window)

    def subset(self, rows: NDArray[np.int64]) -> Groups:
        """These rows, given in ascending order."""
        if len(rows) == len(self):
            return self
        return Groups(
            self.key[rows],
            self.key_text.take(rows),
            self.window[rows],
            self.prev[rows],
            self.votes[rows],
            self.values[rows],
        )


def combine(records: Records, bounded: Bounded) -> Groups:
    """Group the kept records."""
    kept = bounded.kept
    return _grouped(
        records.key[kept],
        records.window[kept],
        bounded.prev,
        bounded.votes,
        bounded.values,
        records.text[kept],
        records.key_text,
    )


def merge(parts: Sequence[Groups]) -> Groups:
    """Group partial groups again."""
    if len(parts) == 1:
        return parts[0]
    texts = Encoded.concatenate([part.key_text for part in parts])
    return _grouped(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.window for part in parts]),
        np.concatenate([part.prev for part in parts]),
        np.concatenate([part.votes for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.arange(len(texts)),
        texts,
    )


def _grouped(
    key: Words,
    window: NDArray[np.int64],
    prev: NDArray[np.int64],
    votes: NDArray[np.int64],
    values: NDArray[np.int64],
    text_rows: NDArray[np.int64],
    texts: Encoded,
) -> Groups:
    group = np.empty(len(window), np.int64)
    leaders = _assign(key, window, prev, group)
    total_votes = np.zeros(len(leaders), np.int64)
    total_values = np.zeros((len(leaders), values.shape[1]), np.int64)
    _add(group, votes, values, total_votes, total_values)
    return Groups(
        key[leaders],
        texts.take(text_rows[leaders]),
        window[leaders],
        prev[leaders],
        total_votes,
        total_values,
    )


@numba.njit(nogil=True, cache=True)
def _assign(key, window, prev, group):  # type: ignore[no-untyped-def]
    """Number the groups in order of appearance; returns the first record of each."""
    size = 16
    while size < 2 * len(window):
        size *= 2
    slots = np.full(size, -1, np.int64)
    leaders = np.empty(len(window), np.int64)
    groups = 0
    for k in range(len(window)):
        mixed = key[k, 0] ^ (np.uint64(window[k]) * np.uint64(0x9E3779B97F4A7C15))
        mixed ^= np.uint64(prev[k]) * np.uint64(0xD6E8FEB86659FD93)
        at = np.int64(mixed >> np.uint64(1)) & (size - 1)
        while True:
            g = slots[at]
            if g < 0:
                slots[at] = groups
                leaders[groups] = k
                group[k] = groups
                groups += 1
                break
            leader = leaders[g]
            if (
                key[leader, 0] == key[k, 0]
                and key[leader, 1] == key[k, 1]
                and window[leader] == window[k]
                and prev[leader] == prev[k]
            ):
                group[k] = g
                break
            at = (at + 1) & (size - 1)
    return leaders[:groups].copy()


@numba.njit(nogil=True, cache=True)
def _add(group, votes, values, total_votes, total_values):  # type: ignore[no-untyped-def]
    for k in range(len(group)):
        total_votes[group[k]] += votes[k]
        for p in range(values.shape[1]):
            total_values[group[k], p] += values[k, p]
