"""Released rows as a file to download: CSV or Parquet.

Privacy contract: a download holds rows of release files, unchanged in Parquet, and nothing else.

A key is a text from the data, and a spreadsheet takes some texts for formulas. In CSV, every text
is therefore quoted, and a `'` is put before `=`, `+`, `-` and `@` at its beginning and after each
character that some spreadsheet may take for the end of a cell. Numbers stay as they are.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from dpsqlp.sql.quoting import quote_identifier

ROWS_MAX = 100_000  # of each window
BYTES_MAX = 64 << 20  # of all rows in memory
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
FORMATS = tuple(MEDIA_TYPES)
# Commas are not among the ends of a cell: a program that takes them for one respects quotes.
_FORMULA = r"(^|[;|\x00-\x1f])( *[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])"
_NAME_MAX = 80


class TooLargeError(Exception):
    """The requested rows are more than a download may hold."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file to download."""

    name: str
    media_type: str
    body: bytes


def make_download(rows: pa.Table, sink: str, content: str, kind: str) -> Download:
    """Released rows as a file whose name tells the sink and the content."""
    if rows.nbytes > BYTES_MAX:
        raise TooLargeError(
            f"These rows take more than {BYTES_MAX >> 20} MiB. Ask for fewer: search for part of a"
            " key, or give a smaller `size`."
        )
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", sink)[:_NAME_MAX]
    body = to_csv(rows) if kind == "csv" else _to_parquet(rows)
    return Download(f"{plain}-{content}.{kind}", MEDIA_TYPES[kind], body)


def to_csv(rows: pa.Table) -> bytes:
    """Rows as CSV in UTF-8, with texts that no spreadsheet takes for a formula."""
    texts = [field.name for field in rows.schema if not _is_number(field.type)]
    if texts:
        casts = ", ".join(f"CAST({n} AS VARCHAR) AS {n}" for n in map(quote_identifier, texts))
        with duckdb.connect(config={"threads": 1}) as database:
            database.execute("SET TimeZone = 'UTC'")
            database.register("released", rows)
            rows = database.sql(f"SELECT * REPLACE ({casts}) FROM released").to_arrow_table()
    for name in texts:
        rows = rows.set_column(rows.schema.get_field_index(name), name, _guarded(rows[name]))
    heads = _guarded(pa.chunked_array([rows.column_names], pa.string())).to_pylist()
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(rows.rename_columns(heads), buffer)
    return buffer.getvalue()


def _guarded(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.replace_substring_regex(texts, pattern=_FORMULA, replacement=r"\1'\2")


def _is_number(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(is_kind(kind) for is_kind in kinds)


def _to_parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata(None), buffer, compression="zstd")
    return buffer.getvalue()
