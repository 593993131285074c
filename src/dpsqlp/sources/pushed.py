"""Records that are handed over as they come: standard input, or Python objects.

They cannot be asked for twice, so each trigger's records are spooled durably before it runs.
"""

from __future__ import annotations

import io
import sys
import threading
from typing import IO, Any

import duckdb
import pyarrow as pa

from dpsqlp.errors import SourceError
from dpsqlp.sources.base import spool
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.storage import Storage


class PushedSource:
    """Arrow tables, pandas or Polars frames pushed by the program."""

    suffix = "arrow"

    def __init__(self, source: SourceDef, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._waiting: list[pa.Table] = []
        empty = duckdb.connect().sql(
            "SELECT "
            + ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in source.columns)
            + " WHERE false"
        )
        self._schema: pa.Schema = empty.to_arrow_table().schema

    def push(self, frame: Any) -> None:
        """Hand over records for the next trigger."""
        self._waiting.append(as_table(frame, self._schema))

    def folders(self) -> list[str]:
        """Nothing is read by the database itself."""
        return []

    def begin(self) -> Any:
        """Nothing to remember: what was pushed and not run is the program's to push again."""
        return None

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """Everything pushed since the last trigger, spooled."""
        waiting, self._waiting = self._waiting, []
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, self._schema) as writer:
            for table in waiting:
                writer.write_table(table)
        return spool(self._storage, trigger, self.suffix, buffer.getvalue())

    def after(self, position: Any, records: Any) -> Any:
        """Nothing to remember."""
        return None

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""
        if records is None:
            table = self._schema.empty_table()
        else:
            data = self._storage.get(records["spool"])
            if data is None:
                raise SourceError(
                    f"The spooled records {records['spool']} are gone, and they cannot be read"
                    " again. Restore the state folder as it was."
                )
            table = self._parse(data)
        database.register(self._source.name, table)

    def forget(self, records: Any) -> None:
        """The spool has been read for good."""
        if records is not None:
            self._storage.delete(records["spool"])

    def _parse(self, data: bytes) -> pa.Table:
        return pa.ipc.open_stream(data).read_all()


class StandardInput(PushedSource):
    """JSON Lines on standard input, read by a thread until it ends."""

    suffix = "jsonl"

    def __init__(
        self, source: SourceDef, storage: Storage, stream: IO[bytes] | None = None
    ) -> None:
        super().__init__(source, storage)
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self.ended = threading.Event()
        reader = threading.Thread(
            target=self._read_lines, args=(stream or sys.stdin.buffer,), daemon=True
        )
        reader.start()

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """The lines that have arrived, spooled."""
        with self._lock:
            lines, self._lines = self._lines, []
        return spool(self._storage, trigger, self.suffix, b"".join(lines))

    def _read_lines(self, stream: IO[bytes]) -> None:
        for line in stream:
            with self._lock:
                self._lines.append(line if line.endswith(b"\n") else line + b"\n")
        self.ended.set()

    def _parse(self, data: bytes) -> pa.Table:
        """Lines that are no JSON, and fields of another type, become nulls, as in a file."""
        columns = (
            "{" + ", ".join(f"'{name}': '{kind}'" for name, kind in self._source.columns) + "}"
        )
        lines = pa.table({"line": pa.array(data.splitlines(), pa.binary()).cast(pa.string())})
        with duckdb.connect() as database:
            database.register("lines", lines)
            return database.sql(
                f"SELECT unnest(json_transform(TRY_CAST(line AS JSON), {_text(columns)})) FROM lines"
            ).to_arrow_table()


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def as_table(frame: Any, schema: pa.Schema) -> pa.Table:
    """An Arrow table of the source's columns from an Arrow, pandas or Polars object."""
    if isinstance(frame, pa.RecordBatch):
        table = pa.Table.from_batches([frame])
    elif isinstance(frame, pa.Table):
        table = frame
    elif hasattr(frame, "__arrow_c_stream__") or isinstance(frame, dict):
        table = pa.table(frame)
    else:
        raise SourceError(
            f"Records come as Arrow, pandas or Polars tables or as a dictionary of columns; got"
            f" {type(frame).__name__}."
        )
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise SourceError(f"The records lack the columns {missing} of the source. Add them.")
    return table.select(schema.names).cast(schema, safe=False)
