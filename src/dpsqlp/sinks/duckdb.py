"""A table in a DuckDB file. Its comment has the pipeline, the last trigger and its digest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from dpsqlp.errors import SinkError
from dpsqlp.sinks.base import DIAGNOSTICS_SUFFIX, Sink
from dpsqlp.sinks.published import Published, other_pipeline, release_digest
from dpsqlp.sql.quoting import quote_identifier, quote_text


class DuckDbSink(Sink):
    """A table with the rows of all triggers."""

    def __init__(self, path: Path, table: str) -> None:
        self._path = path
        self._name = table
        self._table = quote_identifier(table)
        self._rows = f"{table} rows"  # never the table's own name
        self._owner = ""

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Refuse another pipeline's table, if the file can be read now."""
        self._owner = f"dpsqlp pipeline {pipeline}"
        if self._path.is_file():
            with suppress(duckdb.Error), duckdb.connect(str(self._path)) as database:
                self._last_published(database)

    def diagnostics(self) -> DuckDbSink:
        """A table beside this one."""
        return DuckDbSink(self._path, self._name + DIAGNOSTICS_SUFFIX)

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Add the trigger's rows in one transaction, unless they were published."""
        digest = release_digest(release)
        rows = quote_identifier(self._rows)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with duckdb.connect(str(self._path)) as database:
                database.register(self._rows, release)
                database.execute("BEGIN")
                published = self._last_published(database)
                if published is not None and published.has(trigger, digest, str(self._path)):
                    return
                database.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} AS FROM {rows} WHERE false"
                )
                database.execute(f"INSERT INTO {self._table} BY NAME FROM {rows}")
                comment = quote_text(f"{self._owner}, trigger {trigger} {digest}")
                database.execute(f"COMMENT ON TABLE {self._table} IS {comment}")
                database.execute("COMMIT")
        except (duckdb.Error, OSError) as error:
            raise SinkError(
                f"{self._path} could not be written: {error}. The release is kept. Close other"
                " programs that have the file open, or repair it, then run again."
            ) from error

    def _last_published(self, database: duckdb.DuckDBPyConnection) -> Published | None:
        """The last release in the table, which must be this pipeline's."""
        published = None
        query = (  # to DuckDB, T and t are one table
            "SELECT comment FROM duckdb_tables()"
            " WHERE NOT internal AND lower(table_name) = lower(?)"
        )
        for (comment,) in database.execute(query, [self._name]).fetchall():
            if comment is None:
                continue
            owner, _, last = str(comment).partition(", trigger ")
            if owner != self._owner:
                where = f"The table {self._name} of {self._path}"
                raise other_pipeline(where, "table", "rename or drop the table")
            number, _, digest = last.partition(" ")
            published = Published(int(number), digest)
        return published
