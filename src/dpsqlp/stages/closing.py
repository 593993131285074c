"""closing: at a window's last trigger, what units have left selects keys that are not out.

By unit (`lay`): a unit lays weights on its open keys, those with a kept record that are not out. By
key (`close`): a key is selected iff more than `minimum` units laid on it, and the sum of their
weights plus one normal of its own reaches the threshold.

Privacy contract: a unit's weights depend on its own records and on which keys are out, which is
output; their squares add up to no more than the unit has left. Keys are matched by their 128-bit
ids. The window's last trigger is also the last of its units' state, so no unit spends more
afterwards (docs/proof.md, Lemmas 30 to 32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import Closing
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.prf import Array128
from dpsqlp.kernels import kernel
from dpsqlp.stages.bound import lay_weights
from dpsqlp.stages.route import key_shards
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable


@dataclass(frozen=True, slots=True)
class Weights:
    """What units lay on keys that are not out."""

    key: Array128
    units: NDArray[np.int64]  # how many laid on the key
    weight: NDArray[np.int64]  # the sum of their weights, in quanta

    def __len__(self) -> int:
        return len(self.key)

    def of_shard(self, shard: int, shards: int) -> Weights:
        """The weights on the keys of one shard."""
        rows = np.flatnonzero(key_shards(self.key, shards) == shard)
        return Weights(self.key[rows], self.units[rows], self.weight[rows])


def lay(closing: Closing, table: UnitTable, out: Table) -> Weights:
    """The weights of a shard's units. `out` holds the keys that the window has selected."""
    ids = table.keys.ids(np.arange(len(table.keys)))
    units, weight = lay_weights(closing, table, out.find(ids) >= 0)
    laid = np.flatnonzero(units)
    return Weights(ids[laid], units[laid], weight[laid])


def close(
    closing: Closing,
    minimum: int,
    noise: Noise,
    table: KeyTable,
    parts: Sequence[Weights],
    window: int,
) -> NDArray[np.int64]:
    """The rows of a shard's keys that the weights select. `parts` are those of all unit shards."""
    units = np.zeros(len(table), np.int64)
    weight = np.zeros(len(table), np.int64)
    for part in parts:
        rows = table.find(part.key)
        assert (rows >= 0).all(), "a key with weight has a kept record"
        _add(rows, part.units, part.weight, units, weight)
    eligible = np.flatnonzero(units > minimum)
    seeds = noise.seeds(table.ids(eligible), window, np.zeros(len(eligible), np.int64))
    first = np.zeros(len(eligible), np.int64)
    normals, _ = noise.draw(seeds, first, first + 1)
    noised = weight[eligible] + np.rint(normals / closing.quantum).astype(np.int64)
    return eligible[noised >= closing.threshold]


@kernel
def _add(rows, units, weight, units_sum, weight_sum):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        units_sum[rows[k]] += units[k]
        weight_sum[rows[k]] += weight[k]
