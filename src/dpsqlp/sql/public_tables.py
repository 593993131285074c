"""Public tables: their rows in a fixed order, and a digest of them."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from dpsqlp.sql.binder import database_error


def read_public(query: str, tables: Mapping[str, pa.Table], folder: str) -> tuple[pa.Table, str]:
    """The rows of a public table in a fixed order, and a digest of them."""
    connection = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": False, "errors_as_json": True}
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET file_search_path = ?", [folder])
    for name, table in tables.items():
        connection.register(name, table)
    try:
        connection.execute(f"CREATE TABLE public_table AS {query}")
        return _frozen(connection)
    except (duckdb.Error, UnicodeDecodeError) as problem:
        raise database_error(problem) from None


def freeze(table: pa.Table) -> tuple[pa.Table, str]:
    """A public table handed in from Python, in a fixed order, and a digest of it."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("given", table)
    connection.execute("CREATE TABLE public_table AS SELECT * FROM given")
    return _frozen(connection)


def _frozen(connection: duckdb.DuckDBPyConnection) -> tuple[pa.Table, str]:
    rows = connection.sql("SELECT * FROM public_table ORDER BY ALL").to_arrow_table()
    digest = connection.execute(
        "SELECT sha256(concat_ws(chr(10), "
        "(SELECT string_agg(column_name || ' ' || column_type, ',')"
        " FROM (DESCRIBE public_table)), "
        "(SELECT string_agg(line, chr(10) ORDER BY line)"
        " FROM (SELECT CAST(to_json(t) AS VARCHAR) AS line FROM public_table AS t))))"
    ).fetchone()
    assert digest is not None
    return rows, digest[0]
