"""Identifiers and texts as SQL writes them, in DuckDB and PostgreSQL alike."""

from __future__ import annotations


def quote_identifier(name: str) -> str:
    """A quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(value: str) -> str:
    """A text literal."""
    return "'" + value.replace("'", "''") + "'"
