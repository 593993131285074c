"""Key state of one window and shard.

Each key has a row of 48 bytes, its running totals (8 bytes each), and its text in an
append-only heap. Released keys also have the state from which their noise paths continue. Keys that
are due remember when they would be due with a few units more. Rows are found by id, or by the step
at which they are due; never by a scan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Array128
from dpsqlp.tables.table import ID_FIELDS, Table, grown

KEY_ROW = np.dtype(
    [
        *ID_FIELDS,
        ("count", np.int64),  # distinct units counted in this round
        ("due", np.int32),  # the step of its release if no record arrives; 0 never
        ("best_margin", np.int32),  # count + best_margin < 0: no release in this round
        ("round_start", np.int32),  # the step after which the round began; 0 for the first
        ("round", np.int32),
        ("updated", np.int32),  # the last step with records
        ("slot", np.int32),  # its index among the released keys, plus one; 0 never released
    ]
)
MARGIN_UNKNOWN = np.iinfo(np.int32).max
_PASSAGES = 16  # keys that are selected have gained some 25 units since they were first due


class KeyTable(Table):
    """Keys of one window and shard."""

    __slots__ = ("_due", "_heap", "_texts", "passages", "released", "totals")

    def __init__(self, totals: int, state_size: int) -> None:
        super().__init__(KEY_ROW)
        self.totals = np.zeros((16, totals), np.int64)
        self.released = ReleasedKeys(totals, state_size)
        self.passages = Passages()
        self._heap = np.zeros(64, np.uint8)
        self._texts = np.zeros(17, np.int64)  # row r's text is heap[texts[r] : texts[r + 1]]
        self._due: dict[int, list[NDArray[np.int64]]] = {}

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        texts = int(self._texts[self.size]) + self._texts[: self.size].nbytes
        others = self.released.nbytes + self.passages.nbytes + self.totals[: self.size].nbytes
        return super().nbytes + others + texts

    def insert_keys(
        self, ids: Array128, texts: Encoded, text: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The row of every key; key k has text number text[k]. New keys begin round 1."""
        known = self.size
        rows, first_seen = self.insert(ids)
        if len(first_seen):
            self._append_texts(texts.take(text[first_seen]), known)
            self.totals = grown(self.totals, len(self.rows))
            self.passages.of_row = grown(self.passages.of_row, len(self.rows))
            self.rows["best_margin"][known : self.size] = MARGIN_UNKNOWN
            self.rows["round"][known : self.size] = 1
        return rows

    def texts(self, rows: NDArray[np.int64]) -> Encoded:
        """The texts of rows."""
        return Encoded(self._heap, self._texts).take(rows)

    def released_ids(self) -> Array128:
        """The ids of the keys that have been released."""
        return self.ids(self.released.rows[: self.released.size])

    def released_by_text(self) -> tuple[NDArray[np.int64], Encoded]:
        """The released keys in ascending order of their texts: their indices, and the texts."""
        released = self.released
        indices = released.in_order()
        texts = self.texts(released.rows[indices])
        if len(released.by_text) < released.size:
            order = texts.order()
            indices, texts = indices[order], texts.take(order)
            released.by_text = indices
        return indices, texts

    def schedule(self, rows: NDArray[np.int64]) -> None:
        """Remember when these rows are due. A later call for a row replaces an earlier one."""
        due = self.rows["due"][rows]
        order = np.argsort(due, kind="stable")
        steps, begins = np.unique(due[order], return_index=True)
        for step, part in zip(steps, np.split(rows[order], begins[1:]), strict=False):
            self._due.setdefault(int(step), []).append(part)

    def take_due(self, step: int) -> NDArray[np.int64]:
        """The rows that are due now."""
        parts = self._due.pop(step, [])
        rows: NDArray[np.int64] = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
        current: NDArray[np.bool_] = self.rows["due"][rows] == step
        return rows[current]

    def words(self) -> NDArray[np.uint64]:
        """The rows as 64-bit words: two of the id, then the rest."""
        return self.rows.view(np.uint64).reshape(len(self.rows), -1)

    def redo(
        self,
        at: NDArray[np.int64],
        states: NDArray[np.uint64],
        totals: NDArray[np.int64],
        new_ids: Array128,
        new_texts: Encoded,
        step: int,
    ) -> None:
        """Append new rows, and set the states (all but ids) and totals of rows `at`.

        The table continues after `step`: rows due later are scheduled, and released keys are
        restored; their noise paths are evaluated again.
        """
        known = self.size
        self.insert(new_ids)
        assert self.size == known + len(new_ids)
        self.words()[at, 2:] = states
        self.totals = grown(self.totals, len(self.rows))
        self.totals[at] = totals
        self.passages.of_row = grown(self.passages.of_row, len(self.rows))
        self.passages.of_row[at] = 0  # they may be those of an earlier round
        self._append_texts(new_texts, known)
        self.schedule(at[self.rows["due"][at] > step])
        released = at[self.rows["slot"][at] > self.released.size]
        self.released.append(released[np.argsort(self.rows["slot"][released])])

    def _append_texts(self, texts: Encoded, known: int) -> None:
        begin = int(self._texts[known])
        self._heap = grown(self._heap, begin + len(texts.data))
        self._heap[begin : begin + len(texts.data)] = texts.data
        self._texts = grown(self._texts, self.size + 1)
        self._texts[known + 1 : self.size + 1] = begin + texts.offsets[1:]


class ReleasedKeys:
    """Keys that have been released, in order of their first release, with their noise states."""

    __slots__ = ("at", "by_text", "rows", "seeded", "seeds", "size", "states")

    def __init__(self, totals: int, state_size: int) -> None:
        self.size = 0
        self.rows = np.zeros(0, np.int64)
        self.at = np.zeros(0, np.int64)  # the step up to which the paths have been evaluated
        self.states = [np.zeros((0, state_size), np.float64) for _ in range(totals)]
        self.seeds = [np.zeros((0, 2), np.uint64) for _ in range(totals)]  # of the noise paths
        self.seeded = 0  # keys whose seeds are known
        self.by_text = np.zeros(0, np.int64)  # the keys so far, in ascending order of their texts

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        arrays = (self.rows, self.at, self.by_text, *self.states, *self.seeds)
        return sum(array[: self.size].nbytes for array in arrays)

    def in_order(self) -> NDArray[np.int64]:
        """All indices: first in ascending order of the texts, then those that have come since."""
        return np.concatenate([self.by_text, np.arange(len(self.by_text), self.size)])

    def append(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices of keys released for the first time."""
        slots = np.arange(self.size, self.size + len(rows))
        self.size += len(rows)
        self.rows = grown(self.rows, self.size)
        self.at = grown(self.at, self.size)
        self.states = [grown(state, self.size) for state in self.states]
        self.seeds = [grown(seeds, self.size) for seeds in self.seeds]
        self.rows[slots] = rows
        return slots


class Passages:
    """When keys would be due with 0, 1, 2, ... units more, as their noise paths told: what follows
    from the path, so that it need not be evaluated again for each unit. It may be forgotten.
    """

    __slots__ = ("counts", "of_row", "size", "steps")

    def __init__(self) -> None:
        self.size = 0
        self.of_row = np.zeros(16, np.int32)  # the index of a row's entry, plus one; 0 without
        self.counts = np.zeros(0, np.int64)  # the row's count when the path was evaluated
        self.steps = np.zeros((0, _PASSAGES), np.int32)

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self.of_row.nbytes + self.counts[: self.size].nbytes + self.steps[: self.size].nbytes

    def reserve(self, rows: int) -> None:
        """Make room for so many entries more."""
        self.counts = grown(self.counts, self.size + rows)
        self.steps = grown(self.steps, self.size + rows)
