"""Key state of one window and shard.

Per key 48 bytes, the running totals (8 bytes per process), and its text in an append-only heap.
Keys that have been released keep, apart, the state from which their noise paths continue. Rows
are found by id, or by the trigger at which they are due; never by a scan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Words
from dpsqlp.tables.table import ID_FIELDS, Table, grown

KEY_ROW = np.dtype(
    [
        *ID_FIELDS,
        ("count", np.int64),  # distinct units that have counted in this round
        ("due", np.int32),  # the step at which it is released if nothing more arrives; 0 never
        ("peak", np.int32),  # count + peak < 0: cannot be released in what remains of the round
        ("last", np.int32),  # the step of the last release that ended a round; 0 none
        ("round", np.int32),
        ("touched", np.int32),  # the step at which records last arrived
        ("slot", np.int32),  # its place among the released keys, plus one; 0 never released
    ]
)
PEAK_UNKNOWN = np.iinfo(np.int32).max


class KeyTable(Table):
    """Keys of one window and shard."""

    __slots__ = ("_due", "_heap", "_texts", "released", "totals")

    def __init__(self, processes: int, state_sizes: Sequence[int]) -> None:
        super().__init__(KEY_ROW)
        self.totals = np.zeros((16, processes), np.int64)
        self.released = ReleasedKeys(state_sizes)
        self._heap = np.zeros(64, np.uint8)
        self._texts = np.zeros(17, np.int64)  # row r's text is heap[texts[r] : texts[r + 1]]
        self._due: dict[int, list[NDArray[np.int64]]] = {}

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        texts = int(self._texts[self.size]) + self._texts[: self.size].nbytes
        return super().nbytes + self.released.nbytes + self.totals[: self.size].nbytes + texts

    def insert_keys(self, ids: Words, texts: Encoded, text: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of every key, which has text number `text`; new keys begin round 1."""
        known = self.size
        rows, leaders = self.insert(ids)
        if len(leaders):
            self._append_texts(texts.take(text[leaders]), known)
            self.totals = grown(self.totals, len(self.rows))
            self.rows["peak"][known : self.size] = PEAK_UNKNOWN
            self.rows["round"][known : self.size] = 1
        return rows

    def texts(self, rows: NDArray[np.int64]) -> Encoded:
        """The texts of rows."""
        return Encoded(self._heap, self._texts).take(rows)

    def schedule(self, rows: NDArray[np.int64]) -> None:
        """Remember when these rows are due. An earlier entry for a row is overruled."""
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
        """The rows as words: two of the id, then the rest."""
        return self.rows.view(np.uint64).reshape(len(self.rows), -1)

    def redo(
        self,
        at: NDArray[np.int64],
        states: NDArray[np.uint64],
        totals: NDArray[np.int64],
        new_ids: Words,
        new_texts: Encoded,
        step: int,
    ) -> None:
        """Append new rows, and give these rows, ids apart, and totals. The table goes on after
        trigger number `step` of the window: what is due later is scheduled, and released keys
        are known; their noise paths are evaluated again.
        """
        known = self.size
        self.insert(new_ids)
        assert self.size == known + len(new_ids)
        self.words()[at, 2:] = states
        self.totals = grown(self.totals, len(self.rows))
        self.totals[at] = totals
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
    """Keys that have been released, in order of their first release, and their noise states."""

    __slots__ = ("at", "rows", "size", "states")

    def __init__(self, state_sizes: Sequence[int]) -> None:
        self.size = 0
        self.rows = np.zeros(0, np.int64)
        self.at = np.zeros(0, np.int64)  # the step up to which the paths have been evaluated
        self.states = [np.zeros((0, size), np.float64) for size in state_sizes]

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return sum(array[: self.size].nbytes for array in (self.rows, self.at, *self.states))

    def append(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slots for keys released for the first time."""
        slots = np.arange(self.size, self.size + len(rows))
        self.size += len(rows)
        self.rows = grown(self.rows, self.size)
        self.at = grown(self.at, self.size)
        self.states = [grown(state, self.size) for state in self.states]
        self.rows[slots] = rows
        return slots
