"""One DuckDB for many short queries: to start a database takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import duckdb

_connect = duckdb.connect


@contextmanager
def shared_database() -> Iterator[None]:
    """Let `duckdb.connect()` without arguments give connections to one database in memory. A query
    that breaks the database costs a new one."""
    database = _connect()

    def connect(*given: Any, **options: Any) -> duckdb.DuckDBPyConnection:
        nonlocal database
        if given or options:
            return _connect(*given, **options)
        try:
            database.execute("SELECT 1")
        except duckdb.Error:
            database = _connect()
        return database.cursor()

    with patch.object(duckdb, "connect", connect):
        yield
    database.close()
