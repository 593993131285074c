"""Records that are handed over as they come: standard input, or Python objects.

They cannot be asked for twice, so each trigger's records are spooled durably before it runs.
"""

from __future__ import annotations

import io
import sys
import threading
from contextlib import suppress
from typing import IO, Any

import duckdb
import pyarrow as pa

from dpsqlp.errors import SourceError
from dpsqlp.sources.base import (
    Source,
    declared_schema,
    fitting,
    json_columns,
    quoted,
    show,
    spool,
    try_cast,
)
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.storage import Storage

_CHUNK_BYTES = 1 << 16
_MISSING = ("NAType", "NaTType")  # pandas' names for nothing


class PushedSource(Source):
    """Arrow tables, pandas or Polars frames pushed by the program."""

    suffix = "arrow"

    def __init__(self, source: SourceDef, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._waiting: list[pa.Table] = []
        self._schema = declared_schema(source)

    def push(self, frame: Any) -> None:
        """Hand over records for the next trigger."""
        self._waiting.append(as_table(frame, self._source, self._schema))

    def begin(self) -> Any:
        """Nothing to remember: what was pushed and not run is the program's to push again."""
        return None

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """Everything pushed since the last trigger, spooled."""
        count = len(self._waiting)  # more may be pushed meanwhile
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, self._schema) as writer:
            for table in self._waiting[:count]:
                writer.write_table(table)
        records = spool(self._storage, trigger, self.suffix, buffer.getvalue())
        del self._waiting[:count]
        return records

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
        show(database, self._source, table)

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
        self.exhausted = False  # a trigger has taken what there was at the end, lines or none
        if stream is None:
            # Unbuffered: a thread that waits inside the buffer's lock breaks the exit of Python.
            stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        threading.Thread(target=self._read_lines, args=(stream,), daemon=True).start()

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """The lines that have arrived, spooled.

        One trigger runs after the end of standard input, with lines or without: were it to run
        only if lines were left, its release would show that somebody sent one.
        """
        with self._lock:
            ended = self.ended.is_set()
            records = spool(self._storage, trigger, self.suffix, b"".join(self._lines))
            self._lines = []
            self.exhausted = ended
        return records

    def _read_lines(self, stream: IO[bytes]) -> None:
        rest = b""
        while chunk := stream.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            with self._lock:
                self._lines += [line + b"\n" for line in lines]
        with self._lock:
            self._lines += [rest + b"\n"] if rest else []
            self.ended.set()

    def _parse(self, data: bytes) -> pa.Table:
        """Lines that are no JSON, and fields of another type, become nulls, as in a file."""
        lines = [line.decode(errors="replace") for line in data.split(b"\n")]
        with duckdb.connect() as database:
            database.register("lines", pa.table({"line": pa.array(lines, pa.string())}))
            query = f"SELECT {json_columns(self._source.columns)} FROM lines WHERE line <> ''"
            return database.sql(query).to_arrow_table().cast(self._schema)


def arrow_table(frame: Any) -> pa.Table:
    """An Arrow, pandas or Polars table, or a dictionary of columns, as an Arrow table."""
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame
    if not hasattr(frame, "__arrow_c_stream__") and not isinstance(frame, dict):
        raise SourceError(
            f"Records come as Arrow, pandas or Polars tables or as a dictionary of columns; got"
            f" {type(frame).__name__}."
        )
    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError):  # its text may hold a record
        raise SourceError(
            "The records are no table: its columns have one length, and each has one type."
        ) from None


def _column(values: Any, declared: pa.DataType) -> Any:
    """A column as Arrow has it, each value by itself: what stands beside it does not matter.

    Values of one plain type are what they are. Of several, or of one that Arrow would fit to all of
    them, they are texts, which are cast one by one.
    """
    if getattr(getattr(values, "dtype", None), "kind", None) == "O":
        values = values.tolist()
    if not isinstance(values, list | tuple):
        return values
    values = [None if type(value).__name__ in _MISSING else value for value in values]
    if pa.types.is_nested(declared):
        return pa.array([fitting(value, declared) for value in values], declared)
    if len({type(value) for value in values} - {type(None)}) <= 1:
        with suppress(pa.ArrowException, OverflowError, UnicodeError):
            column = pa.array(values)
            if not pa.types.is_decimal(column.type) and not pa.types.is_nested(column.type):
                return column
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float):
        value = repr(float(value)).removesuffix(".0")  # as `try_cast` writes it
    return str(value).encode("utf-8", "replace").decode()


def as_table(frame: Any, source: SourceDef, schema: pa.Schema) -> pa.Table:
    """The source's columns; values of another type than their column's become nulls."""
    if isinstance(frame, dict):
        declared = {field.name.lower(): field.type for field in schema}
        frame = {
            name: _column(values, declared[name.lower()]) if name.lower() in declared else values
            for name, values in frame.items()
        }
    table = arrow_table(frame)
    known = {name.lower() for name in table.column_names}
    missing = [name for name in schema.names if name.lower() not in known]
    if missing:
        raise SourceError(f"The records lack the columns {missing} of the source. Add them.")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("frame", table)
        query = f"SELECT {try_cast(source.columns, quoted)} FROM frame"
        return database.sql(query).to_arrow_table().cast(schema)
