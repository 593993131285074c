"""The row query over the records of a trigger, without the rows that it fails on.

An expression that fails on a row is NULL there: it stands in TRY. Some errors of DuckDB's pass
through TRY, though, and then the whole micro-batch fails; its intent is durable, so every retry
would fail too, and one row would have stopped the run.

Privacy contract: an input row is dropped, with everything that it would have become, iff the row
query fails on that row alone, on a connection with one thread, a fixed memory limit and no history.
That is a function of the row, the query and the public tables. So a retry drops the same rows, and
no row decides what happens to another:

* Where the query succeeds on many rows it succeeds on each: an expression is evaluated on the rows
  of a vector one by one, under a memory limit that is not smaller for one row than for many.
* Where it fails on many rows, none is dropped for it. They are run again in smaller pieces; memory
  that many rows take together is thereby no reason to drop one.
* What cannot be read is no row's fault. The source's columns are read by themselves, without the
  query; an error there is the source's, and the trigger does not run.

A condition that leaves a row out and a failure that drops it come to the same, so it does not
matter which of the two DuckDB evaluates first.

Not covered: where an input row becomes several (UNNEST) and two conditions are evaluated on those,
one of which fails on a row that the other leaves out: which one DuckDB evaluates first decides
whether the rest of the input row counts. How long it takes: each row that fails costs a query.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from dpsqlp.sources.base import AnySource as Source
from dpsqlp.sources.size import check_size
from dpsqlp.sql import connect
from dpsqlp.sql.query import Query
from dpsqlp.sql.quoting import quote_identifier as quoted

DATABASE_MEMORY = "2GB"
_PIECE = "rows of a piece"
_PIECES_MAX = 1000  # results before they are put together


class RowQuery:
    """Runs a row query over what a source hands out for a trigger; for one thread."""

    def __init__(self, query: Query, source: Source, threads: int) -> None:
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

    def run(self, records: Any, span: tuple[int, int] | None) -> pa.Table:
        """The rows that a range becomes, of event times in a span if one is given.

        A duckdb.Error is the source's; its text may hold a record.
        """
        query = self._query.row_sql
        if span is not None:
            query = f"FROM ({query}) WHERE timestamp_us >= {span[0]} AND timestamp_us < {span[1]}"
        self._source.read(records, self._database)
        try:
            return bounded_table(self._database.sql(query))
        except duckdb.Error:  # of a row, or of the source; the database may be lost
            self._database.close()
            self._database = self._connect(self._threads)
        return self._without_failing(self._materialised(records), query)

    def _connect(self, threads: int, **config: Any) -> duckdb.DuckDBPyConnection:
        tables = {table.name: table.rows for table in self._query.public_tables}
        config |= {"threads": threads, "memory_limit": DATABASE_MEMORY}
        # A database of its own: a cursor has neither the public tables nor the time zone.
        return connect(tables, config, self._source.folders())

    def _materialised(self, records: Any) -> pa.Table:
        """The source's columns of a range, every value as it is."""
        columns = [
            f"CAST({quoted(name)} AS VARCHAR) AS {quoted(name)}"  # Arrow's have a smaller range
            if kind.upper() == "INTERVAL"
            else quoted(name)
            for name, kind in self._query.source.columns
        ]
        with self._connect(self._threads, arrow_lossless_conversion=True) as database:
            self._source.read(records, database)
            source = quoted(self._query.source.name)
            return bounded_table(database.sql(f"SELECT {', '.join(columns)} FROM {source}"))

    def _evaluating(self, piece: pa.Table) -> duckdb.DuckDBPyConnection:
        """A database without history, in which the source has the rows of a piece."""
        database = self._connect(1)
        database.register(_PIECE, piece)
        columns = [
            f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
            for name, kind in self._query.source.columns
        ]
        database.execute(
            f"CREATE TEMP VIEW {quoted(self._query.source.name)} AS"
            f" SELECT {', '.join(columns)} FROM {quoted(_PIECE)}"
        )
        return database

    def _without_failing(self, rows: pa.Table, query: str) -> pa.Table:
        """The query's result, in pieces: one that fails is halved, and a single row dropped."""
        database = self._evaluating(rows.slice(0, 0))
        kept = [database.sql(query).to_arrow_table()]  # what fails without rows is not theirs
        start, length, size = 0, rows.num_rows, 0
        while start < rows.num_rows:
            piece = rows.slice(start, length)
            database.register(_PIECE, piece)
            try:
                result = bounded_table(database.sql(query))
            except duckdb.Error:
                if piece.num_rows == 1:
                    self.dropped += 1
                    start += 1
                length = max(piece.num_rows // 2, 1)
                if _is_lost(database):
                    database.close()
                    database = self._evaluating(piece)
                continue
            kept.append(result)
            size = check_size(size + result.nbytes)
            start, length = start + piece.num_rows, 2 * length
            if len(kept) > _PIECES_MAX:
                kept = [pa.concat_tables(kept).combine_chunks()]
        database.close()
        return pa.concat_tables(kept)


def _is_lost(database: duckdb.DuckDBPyConnection) -> bool:
    """Whether an internal error has invalidated a database."""
    try:
        database.execute("SELECT 1").fetchall()
    except duckdb.Error:
        return True
    return False


def bounded_table(result: duckdb.DuckDBPyRelation) -> pa.Table:
    """All rows of a result, unless they would not fit the memory."""
    batches, size = [], 0
    try:
        with result.to_arrow_reader(1 << 20) as reader:
            for batch in reader:
                batches.append(batch)
                size = check_size(size + batch.nbytes)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError):  # of the database, passed on
        raise duckdb.Error("It failed.") from None
