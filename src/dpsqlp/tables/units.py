"""Unit state: the contributions of each unit so far.

Each unit has a row of 36 bytes (id, kept records, votes, pairs, the start of its block in the slab,
and the sum of the squares of its kept records per pair). Each (key, window) pair with kept records
has 8 bytes in the unit's block: a 32-bit tag of the pair, the step of the last vote there, and the
number of kept records. A block is a list of up to eight entries, then a small hash table; its size
follows from the number of pairs.

With diagnostics a unit has a byte more: how many of its dropped records have counted.

With a closing a tag is the row of the key's 128-bit id in `keys`, so that pairs are told apart
exactly. That table has the keys of all units of the shard; a period has only one window.

Privacy contract: units share no block. Without a closing, two pairs of one unit with equal tags are
merged: their records share the cap `c` and cost more of the norm, and their votes share the last
step, which drops more, never less (docs/proof.md, Lemmas 5 to 8).
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
        ("squares", np.uint32),
    ]
)


class UnitTable(Table):
    """Units of one shard and period."""

    __slots__ = ("_scratch_bits", "dropped", "free", "keys", "slab", "slab_used")

    def __init__(self) -> None:
        super().__init__(UNIT_ROW)
        self.keys = Table()
        self.slab = np.zeros(64, np.uint64)
        self.slab_used = np.zeros(1, np.int64)  # entries in use
        # by log2 of the block size, the first of a linked list in the slab
        self.free = np.full(33, -1, np.int64)
        self._scratch_bits = np.zeros((1, 2), np.uint64)  # two bits per row, zero between calls
        # by row, how many dropped records diagnostics have counted; empty without diagnostics
        self.dropped = np.zeros(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        entries = self.slab[: self.slab_used[0]].nbytes
        others = self._scratch_bits.nbytes + self.dropped.nbytes + self.keys.nbytes
        return super().nbytes + entries + others

    def scratch_bits(self) -> NDArray[np.uint64]:
        """Two zero bits per row, for a caller that leaves them zero; they stay in the cache."""
        self._scratch_bits = grown(self._scratch_bits, len(self.rows) // 64 + 1)
        return self._scratch_bits

    def grow_dropped(self) -> None:
        """Make room for the dropped records of all rows."""
        self.dropped = grown(self.dropped, len(self.rows))

    def grow_slab(self) -> None:
        """Make room for more blocks."""
        if len(self.slab) >= 1 << 32:
            raise MemoryError("A unit shard holds 2^32 slab entries at most; use more shards.")
        self.slab = grown(self.slab, len(self.slab) + 1)
