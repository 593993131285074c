"""Shard tables as files: snapshots, and deltas of what one trigger changed.

A unit delta says what `bound` did (new units, and each kept record's slab entry), a key delta what
the changed rows are now. Key texts are concealed. What follows from the rows (the index, the due
rows, noise states) is not stored but made anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.conceal import Concealer
from dpsqlp.stages.bound import Bounded, redo, restore
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.units import UnitTable

Arrays = list[NDArray[Any]]


def unit_delta(bounded: Bounded) -> Arrays:
    """What a trigger did to a unit table."""
    return [
        bounded.new_units,
        bounded.units.astype(np.uint32),
        bounded.entries,
        bounded.votes.astype(np.uint8),
    ]


def restore_units(snapshot: Arrays | None, deltas: Sequence[Arrays]) -> UnitTable:
    """The unit table of a snapshot and the deltas after it."""
    table = UnitTable() if snapshot is None else restore(snapshot)
    for new_units, rows, entries, votes in deltas:
        redo(table, new_units, rows, entries, votes)
    return table


def key_delta(
    table: KeyTable, changed: NDArray[np.int64], known: int, concealer: Concealer
) -> Arrays:
    """The rows that changed or that are new since there were `known`."""
    new = np.arange(known, len(table))
    rows = np.concatenate([changed[changed < known], new])
    texts = concealer.conceal(table.ids(new), table.texts(new))
    return [
        rows.astype(np.uint32),
        table.rows[rows],
        table.totals[rows],
        np.diff(texts.offsets).astype(np.uint32),
        texts.data,
    ]


def restore_keys(
    table: KeyTable, deltas: Sequence[Arrays], index: int, concealer: Concealer
) -> None:
    """Fill an empty key table from deltas, up to a trigger index of its window."""
    for rows, contents, totals, lengths, data in deltas:
        size = len(lengths)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        new = contents[len(rows) - size :]  # the new rows come last
        ids = np.stack([new["id0"], new["id1"]], axis=1)
        table.redo(rows, contents, totals, concealer.conceal(ids, Encoded(data, offsets)))
    table.restored(index)
