"""Shard tables at rest: a snapshot, if any, then a delta for each trigger that changed the table.

The process that runs a shard writes and reads its files. The keys selected in a window, which all
unit shards read, are written by the local engine or by Spark's driver. Names carry the trigger, and
contents are a function of the state and the trigger's records, so a retry writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsqlp.core import Core, ShardId
from dpsqlp.plan import Plan
from dpsqlp.stages.bound import contents, redo, restore
from dpsqlp.state.arrays import pack, unpack
from dpsqlp.state.sealed import SealedStorage, missing_or_damaged
from dpsqlp.state.tables import Arrays, key_delta, redo_keys, unit_delta
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable

_SNAPSHOT_BYTES = 1 << 28  # deltas are gathered up to this, or to the size of the snapshot
_SNAPSHOT_FILES = 64
_FILES_MAX = 256  # the manifest names each of them


@dataclass(frozen=True, slots=True)
class File:
    """A file of the committed state, as the manifest names it."""

    name: str
    seal: str  # of its contents
    bytes: int


@dataclass(frozen=True, slots=True)
class TableLog:
    """The files of a shard table, and its number of rows."""

    rows: int
    files: tuple[File, ...] = ()


Shard = UnitTable | KeyTable | Table  # a Table is the set of keys selected in a window


@dataclass(frozen=True, slots=True)
class Held:
    """A table in memory, and the files that it was made from."""

    table: Shard
    log: TableLog


@dataclass(frozen=True, slots=True)
class Saving:
    """A file of a table that is to be written; without a name, there is nothing to write."""

    file: str
    parts: list[bytes | memoryview]
    log: TableLog  # the table's rows, and the files that stay


class Shards:
    """The shard tables in a storage, for one pipeline."""

    def __init__(self, storage: SealedStorage, core: Core) -> None:
        self.storage = storage
        self._core = core

    def load(self, name: str, log: TableLog, trigger: int, held: Held | None = None) -> Shard:
        """The table as it was after a trigger. A held table is continued, if its files are the
        first of the log.
        """
        kind, (item, _) = parse_name(name)
        files = list(log.files)
        table = self._empty(kind, item)
        if held is not None and log.files[: len(held.log.files)] == held.log.files:
            table, files = held.table, files[len(held.log.files) :]
        for file in files:
            arrays = unpack(self.read(file))
            if isinstance(table, KeyTable):
                step = trigger - self._core.plan.windows.first(item)
                redo_keys(table, arrays, step)
            elif not isinstance(table, UnitTable):
                table.insert(*arrays)
            elif file.name.endswith("snapshot"):
                table = restore(self._core.plan, arrays)
            else:
                redo(self._core.plan, table, *arrays)
        return table

    def _empty(self, kind: str, item: int) -> Shard:
        if kind == "keys":
            return self._core.empty_key_table(item)
        return UnitTable() if kind == "units" else Table()

    def save(self, name: str, table: Shard, change: Any, log: TableLog, trigger: int) -> TableLog:
        """Write the changes of a trigger, or now and then a snapshot."""
        return self.store(self.copy(name, table, change, log, trigger))

    def copy(self, name: str, table: Shard, change: Any, log: TableLog, trigger: int) -> Saving:
        """Copies of what `store` will write; the table may change afterwards."""
        due = _is_due(log)
        arrays = self._snapshot(table) if due else self._delta(table, change, log)
        suffix = "snapshot" if due else "delta"
        if all(array.size == 0 for array in arrays):
            return Saving("", [], log)
        kept = TableLog(len(table), () if due else log.files)
        return Saving(f"{name}/{trigger}.{suffix}", pack(arrays), kept)

    def store(self, saving: Saving) -> TableLog:
        """Write the file of a table; returns the table's files."""
        log = saving.log
        if not saving.file:
            return log
        return TableLog(log.rows, (*log.files, self.write(saving.file, saving.parts)))

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> File:
        """Store a file; returns its entry for the manifest."""
        parts = list(parts)
        return File(name, self.storage.seal(name, parts), sum(len(part) for part in parts))

    def read(self, file: File) -> bytes:
        """The contents of a file that the manifest names."""
        data = self.storage.get(file.name, file.seal)
        if data is None:
            raise missing_or_damaged(file.name, "missing")
        return data

    def _snapshot(self, table: Shard) -> Arrays:
        if isinstance(table, UnitTable):
            return contents(table)
        return self._delta(table, np.empty(0, np.int64), TableLog(0))

    def _delta(self, table: Shard, change: Any, log: TableLog) -> Arrays:
        if isinstance(table, UnitTable):
            return unit_delta(change)
        if isinstance(table, KeyTable):
            return key_delta(table, change, log.rows)
        return [table.ids(np.arange(log.rows, len(table)))]


def shard_name(kind: str, place: ShardId) -> str:
    """The folder of a shard table; `kind` is units, keys or selected."""
    return f"{kind}/{place[0]}/{place[1]}"


def selected_name(window: int) -> str:
    """The folder of the keys selected in a window. They are not in shards: every unit shard reads
    all of them.
    """
    return shard_name("selected", (window, 0))


def parse_name(name: str) -> tuple[str, ShardId]:
    """The kind and the shard id of a name."""
    kind, item, shard = name.split("/")
    return kind, (int(item), int(shard))


def open_tables(plan: Plan, trigger: int, shard: int) -> Iterator[tuple[str, ShardId]]:
    """The tables of a shard that a trigger has open: units of periods, then keys of windows."""
    for period in plan.open_periods(trigger):
        yield "units", (period, shard)
    for window in plan.windows.open(trigger):
        yield "keys", (window, shard)


def _is_due(log: TableLog) -> bool:
    """Whether a snapshot should take the place of the deltas: if they are large by themselves, or
    many and large beside the snapshot before, so that all snapshots together stay a few times as
    large as the last one.
    """
    if not log.files:
        return False
    base = log.files[0].bytes if log.files[0].name.endswith("snapshot") else 0
    deltas = sum(file.bytes for file in log.files) - base
    many = len(log.files) > _SNAPSHOT_FILES and deltas > base / 2
    return many or deltas > max(_SNAPSHOT_BYTES, base) or len(log.files) > _FILES_MAX
