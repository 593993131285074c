"""Unit state: what each unit has contributed so far.

Per unit 32 bytes (id, kept records, votes, pairs, a place in the slab), and per kept (key, window)
pair 8 bytes in the unit's own block of the slab: a 32-bit tag of the pair, the trigger index of
the last vote there, the number of kept records. Blocks are lists of up to eight entries, then small
hash tables; their size follows from the number of pairs.

Privacy contract: pairs of two units never meet. Two pairs of one unit with equal tags are merged:
their records share `c` and their votes share the latest trigger, which drops more, never less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


class UnitTable(Table):
    """Units of one shard and period."""

    __slots__ = ("_marks", "free", "slab", "slab_used")

    def __init__(self) -> None:
        super().__init__(UNIT_ROW)
        self.slab = np.zeros(64, np.uint64)
        self.slab_used = np.zeros(1, np.int64)  # entries in use
        self.free = np.full(33, -1, np.int64)  # by log2 of the block size: a list through the slab
        self._marks = np.zeros((1, 2), np.uint64)  # two bits per row, zero between calls

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return super().nbytes + self.slab[: self.slab_used[0]].nbytes + self._marks.nbytes

    def marks(self) -> NDArray[np.uint64]:
        """Two zero bits per row, to be left zero: small enough to stay in the cache."""
        self._marks = grown(self._marks, len(self.rows) // 64 + 1)
        return self._marks

    def grow_slab(self) -> None:
        """More room for blocks."""
        if len(self.slab) >= 1 << 32:
            raise MemoryError("A unit shard holds 2^32 slab entries at most; use more shards.")
        self.slab = grown(self.slab, len(self.slab) + 1)
