"""The DuckDB connection that row and release queries run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from dpsqlp.sql.quoting import quote_text

# Optimisers that only choose columns and the kind of a join. The others are off. One of them moves
# an expression that occurs twice out of its TRY. Those that use statistics would couple rows: the
# number of rows would decide whether the stream is in a join's hash table, where a row with a long
# list may exhaust the memory that it does not exhaust elsewhere.
_OPTIMIZERS = {
    "column_lifetime",
    "cte_inlining",
    "deliminator",
    "filter_pushdown",
    "unnest_rewriter",
    "unused_columns",
}


def connect(
    tables: Mapping[str, pa.Table] | None = None,
    config: Mapping[str, Any] | None = None,
    folders: Sequence[str] = (),
) -> duckdb.DuckDBPyConnection:
    """A connection for row and release queries: UTC, no network, no extensions, no files but those
    of a source's folders, and only optimisers under which TRY holds.

    Locked, so give memory limits and threads in `config`. Public tables are registered by name.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "temp_directory": "",  # records are not spilled, in clear, to wherever it runs
            **(config or {}),
        },
    )
    configure(connection)
    for name, table in (tables or {}).items():
        connection.register(name, table)
    if folders:
        listed = ", ".join(map(quote_text, folders))
        connection.execute(f"SET allowed_directories = [{listed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def configure(connection: duckdb.DuckDBPyConnection) -> None:
    """Set the time zone and the optimisers under which row and release queries run."""
    connection.execute("SET TimeZone = 'UTC'")
    names = {row[0] for row in connection.execute("FROM duckdb_optimizers()").fetchall()}
    connection.execute("SET disabled_optimizers = ?", [",".join(sorted(names - _OPTIMIZERS))])
