"""The row query over the records of a trigger, without the rows that it fails on.

An expression that fails on a row is NULL there, because it stands in TRY. Some DuckDB errors pass
through TRY and fail the whole micro-batch. Its intent is durable, so every retry would fail as
well, and one row would have stopped the run.

Privacy contract: an input row is dropped, with everything that it would have become, iff the row
query fails on that row alone, on a connection with one thread, a fixed memory limit and no history.
That is a function of the row, the query and the public tables. So a retry drops the same rows, and
no row decides what happens to another:

* Where the query succeeds on many rows it succeeds on each: an expression is evaluated on the rows
  of a vector one by one, under a memory limit that is not smaller for one row than for many.
* Where the query fails on many rows, none of them is dropped for it. They are run again in smaller
  pieces, so the memory that many rows take together is no reason to drop one.
* An unreadable input is no row's fault. The source's columns are read by themselves, without the
  query; an error there is the source's, and the trigger does not run.

A condition that leaves a row out and a failure that drops it have the same effect, so it does not
matter which of the two DuckDB evaluates first.

Not covered: an input row that becomes several rows (UNNEST), with two conditions on them, one of
which fails on a row that the other leaves out. Which condition DuckDB evaluates first then decides
whether the rest of the input row counts. Nor is time: each failing row costs a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from dpsqlp.engines.micro_batch import PIECE_ROWS, in_pieces
from dpsqlp.sources.base import AnySource
from dpsqlp.sql import connect
from dpsqlp.sql.query import Query
from dpsqlp.sql.quoting import quote_identifier as quoted

DATABASE_MEMORY = "2GB"
_PIECE = "rows of a piece"
_INPUT_ROWS = 1 << 11  # per Arrow batch: a row of a source may have megabytes
_OUTPUT_ROWS = 1 << 13  # per Arrow batch: 128 MiB of the longest keys
_HELD_BYTES = 256 << 20  # of the result of one part
T = TypeVar("T")


class RowQuery:
    """Runs a row query over what a source reads for a trigger; for one thread."""

    def __init__(self, query: Query, source: AnySource, threads: int) -> None:
        """Open the database."""
        self.dropped: int = 0  # rows so far: for the operator alone, never published
        self._query, self._source, self._threads = query, source, threads
        self._database = self._connect(threads)

    def __enter__(self) -> RowQuery:
        """Close the database at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the database."""
        self._database.close()

    def run(
        self,
        offsets: Any,
        span: tuple[int, int] | None,
        take: Callable[[Iterator[pa.RecordBatch]], T],
    ) -> T:
        """Give `take` the rows that a range becomes, of event times in a span if one is given.

        If the query fails on a row, `take` is called again with all rows of the range but the
        failing ones. A duckdb.Error is the source's; its text may hold a record.
        """
        query = self._query.row_sql
        if span is not None:
            query = f"FROM ({query}) WHERE timestamp_us >= {span[0]} AND timestamp_us < {span[1]}"
        self._source.read(offsets, self._database)
        try:
            return take(result_batches(self._database.sql(query)))
        except duckdb.Error:  # of a row, or of the source; the database may be lost
            self._database.close()
            self._database = self._connect(self._threads)
        return take(self._without_failing(self._input(offsets), query))

    def _connect(self, threads: int, **config: Any) -> duckdb.DuckDBPyConnection:
        tables = {table.name: table.rows for table in self._query.public_tables}
        config |= {"threads": threads, "memory_limit": DATABASE_MEMORY}
        # A database of its own: a cursor has neither the public tables nor the time zone.
        return connect(tables, config, self._source.folders())

    def _input(self, offsets: Any) -> Iterator[pa.Table]:
        """The rows of a range with all columns of the source, every value unchanged, in pieces.

        A query may use a column without naming it: AS t(a, b), to_json(s).
        """
        columns = [
            f"CAST({quoted(name)} AS VARCHAR) AS {quoted(name)}"  # Arrow's have a smaller range
            if kind.upper() == "INTERVAL"
            else quoted(name)
            for name, kind in self._query.source.columns
        ]
        lossless = {"arrow_lossless_conversion": True, "arrow_large_buffer_size": True}
        with self._connect(self._threads, **lossless) as database:
            self._source.read(offsets, database)
            source = quoted(self._query.source.name)
            result = database.sql(f"SELECT {', '.join(columns)} FROM {source}")
            yield from in_pieces(result_batches(result, _INPUT_ROWS))

    def _evaluating(self, piece: pa.Table | None) -> duckdb.DuckDBPyConnection:
        """A database without history, in which the source has the rows of a piece, or none."""
        database = self._connect(1)
        columns = [
            f"CAST({'NULL' if piece is None else quoted(name)} AS {kind}) AS {quoted(name)}"
            for name, kind in self._query.source.columns
        ]
        rows = "WHERE false"
        if piece is not None:
            database.register(_PIECE, piece)
            rows = f"FROM {quoted(_PIECE)}"
        database.execute(
            f"CREATE TEMP VIEW {quoted(self._query.source.name)} AS"
            f" SELECT {', '.join(columns)} {rows}"
        )
        return database

    def _without_failing(self, pieces: Iterator[pa.Table], query: str) -> Iterator[pa.RecordBatch]:
        """The query's result: a part of a piece that fails is halved, and a single row dropped."""
        with self._evaluating(None) as database:
            list(result_batches(database.sql(query)))  # a failure without rows is no row's
        length = PIECE_ROWS
        for piece in pieces:
            database, start = self._evaluating(piece), 0
            while start < piece.num_rows:
                part = piece.slice(start, length)
                database.register(_PIECE, part)
                try:
                    held = _held(database.sql(query), whole=part.num_rows == 1)
                except duckdb.Error:
                    if part.num_rows == 1:
                        self.dropped += 1
                        start += 1
                    length = max(part.num_rows // 2, 1)
                    if _is_lost(database):
                        database.close()
                        database = self._evaluating(piece)
                    continue
                if held is None and part.num_rows > 1:
                    length = part.num_rows // 2
                    continue
                yield from result_batches(database.sql(query)) if held is None else held
                start, length = start + part.num_rows, min(2 * length, PIECE_ROWS)
            database.close()


def _is_lost(database: duckdb.DuckDBPyConnection) -> bool:
    """Whether an internal error has invalidated a database."""
    try:
        database.execute("SELECT 1").fetchall()
    except duckdb.Error:
        return True
    return False


def _held(result: duckdb.DuckDBPyRelation, *, whole: bool) -> list[pa.RecordBatch] | None:
    """The rows of a result; None if they are too many to hold. A `whole` one is read to its end."""
    held, size = [], 0
    for batch in result_batches(result):
        size += batch.nbytes
        if size <= _HELD_BYTES:
            held.append(batch)
        elif whole:
            held.clear()
        else:
            return None
    return held if size <= _HELD_BYTES else None


def result_batches(
    result: duckdb.DuckDBPyRelation, rows: int = _OUTPUT_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of a result, as Arrow batches."""
    try:
        with result.to_arrow_reader(rows) as reader:
            yield from reader
    except (pa.ArrowException, OSError, ValueError):  # of the database, passed on
        raise duckdb.Error("It failed.") from None
