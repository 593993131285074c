"""The release query: from the core's noisy totals to the rows that a sink gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.core import TriggerRelease
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.entropy.decode import decode
from dpsqlp.plan import Plan
from dpsqlp.sql import connect, standard_deviations
from dpsqlp.sql.query import Query


class ReleaseQuery:
    """The part of a query above its aggregation, run by DuckDB over released rows alone."""

    def __init__(self, query: Query, plan: Plan, grid: TriggerGrid) -> None:
        self._query, self._plan, self._grid = query, plan, grid
        self._database = connect()
        self._deviations = standard_deviations(plan)
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
        rows, window = len(release), self._query.window
        columns: dict[str, Any] = {"window_number": release.window}
        if window is None:
            columns["window_start"] = columns["window_end"] = pa.nulls(rows, pa.timestamp("us"))
        else:
            start = release.window * window.hop_us
            columns["window_start"] = pa.array(start, pa.timestamp("us"))
            columns["window_end"] = pa.array(start + window.size_us, pa.timestamp("us"))
        columns["trigger"] = pa.array(np.full(rows, release.trigger))
        # The time on the grid, which is public; when the worker came to it is not.
        due = pa.scalar(self._grid.due(release.trigger), pa.timestamp("us"))
        columns["released_at"] = pa.repeat(due, rows)
        columns["window_trigger"] = pa.array(release.step, pa.int64())
        columns["final"] = pa.array(release.step == self._plan.triggers)
        columns["position"] = np.arange(rows)
        keys = decode(release.key_text, self._key_types)
        columns |= {f"key_{number}": array for number, array in enumerate(keys)}
        for number, calibrated in enumerate(self._plan.calibration.processes):
            columns[f"p{number}"] = release.values[:, number] * calibrated.quantum
            columns[f"p{number}_sd"] = self._deviations[number][release.step - 1]
        return pa.table(columns)


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
