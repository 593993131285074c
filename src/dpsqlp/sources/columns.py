"""A source's columns in DuckDB: each value cast to its declared type, null where it has another.

Privacy contract: the result of a cast depends on that value alone, and no value stops a query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import duckdb
import pyarrow as pa

from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.quoting import quote_identifier, quote_text

_MOMENT = re.compile(r"(TIMESTAMP|DATETIME)[A-Z_ ]*", re.I)
_FIRST = "TIMESTAMP '290309-12-22 (BC) 00:00:00'"  # DuckDB's first timestamp after minus infinity
_TEXT = re.compile(
    r"(TEXT|VARCHAR|STRING|CHAR|BPCHAR|NVARCHAR)( *\(\d+\))?", re.I
)  # DuckDB's names for text


def declared_schema(source: SourceDef) -> pa.Schema:
    """The source's columns as an Arrow schema."""
    with duckdb.connect() as database:
        query = f"SELECT {try_cast(source.columns, lambda _: 'NULL')} WHERE false"
        return database.sql(query).to_arrow_table().schema


def try_cast(
    columns: Sequence[tuple[str, str]], value: Callable[[str], str], spanned: str | None = None
) -> str:
    """A select list of the source's columns; null where a value has another type.

    The range of the column `spanned` is not checked, since the reader filters it.
    """
    return ", ".join(
        f"{try_one(value(name), kind, checked=name != spanned)} AS {quote_identifier(name)}"
        for name, kind in columns
    )


def try_one(value: str, kind: str, *, checked: bool = True) -> str:
    """A cast of an expression; null where its value has another type.

    A number becomes the same text whatever the type of its column. That type may depend on other
    records: pandas writes integers with a null among them as floats. Binary files can hold times
    out of range, on which DuckDB stops, with or without TRY, when they become text.
    """
    cast = f"TRY_CAST({value} AS {kind})"
    if _MOMENT.fullmatch(kind) and checked:
        moment = f"TRY_CAST({value} AS TIMESTAMP)"
        return f"CASE WHEN {moment} >= {_FIRST} OR {moment} = '-infinity' THEN {cast} END"
    if kind.upper() == "TIME":
        return f"CASE WHEN {cast} BETWEEN '00:00:00' AND '24:00:00' THEN {cast} END"
    if _TEXT.fullmatch(kind):
        return (
            f"CASE WHEN typeof({value}) IN ('FLOAT', 'DOUBLE')"
            f" THEN regexp_replace({cast}, '[.]0$', '') ELSE {cast} END"
        )
    return cast


def show(database: duckdb.DuckDBPyConnection, source: SourceDef, table: pa.Table) -> None:
    """Make records a view of the source's name, with its types. Arrow has no type for JSON."""
    if not any("JSON" in kind.upper() for _, kind in source.columns):
        database.register(source.name, table)
        return
    stored = f"{source.name} as read"
    database.register(stored, table)
    casts = [
        f"TRY_CAST({quote_identifier(n)} AS {kind}) AS {quote_identifier(n)}"
        for n, kind in source.columns
    ]
    database.execute(
        f"CREATE OR REPLACE TEMP VIEW {quote_identifier(source.name)} AS SELECT {', '.join(casts)}"
        f" FROM {quote_identifier(stored)}"
    )


def json_columns(columns: Sequence[tuple[str, str]]) -> str:
    """The columns from JSON objects in a column `line`; all null if a line is not an object."""
    structure = quote_text(json.dumps(dict(columns)))
    return f"unnest(json_transform(TRY_CAST(line AS JSON), {structure}))"
