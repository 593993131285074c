"""Records that are handed over as they come: standard input, or Python objects.

They cannot be asked for twice, so each trigger's records are spooled durably when they are cut off
from those of the next. A line of standard input belongs to the trigger that is due after its end
was read; lines that wait in the pipe behind others have not been read.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, takewhile
from typing import IO, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from dpsqlp.errors import SourceError
from dpsqlp.sources.base import (
    UNFITTING,
    GridTime,
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
_LINE_BYTES = 2_000_000  # a line of so many is left out, as DuckDB does in a file
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

    def cut(self, position: Any, at: GridTime) -> Any:
        """Everything pushed since the last cut, spooled."""
        _check_none(position)
        count = len(self._waiting)  # more may be pushed meanwhile
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, self._schema) as writer:
            for table in self._waiting[:count]:
                writer.write_table(table)
        records = spool(self._storage, at.trigger, self.suffix, buffer.getvalue())
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


def _check_none(position: Any) -> None:
    if position is not None:
        raise SourceError(
            "The state stands at a position, and what is pushed has none. Give the source the"
            " connector it had, or begin a new pipeline, which spends again."
        )


class StandardInput(PushedSource):
    """JSON Lines on standard input, read by a thread until it ends."""

    suffix = "jsonl"
    keeps_arrival_times = True

    def __init__(
        self,
        source: SourceDef,
        storage: Storage,
        now: Callable[[], int],
        stream: IO[bytes] | None = None,
    ) -> None:
        """`now` is the clock by which lines arrive."""
        super().__init__(source, storage)
        self._now = now
        self._arrived: list[tuple[int, list[bytes]]] = []  # when, and which lines
        self._lock = threading.Lock()
        self._ended_at: int | None = None
        self.ended = threading.Event()
        if stream is None:
            # Unbuffered: a thread that waits inside the buffer's lock breaks the exit of Python.
            stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        threading.Thread(target=self._read_lines, args=(stream,), daemon=True).start()

    def cut(self, position: Any, at: GridTime) -> Any:
        """The lines that have arrived by a grid time, spooled.

        One trigger runs after the end of standard input, with lines or without: were it to run
        only if lines were left, its release would show that somebody sent one.
        """
        _check_none(position)
        ended = self._ended_at is not None and self._ended_at <= at.time  # before the lines
        with self._lock:
            parts = list(takewhile(lambda part: part[0] <= at.time, self._arrived))
        lines = chain.from_iterable(lines for _, lines in parts)
        records = spool(self._storage, at.trigger, self.suffix, b"".join(lines))
        with self._lock:
            del self._arrived[: len(parts)]
        self.exhausted = ended
        return records

    def _read_lines(self, stream: IO[bytes]) -> None:
        """Collect whole lines. A long one costs no more than its length to read, nor the memory."""
        begun = bytearray()
        while chunk := stream.read(_CHUNK_BYTES):
            first, *others = chunk.split(b"\n")
            begun += first[: _LINE_BYTES - len(begun)]
            if others:
                self._keep(bytes(begun), *others[:-1])
                begun = bytearray(others[-1])
        self._keep(bytes(begun))
        self._ended_at = self._now()
        self.ended.set()

    def _keep(self, *lines: bytes) -> None:
        kept = [line + b"\n" for line in lines if 0 < len(line) < _LINE_BYTES]
        with self._lock:
            self._arrived.append((self._now(), kept))

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


def as_table(frame: Any, source: SourceDef, schema: pa.Schema) -> pa.Table:
    """The source's columns; values of another type than their column's become nulls.

    A dictionary's values are cast with those of their own type alone, in as many layers as one
    column has types: what stands beside a value does not matter.
    """
    if not isinstance(frame, dict):
        return _cast(arrow_table(frame), source, schema)
    declared = {field.name.lower(): field.type for field in schema}
    parts = {name: _parts(values, declared.get(name.lower())) for name, values in frame.items()}
    layers = [
        _cast(
            arrow_table({n: part[min(depth, len(part) - 1)] for n, part in parts.items()}),
            source,
            schema,
        )
        for depth in range(max(map(len, parts.values()), default=1))
    ]
    several = {name.lower() for name, part in parts.items() if len(part) > 1}
    columns = [
        pc.coalesce(*(layer.column(name) for layer in layers))
        if name.lower() in several
        else layers[0].column(name)
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def _cast(table: pa.Table, source: SourceDef, schema: pa.Schema) -> pa.Table:
    known = {name.lower() for name in table.column_names}
    missing = [name for name in schema.names if name.lower() not in known]
    if missing:
        raise SourceError(f"The records lack the columns {missing} of the source. Add them.")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("frame", table)
        query = f"SELECT {try_cast(source.columns, quoted)} FROM frame"
        return database.sql(query).to_arrow_table().cast(schema)


def _parts(values: Any, declared: pa.DataType | None) -> list[Any]:
    """A column, once for each type that its values have, null where they have another."""
    if getattr(getattr(values, "dtype", None), "kind", None) == "O":
        values = values.tolist()
    if declared is None or not isinstance(values, list | tuple):
        return [values]
    if pa.types.is_nested(declared):
        return [pa.array([fitting(value, declared) for value in values], declared)]
    kinds = [_kind(value) for value in values]
    return [
        part
        for one in dict.fromkeys(kind for kind in kinds if kind is not None)
        for part in _alike(
            [v if kind == one else None for v, kind in zip(values, kinds, strict=True)]
        )
    ] or [pa.nulls(len(values))]


def _kind(value: Any) -> Any:
    """What Arrow would not fit to values of another kind."""
    if value is None or type(value).__name__ in _MISSING:
        return None
    large = isinstance(value, int) and value.bit_length() > 63
    return type(value), large, getattr(value, "tzinfo", None) is None


def _alike(values: list[Any]) -> list[pa.Array]:
    """Values of one kind; once for each type that they have by themselves, if they have several."""
    with suppress(*UNFITTING):
        column = pa.array(values)
        return [_texts(values) if _depends(column.type) else column]
    types = [None if value is None else _type(value) for value in values]
    layers = []
    for one in dict.fromkeys(kind for kind in types if kind is not None):
        own = [v if kind == one else None for v, kind in zip(values, types, strict=True)]
        layers.append(_texts(own) if one == pa.string() else pa.array(own, one))
    return layers


def _type(value: Any) -> pa.DataType:
    """Arrow's type for a value; text if it has none, or one that depends on others."""
    with suppress(*UNFITTING):
        kind = pa.array([value]).type
        return pa.string() if _depends(kind) else kind
    return pa.string()


def _depends(kind: pa.DataType) -> bool:
    """Whether Arrow's type depends on all the values of a column."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind))


def _texts(values: list[Any]) -> pa.Array:
    """Values as texts; null if one has none, as an integer of very many digits."""
    return pa.array([None if value is None else _shown(value) for value in values], pa.string())


def _shown(value: Any) -> str | None:
    with suppress(*UNFITTING):
        return str(value).encode("utf-8", "replace").decode()
    return None
