"""DuckDB's own syntax tree of a query."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import duckdb


class DatabaseError(Exception):
    """What DuckDB says of a statement; `name` is the column, function or table it is about."""

    def __init__(self, message: str, name: str | None) -> None:
        self.name = name
        super().__init__(message)


@functools.cache
def parser() -> duckdb.DuckDBPyConnection:
    """A connection that parses, and knows DuckDB's catalogue."""
    return duckdb.connect(":memory:")


@functools.lru_cache(maxsize=64)  # several checks look at the same text
def syntax_tree(query: str) -> Any:
    """DuckDB's own reading of a query; not to be changed."""
    row = parser().execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    tree = json.loads(row[0])
    if tree.get("error"):
        raise DatabaseError(tree.get("error_message", "syntax error"), None)
    return tree["statements"]


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a syntax tree, from the top."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes_of(value)


def arguments_of(node: dict[str, Any]) -> list[Any]:
    """The arguments of a function."""
    return list(node.get("arguments") or node.get("children") or [])
