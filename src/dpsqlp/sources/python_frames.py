"""Frames that a Python program hands over: Arrow, pandas, Polars, or dictionaries of columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

from dpsqlp.errors import SourceError
from dpsqlp.sources.base import GridTime
from dpsqlp.sources.columns import try_one
from dpsqlp.sources.convert import fitted, is_missing, known
from dpsqlp.sources.spool import SpooledSource, SpoolRange, check_no_offset
from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.state.storage import Storage

_HISTORY = 0  # names the spool of a replay; cuts name theirs by the trigger, from 1
_FAILURES = (duckdb.Error, pa.ArrowException, ValueError, TypeError, OverflowError)


class PythonSource(SpooledSource):
    """Frames that the program pushes. A replay on event time has those of before its first trigger.

    Privacy contract: their records are spooled before that trigger's intent is written, and each
    intent names the digest. So the records of all triggers are decided before any noise is used.
    """

    suffix = "arrow"

    def __init__(self, source: SourceDef, storage: Storage) -> None:
        super().__init__(source, storage)
        self._waiting: list[pa.Table] = []
        self._is_fixed = False  # a replay has begun

    def push(self, frame: Any) -> None:
        """Hand over records for the next trigger, or for a replay that has not begun."""
        if self._is_fixed:
            raise history_is_fixed()
        self._waiting.append(as_table(frame, self._source, self._schema))

    def cut(self, offset: SpoolRange | None, at: GridTime) -> SpoolRange:
        """Everything pushed since the last cut, spooled."""
        check_no_offset(offset)
        return self._spool_waiting(at.trigger)

    def replay(self, offset: SpoolRange | None, span: tuple[int, int]) -> SpoolRange:
        """An event-time span of what was pushed before the first trigger."""
        if offset is None and not self._waiting:
            raise SourceError(
                "No records were fed. A replay on event time has all its records before its first"
                " trigger: feed them, then call run(). Nothing was run."
            )
        self._is_fixed = True
        if offset is None:
            offset = self._spool_waiting(_HISTORY)
        elif "spool" not in offset:
            check_no_offset(offset)
        return {"spool": offset["spool"], "digest": offset["digest"], "span": span}

    def _spool_waiting(self, name: int) -> SpoolRange:
        count = len(self._waiting)  # more may be pushed meanwhile
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, self._schema) as writer:
            for table in self._waiting[:count]:
                writer.write_table(table)
        offsets = self._spool(name, [buffer.getvalue()])
        del self._waiting[:count]
        return offsets

    def _parse(self, data: bytes) -> pa.Table:
        return pa.ipc.open_stream(data).read_all()


def history_is_fixed() -> SourceError:
    """The refusal of records for a replay that has begun."""
    return SourceError(
        "A replay on event time reads the records that were fed before its first trigger, and that"
        " has run. Records that are added now would change the past. Feed all of them first, to a"
        " new pipeline, which spends its own budget; or leave ON EVENT TIME out."
    )


def arrow_table(frame: Any) -> pa.Table:
    """An Arrow, pandas or Polars table, or a dictionary of columns, as an Arrow table."""
    if not isinstance(frame, dict | pa.RecordBatch | pa.Table) and not hasattr(
        frame, "__arrow_c_stream__"
    ):
        raise SourceError(
            f"Records come as Arrow, pandas or Polars tables or as a dictionary of columns; got"
            f" {type(frame).__name__}."
        )
    with _redacted("The columns of a table have the same length, and each column has one type."):
        return pa.table(frame)


def as_table(frame: Any, source: SourceDef, schema: pa.Schema) -> pa.Table:
    """The source's columns; values of another type than their column's become nulls.

    Python values are cast together with values of their own type only, one layer for each type that
    a column has. So the result for a value does not depend on the values beside it.
    """
    columns = _columns(frame)
    taken = {}
    for name in schema.names:
        found = [values for own, values in columns if own.lower() == name.lower()]
        if len(found) > 1:
            raise SourceError(f"The records have the column {name} twice. Rename one of them.")
        if found:
            taken[name] = found[0]
    missing = [name for name in schema.names if name not in taken]
    if missing:
        raise SourceError(f"The records lack the columns {missing} of the source. Add them.")
    layers = {
        field.name: [known(_chunked(one)) for one in _layers(taken[field.name], field)]
        for field in schema
    }
    if len({len(layer) for several in layers.values() for layer in several}) > 1:
        raise SourceError("The records are no table: its columns have different lengths.")
    with suppress(*_FAILURES):
        return _cast(layers, source.columns, schema)
    read = [
        _read_column(layers[field.name], column, field)
        for column, field in zip(source.columns, schema, strict=True)
    ]
    return pa.table(read, schema=schema)


def _columns(frame: Any) -> list[tuple[str, Any]]:
    """Names and values. Columns of pandas may hold Python objects, as those of a dictionary do."""
    if isinstance(frame, dict) or type(frame).__module__.partition(".")[0] == "pandas":
        return [(str(name), values) for name, values in frame.items()]
    table = arrow_table(frame)
    return list(zip(table.column_names, table.columns, strict=True))


def _layers(values: Any, field: pa.Field) -> list[Any]:
    """A column as layers, one for each type of its values, null where a value has another type."""
    if getattr(getattr(values, "dtype", None), "kind", None) == "O":
        with _redacted("A column has several dimensions. Hand over one value for each record."):
            values = values.tolist()
            len(values)
    if not isinstance(values, list | tuple):
        with _redacted("A column is no list of values that Arrow has a type for. Convert it."):
            streams = hasattr(values, "__arrow_c_stream__")
            return [pa.chunked_array(values) if streams else pa.array(values)]
    if pa.types.is_nested(field.type):
        return [fitted(values, field.type)]
    kinds = [_kind(value) for value in values]
    return [
        part
        for one in dict.fromkeys(kind for kind in kinds if kind is not None)
        for part in _layers_of_kind(
            [v if kind == one else None for v, kind in zip(values, kinds, strict=True)]
        )
    ] or [pa.nulls(len(values))]


def _chunked(layer: Any) -> pa.ChunkedArray:
    return layer if isinstance(layer, pa.ChunkedArray) else pa.chunked_array([layer])


def _read_column(layers: list[Any], column: tuple[str, str], field: pa.Field) -> pa.ChunkedArray:
    """One column. A value that makes the database fail becomes null."""
    schema = pa.schema([field])
    with suppress(*_FAILURES):
        return _cast({field.name: layers}, [column], schema).column(0)
    with _redacted(
        f"The column {field.name} is declared {column[1]}, and cannot be made from"
        f" {layers[0].type}. Convert it before it is pushed."
    ):
        _cast({field.name: [layer.slice(0, 0) for layer in layers]}, [column], schema)
    if len(layers[0]) == 1:
        return pa.chunked_array([pa.nulls(1, field.type)])
    half = len(layers[0]) // 2
    halves = [[layer.slice(0, half) for layer in layers], [layer.slice(half) for layer in layers]]
    chunks = [chunk for part in halves for chunk in _read_column(part, column, field).chunks]
    return pa.chunked_array(chunks, field.type)


def _cast(
    layers: Mapping[str, Sequence[Any]], columns: Sequence[tuple[str, str]], schema: pa.Schema
) -> pa.Table:
    """Columns with their declared types; each value comes from the layer that has it."""
    table = pa.table(
        {f"{name} {n}": one for name, own in layers.items() for n, one in enumerate(own)}
    )
    casts = []
    for name, kind in columns:
        tried = [try_one(quote_identifier(f"{name} {n}"), kind) for n in range(len(layers[name]))]
        casts.append(f"COALESCE({', '.join(tried)}) AS {quote_identifier(name)}")
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("frame", table)
        read = database.sql(f"SELECT {', '.join(casts)} FROM frame").to_arrow_table().cast(schema)
        if any(pa.types.is_nested(kind) for kind in schema.types):
            # A struct with the same name twice becomes a map that DuckDB cannot read again.
            database.register("again", read)
            database.sql("SELECT COUNT(COLUMNS(*)) FROM again").fetchall()
        return read


@contextmanager
def _redacted(words: str) -> Iterator[None]:
    """Replace any error by this text: its own text may hold a record."""
    try:
        yield
    except Exception:
        raise SourceError(words) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Polars
            raise
        raise SourceError(words) from None


def _kind(value: Any) -> Any:
    """The kind of a value: Arrow cannot put values of two kinds into one array."""
    if is_missing(value):
        return None
    large = isinstance(value, int) and value.bit_length() > 63
    return type(value), large, getattr(value, "tzinfo", None) is None


def _layers_of_kind(values: list[Any]) -> list[pa.Array]:
    """Values of one kind as layers, one for each Arrow type that single values have."""
    with suppress(Exception):  # an object may raise anything
        column = pa.array(values)
        return [_texts(values) if _depends(column.type) else column]
    types = [None if value is None else _type(value) for value in values]
    layers = []
    for one in dict.fromkeys(kind for kind in types if kind is not None):
        own = [v if kind == one else None for v, kind in zip(values, types, strict=True)]
        layers.append(_texts(own) if one == pa.string() else pa.array(own, one))
    return layers


def _type(value: Any) -> pa.DataType:
    """Arrow's type for a value; text if there is none, or if it depends on other values."""
    with suppress(Exception):
        kind = pa.array([value]).type
        return pa.string() if _depends(kind) else kind
    return pa.string()


def _depends(kind: pa.DataType) -> bool:
    """Whether Arrow's type depends on all the values of a column."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind))


def _texts(values: list[Any]) -> pa.Array:
    """Values as texts; null if a value has no text, such as an integer of very many digits."""
    return pa.array([None if value is None else _shown(value) for value in values], pa.string())


def _shown(value: Any) -> str | None:
    with suppress(Exception):
        return str(value).encode("utf-8", "replace").decode()
    return None
