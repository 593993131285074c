"""Shard tables as files: snapshots, and deltas of what one trigger changed.

A unit delta holds the new units, the new keys, the slab entry of each kept record, and the units of
dropped records that diagnostics count. A key delta holds the changed rows; a snapshot of keys is a
delta of all rows. The index, the due rows and the noise states follow from the rows: they are not
stored, but computed again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.stages.bound import Bounded
from dpsqlp.tables.keys import KEY_ROW, KeyTable

Arrays = list[NDArray[Any]]
_STATE_WORDS = KEY_ROW.itemsize // 8 - 2  # of a key's row, without its id


def unit_delta(bounded: Bounded) -> Arrays:
    """The changes of a unit table."""
    return [
        bounded.new_units,
        bounded.new_keys,
        bounded.units,
        bounded.entries,
        bounded.votes,
        bounded.dropped_units,
    ]


def key_delta(table: KeyTable, changed: NDArray[np.int64], known: int) -> Arrays:
    """The rows that changed, and the rows after the first `known`."""
    new = np.arange(known, len(table))
    rows = np.concatenate([changed[changed < known], new])
    ids = table.ids(new)
    texts = table.texts(new)
    states = np.empty((len(rows), _STATE_WORDS), np.uint64)
    totals = np.empty((len(rows), table.totals.shape[1]), np.int64)
    _gather(table.words(), table.totals, rows, states, totals)
    return [
        rows.astype(np.uint32),
        states,
        totals,
        ids,
        np.diff(texts.offsets).astype(np.uint32),
        texts.data,
    ]


def redo_keys(table: KeyTable, delta: Arrays, step: int) -> None:
    """Apply a delta to a table, which continues after step `step` of its window."""
    rows, states, totals, ids, lengths, data = delta
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    table.redo(rows.astype(np.int64), states, totals, ids, Encoded(data, offsets), step)


@numba.njit(nogil=True, cache=True)
def _gather(words, totals, rows, states, kept_totals):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        for word in range(_STATE_WORDS):
            states[k, word] = words[rows[k], 2 + word]
        for p in range(totals.shape[1]):
            kept_totals[k, p] = totals[rows[k], p]
