"""A shard table in memory: fixed-width rows and an index from 128-bit id to row.

Rows are one structured array, so that a look-up touches one or two cache lines. The index uses
linear probing over 64-bit slots: the row number plus one in the low half (0: empty), and 32 bits of
the id in the high half. Rows are never removed: the whole table is dropped when its window or
period closes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.prf import Array128
from dpsqlp.kernels import kernel, prefetch

ID_FIELDS = [("id0", np.uint64), ("id1", np.uint64)]
_ID_ROW = np.dtype(ID_FIELDS)
_ROWS_MAX = (1 << 32) - 2
_COPY_BYTES = 1 << 28
_FETCH_AHEAD = 128


class Table:
    """Rows keyed by id; a set if there are no other fields. `rows[:size]` are in use. A new row is
    zero apart from its id.
    """

    __slots__ = ("_slots", "rows", "size")

    def __init__(self, dtype: np.dtype[np.void] = _ID_ROW) -> None:
        self.rows = np.zeros(16, dtype)
        self.size = 0
        self._slots = np.zeros(32, np.uint64)

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self.rows[: self.size].nbytes + self._slots.nbytes

    def ids(self, rows: NDArray[np.int64]) -> Array128:
        """The ids of rows."""
        return np.stack([self.rows["id0"][rows], self.rows["id1"][rows]], axis=1)

    def find(self, ids: Array128) -> NDArray[np.int64]:
        """The row of every id, -1 where there is none."""
        found = np.empty(len(ids), np.int64)
        _find(self._slots, self.rows, ids, found)
        return found

    def insert(self, ids: Array128) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of every id, appending missing ones; and where each new id was first seen."""
        found = self.find(ids)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            self._reserve(self.size + len(missing))
            missing = _append(self._slots, self.rows, self.size, ids, missing, found)
            self.size += len(missing)
        return found, missing

    def _reserve(self, size: int) -> None:
        if size > _ROWS_MAX:
            raise MemoryError("A shard table holds 2^32 rows at most; use more shards.")
        self.rows = grown(self.rows, size)
        if 3 * size > 2 * len(self._slots):
            self._slots = np.zeros(1 << (3 * size // 2).bit_length(), np.uint64)
            _reindex(self._slots, self.rows, self.size)


def grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array with room for `size` rows: itself, or a longer copy padded with zeros.

    A copy, not a realloc: numpy requests huge pages when it allocates, without which random access
    to a large table takes twice as long. Copies are rare: pages that were never written to take no
    memory, so the array may be much longer than needed.
    """
    if size <= len(array):
        return array
    factor = 4 if array.nbytes < _COPY_BYTES else 2
    longer = np.zeros((max(size, len(array) * factor), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@kernel
def _find(slots, rows, ids, found):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    low = np.uint64(0xFFFFFFFF)
    for begin in range(0, len(ids), _FETCH_AHEAD):
        end = min(begin + _FETCH_AHEAD, len(ids))
        for k in range(begin, end):  # independent reads: their cache misses overlap
            found[k] = np.int64(slots[ids[k, 0] & mask])
        for k in range(begin, end):
            at = ids[k, 0] & mask
            slot = np.uint64(found[k])
            while slot != 0 and slot >> np.uint64(32) != ids[k, 1] >> np.uint64(32):
                at = (at + np.uint64(1)) & mask
                slot = slots[at]
            found[k] = np.int64(slot & low) - 1
            prefetch(rows, found[k])
        for k in range(begin, end):
            if found[k] >= 0:
                row = rows[found[k]]
                if row.id0 != ids[k, 0] or row.id1 != ids[k, 1]:  # another id with the same tag
                    found[k] = _find_exactly(slots, rows, ids[k, 0], ids[k, 1])


@kernel
def _find_exactly(slots, rows, id0, id1):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    at = id0 & mask
    while slots[at] != 0:
        row = np.int64(slots[at] & np.uint64(0xFFFFFFFF)) - 1
        if rows[row].id0 == id0 and rows[row].id1 == id1:
            return row
        at = (at + np.uint64(1)) & mask
    return -1


@numba.njit(nogil=True, cache=True)
def _append(slots, rows, size, ids, missing, found):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    low = np.uint64(0xFFFFFFFF)
    first_seen = np.empty(len(missing), np.int64)
    known = size
    for number, k in enumerate(missing):
        prefetch(slots, ids[missing[min(number + _FETCH_AHEAD, len(missing) - 1)], 0] & mask)
        at = ids[k, 0] & mask
        tag = ids[k, 1] >> np.uint64(32)
        while slots[at] != 0:
            if slots[at] >> np.uint64(32) == tag:
                row = np.int64(slots[at] & low) - 1
                if rows[row].id0 == ids[k, 0] and rows[row].id1 == ids[k, 1]:
                    found[k] = row
                    break
            at = (at + np.uint64(1)) & mask
        if found[k] < 0:
            rows[size].id0 = ids[k, 0]
            rows[size].id1 = ids[k, 1]
            found[k] = size
            first_seen[size - known] = k
            size += 1
            slots[at] = (tag << np.uint64(32)) | np.uint64(size)
    return first_seen[: size - known].copy()


@numba.njit(nogil=True, cache=True)
def _reindex(slots, rows, size):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    for row in range(size):
        prefetch(slots, rows[min(row + _FETCH_AHEAD, size - 1)].id0 & mask)
        at = rows[row].id0 & mask
        while slots[at] != 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = (rows[row].id1 & np.uint64(0xFFFFFFFF00000000)) | np.uint64(row + 1)
