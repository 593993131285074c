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


def mentioned_names(query: str) -> set[str] | None:
    """Every name in a query, in lower case, of columns and other things; None if it has a *."""
    nodes = list(nodes_of(syntax_tree(query)))
    if any(node.get("class") == "STAR" for node in nodes):
        return None
    texts = (v for node in nodes for value in node.values() for v in _flat(value))
    return {text.lower() for text in texts if isinstance(text, str)}


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def arguments_of(node: dict[str, Any]) -> list[Any]:
    """The arguments of a function."""
    return list(node.get("arguments") or node.get("children") or [])
