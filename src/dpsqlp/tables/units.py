"""Unit state: what each unit has contributed so far.

Per unit 32 bytes (id, kept records, votes, pairs, a place in the slab), and per kept (key, window)
pair 8 bytes in the unit's own block of the slab: a 32-bit tag of the pair, the trigger index of
the last vote there, the number of kept records. Blocks are small hash tables whose size follows
from the number of pairs.

Privacy contract: pairs of two units never meet. Two pairs of one unit with equal tags are merged:
their records share `c` and their votes share the latest trigger, which drops more, never less.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.prf import Words
from dpsqlp.tables.table import ID_FIELDS, Table, grown

UNIT_ROW = np.dtype(
    [
        *ID_FIELDS,
        ("kept", np.uint32),
        ("votes", np.uint32),
        ("pairs", np.uint32),
        ("block", np.uint32),  # where the unit's block begins in the slab
    ]
)


_SMALL_LOG2 = np.array([1, 1, 1, 2, 2, 3, 3, 3, 3])


class UnitTable(Table):
    """Units of one shard and period."""

    __slots__ = ("free", "scratch", "slab", "slab_used")

    def __init__(self) -> None:
        super().__init__(UNIT_ROW)
        self.slab = np.zeros(64, np.uint64)
        self.slab_used = np.zeros(2, np.int64)  # entries in use; a place that keeps reads alive
        self.free = np.full(33, -1, np.int64)  # by log2 of the block size: a list through the slab
        self.scratch = np.zeros(16, np.int32)  # all zero between calls

    @property
    def nbytes(self) -> int:
        """Memory held, spare room included."""
        return super().nbytes + self.slab.nbytes + self.scratch.nbytes

    def reserve_scratch(self) -> NDArray[np.int32]:
        """One zero per row."""
        self.scratch = grown(self.scratch, len(self.rows))
        return self.scratch

    def grow_slab(self) -> None:
        """More room for blocks."""
        if len(self.slab) >= 1 << 32:
            raise MemoryError("A unit shard holds 2^32 slab entries at most; use more shards.")
        self.slab = grown(self.slab, len(self.slab) + 1)

    def redo(
        self,
        new_units: Words,
        rows: NDArray[np.int64],
        entries: NDArray[np.uint64],
        votes: NDArray[np.int64],
    ) -> None:
        """Do again what `bound` did: one kept record per entry, in any order."""
        self.insert(new_units)
        done = 0
        while done < len(rows):
            done = _redo(
                self.rows, self.slab, self.slab_used, self.free, done, rows, entries, votes
            )
            if done < len(rows):
                self.grow_slab()

    def contents(self) -> list[NDArray[Any]]:
        """Ids, kept and vote counts and number of pairs per row, and all entries by row."""
        rows = self.rows[: self.size]
        pairs = rows["pairs"]
        entries = np.empty(int(pairs.sum(dtype=np.int64)), np.uint64)
        _gather_entries(rows, self.slab, entries)
        return [self.ids(np.arange(self.size)), rows["kept"], rows["votes"], pairs, entries]

    @classmethod
    def restore(cls, contents: list[NDArray[Any]]) -> UnitTable:
        """A table with the contents of another."""
        ids, kept, votes, pairs, entries = contents
        table = cls()
        table.redo(ids, np.repeat(np.arange(len(ids)), pairs), entries, np.zeros(len(entries), int))
        table.rows["kept"][: len(ids)] = kept
        table.rows["votes"][: len(ids)] = votes
        return table


@numba.njit(nogil=True, cache=True)
def _block_log2(pairs):  # type: ignore[no-untyped-def]
    """Log2 of the block size for a number of pairs: 2, 4 or 8, then at most 3/4 full."""
    if pairs <= 8:
        return _SMALL_LOG2[pairs]  # a look-up, since a loop of unforeseeable length is slow
    log2 = np.int64(4)
    while 3 << log2 < 4 * pairs:
        log2 += 1
    return log2


@numba.njit(nogil=True, cache=True)
def _probe(slab, block, log2, tag):  # type: ignore[no-untyped-def]
    """Where the tag stands in the block, or the empty place for it, or -1 if it is full."""
    mask = (1 << log2) - 1
    for step in range(1 << log2):
        at = block + ((tag + step) & mask)
        if slab[at] == 0 or slab[at] >> np.uint64(32) == np.uint64(tag):
            return at
    return -1


@numba.njit(nogil=True, cache=True)
def _allocate(slab, used, free, log2):  # type: ignore[no-untyped-def]
    """An empty block, or -1 if the slab is full."""
    block = free[log2]
    if block >= 0:
        free[log2] = np.int64(slab[block]) - 1
        slab[block] = 0
        return block
    if used[0] + (1 << log2) > len(slab):
        return -1
    block = used[0]
    used[0] += 1 << log2
    return block


@numba.njit(nogil=True, cache=True)
def place(units, slab, used, free, row, tag):  # type: ignore[no-untyped-def]
    """Where a unit's entry with this tag stands; -1 if the slab has no room for a new one.

    A new entry has no count yet: the caller gives it one.
    """
    pairs = np.int64(units[row].pairs)
    at = np.int64(-1)
    log2 = np.int64(0)
    if pairs > 0:
        log2 = _block_log2(pairs)
        at = _probe(slab, np.int64(units[row].block), log2, tag)
        if at >= 0 and slab[at] != 0:
            return at
    wanted = _block_log2(pairs + 1)
    if pairs == 0 or wanted > log2:
        block = _allocate(slab, used, free, wanted)
        if block < 0:
            return -1
        if pairs > 0:
            old = np.int64(units[row].block)
            for source in range(old, old + (1 << log2)):
                if slab[source] != 0:
                    moved = np.int64(slab[source] >> np.uint64(32))
                    slab[_probe(slab, block, wanted, moved)] = slab[source]
                    slab[source] = 0
            slab[old] = np.uint64(free[log2] + 1)
            free[log2] = old
        units[row].block = block
        at = _probe(slab, block, wanted, tag)
    units[row].pairs = pairs + 1
    slab[at] = np.uint64(tag) << np.uint64(32)
    return at


@numba.njit(nogil=True, cache=True)
def _redo(units, slab, used, free, done, rows, entries, votes):  # type: ignore[no-untyped-def]
    for k in range(done, len(rows)):
        at = place(units, slab, used, free, rows[k], np.int64(entries[k] >> np.uint64(32)))
        if at < 0:
            return k
        slab[at] = max(slab[at], entries[k])  # a pair's entries only grow
        units[rows[k]].kept += 1
        units[rows[k]].votes += votes[k]
    return len(rows)


@numba.njit(nogil=True, cache=True)
def _gather_entries(units, slab, entries):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(len(units)):
        pairs = np.int64(units[row].pairs)
        if pairs == 0:
            continue
        block = np.int64(units[row].block)
        for place in range(block, block + (1 << _block_log2(pairs))):
            if slab[place] != 0:
                entries[at] = slab[place]
                at += 1
