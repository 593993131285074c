"""The release query: from the core's noisy totals to the rows that a sink gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.accounting.model import DIAGNOSTICS
from dpsqlp.core import TriggerRelease
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.entropy.decode import decode
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sql import connect, diagnostics_deviations
from dpsqlp.sql.query import Hop, Query, Tumble
from dpsqlp.sql.released import NoisyColumns


class ReleaseQuery:
    """The part of a query above its aggregation, run by DuckDB over released rows alone."""

    def __init__(self, query: Query, plan: Plan, grid: TriggerGrid) -> None:
        self._query, self._plan, self._grid = query, plan, grid
        self._database = connect()
        self._noisy = NoisyColumns(query, plan)
        self._told = {
            noise.mechanism.triggers: diagnostics_deviations(noise) for noise in plan.noises
        }
        self._key_types = _arrow_types(query.key_types)

    def __enter__(self) -> ReleaseQuery:
        """Close the database at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the database."""
        self._database.close()

    def run(self, release: TriggerRelease) -> pa.Table:
        """The released rows, after HAVING, ORDER BY and LIMIT."""
        self._database.register("released", self.columns(release))
        return self._database.sql(self._query.release_sql).to_arrow_table()

    def columns(self, release: TriggerRelease) -> pa.Table:
        """The table that `release_sql` reads."""
        columns: dict[str, Any] = {"window_number": release.window}
        columns |= self._fixed(release.window, release.trigger)
        columns["position"] = np.arange(len(release))
        keys = decode(release.key_text, self._key_types)
        columns |= {f"key_{number}": array for number, array in enumerate(keys)}
        triggers = self._plan.windows.lengths_of(release.window)
        return pa.table(columns | self._noisy.of(release.values, release.step, triggers))

    def diagnostics(self, release: TriggerRelease) -> pa.Table:
        """The second table: one row for each open window, with or without records."""
        windows = np.array(self._plan.windows.open(release.trigger), np.int64)
        columns = self._fixed(windows, release.trigger)
        del columns["window_local"]  # for groups alone
        assert release.diagnostics is not None
        for number, name in enumerate(DIAGNOSTICS):
            columns[name] = pa.array(release.diagnostics[:, number])
            columns[f"{name}_sd"] = self._deviation(self._told, number, windows, release.trigger)
        return pa.table(columns)

    def _fixed(self, windows: NDArray[np.int64], trigger: int) -> dict[str, Any]:
        """The columns that every row begins with."""
        columns: dict[str, Any] = {}
        for name, moments in self._edges(windows).items():
            columns[name] = pa.array(moments, pa.timestamp("us"))
        columns["trigger"] = pa.array(np.full(len(windows), trigger))
        # The time on the grid, which is public; when the worker came to it is not.
        due = pa.scalar(self._grid.due(trigger), pa.timestamp("us"))
        columns["released_at"] = pa.repeat(due, len(windows))
        steps = trigger - self._plan.windows.firsts(windows)
        columns["window_trigger"] = pa.array(steps, pa.int64())
        columns["final"] = pa.array(steps == self._plan.windows.lengths_of(windows))
        return columns

    def _deviation(
        self,
        deviations: dict[int, NDArray[np.float64]],
        number: int,
        windows: NDArray[np.int64],
        trigger: int,
    ) -> NDArray[np.float64]:
        """The deviation of a number's noise at a trigger of each window."""
        steps = trigger - self._plan.windows.firsts(windows)
        lengths = self._plan.windows.lengths_of(windows)
        found = np.empty(len(windows))
        for length, rows in deviations.items():
            own = lengths == length
            found[own] = rows[number][steps[own] - 1]
        return found

    def _edges(self, numbers: NDArray[np.int64]) -> dict[str, Any]:
        """The start and the end of windows, and the start by the clock of their zone."""
        window, schedule = self._query.window, self._plan.windows
        if isinstance(schedule, CalendarSchedule):
            starts, local = np.array(schedule.starts), np.array(schedule.local)
            start, end, local = starts[numbers], starts[numbers + 1], local[numbers]
        elif isinstance(window, Tumble | Hop):
            start = local = numbers * window.hop_us
            end = start + window.size_us
        else:
            start = end = local = pa.nulls(len(numbers))
        return {"window_start": start, "window_end": end, "window_local": local}


def _arrow_types(types: Sequence[str]) -> list[pa.DataType]:
    """The Arrow types of DuckDB types."""
    if not types:
        return []
    columns = ", ".join(f"NULL::{name} AS c{number}" for number, name in enumerate(types))
    with duckdb.connect() as database:
        return list(database.sql(f"SELECT {columns}").to_arrow_table().schema.types)


def serialise(table: pa.Table) -> bytes:
    """A release as bytes."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(buffer.getvalue())


def deserialise(data: bytes) -> list[pa.Table]:
    """The tables of a release, one after another: the released rows, and diagnostics if any."""
    buffer, tables = pa.BufferReader(data), []
    while buffer.tell() < len(data):
        with pa.ipc.open_stream(buffer) as reader:
            tables.append(reader.read_all())
    return tables
