"""A release as the bytes of a Parquet or JSON Lines file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.sql.quoting import quote_identifier, quote_text
from dpsqlp.sql.release import FIXED

_TIMES = ("window_start", "window_end", "released_at")


def to_parquet(release: pa.Table) -> bytes:
    """The release as a Parquet file. Parquet has no seconds: DuckDB makes them milliseconds, since
    Arrow cannot convert infinite times.
    """
    seconds = [quote_identifier(f.name) for f in release.schema if f.type == pa.timestamp("s")]
    if seconds:
        casts = ", ".join(f"{name}::TIMESTAMP_MS AS {name}" for name in seconds)
        with duckdb.connect() as database:
            database.register("release", release)
            query = f"SELECT * REPLACE ({casts}) FROM release"
            release = database.sql(query).to_arrow_table()
    buffer = io.BytesIO()
    pq.write_table(release, buffer, compression="zstd", use_dictionary=repeated_columns(release))
    return buffer.getvalue()


def repeated_columns(release: pa.Table) -> list[str]:
    """The columns that repeat values. A dictionary of another would be as large as the column."""
    return [name for name in release.column_names if name in FIXED or name.endswith("_sd")]


def to_json_lines(release: pa.Table) -> bytes:
    """One JSON object a row. Infinite numbers and NaN are texts: JSON has neither."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("release", release)
        columns = ", ".join(f"{quote_text(f.name)}, {_json_value(f)}" for f in release.schema)
        lines = database.execute(f"SELECT json_object({columns}) FROM release").fetchall()
    return "".join(f"{line}\n" for (line,) in lines).encode()


def from_json_rows(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """The rows of JSON Lines. Times become timestamps; columns without values become texts."""
    table = pa.Table.from_pylist(list(rows))
    for number, column in enumerate(table.schema):
        kind = column.type
        if column.name in _TIMES:
            kind = pa.timestamp("us")
        elif pa.types.is_null(kind):
            kind = pa.string()
        if kind != column.type:
            table = table.set_column(number, column.name, table.column(number).cast(kind))
    return table


def _json_value(field: pa.Field) -> str:
    name = quote_identifier(field.name)
    if not pa.types.is_floating(field.type):
        return name
    number = f"to_json({name})"
    return f"CASE WHEN isfinite({name}) THEN {number} ELSE to_json({number}::TEXT) END"
