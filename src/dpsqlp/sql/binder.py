"""Binding: the types that DuckDB gives to the columns of a query, or its error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from dpsqlp.sql.database import configure
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.syntax import DatabaseError, parser

# DuckDB cuts some error texts within a character, and Python then cannot decode them.
ERRORS = (duckdb.Error, UnicodeDecodeError)
_TRIED = "tried"  # a schema in which each source has a row
_VALUES = ("'1'", "'2024-01-01 00:00:00'", "'12:00:00'", "'1 day'", "'[1]'", "'{}'")


class Binder:
    """Binds queries against empty sources and the public tables."""

    __slots__ = ("connection",)

    def __init__(
        self, sources: Mapping[str, Sequence[tuple[str, str]]], tables: Mapping[str, pa.Table]
    ) -> None:
        self.connection = duckdb.connect(
            ":memory:", config={"errors_as_json": True, "python_enable_replacements": False}
        )
        configure(self.connection)
        self.connection.execute(f"CREATE SCHEMA {_TRIED}")
        for name, columns in sources.items():
            # A view: a table would have a rowid, which micro-batches do not.
            empty = ", ".join(
                f"CAST(NULL AS {kind}) AS {quote_identifier(c)}" for c, kind in columns
            )
            self.connection.execute(
                f"CREATE VIEW {quote_identifier(name)} AS SELECT {empty} WHERE false"
            )
            some = ", ".join(f"{_some(kind)} AS {quote_identifier(c)}" for c, kind in columns)
            self.connection.execute(
                f"CREATE VIEW {_TRIED}.{quote_identifier(name)} AS SELECT {some}"
            )
        for name, table in tables.items():
            self.connection.register(name, table)

    def types(self, query: str) -> list[tuple[str, str]]:
        """Names and DuckDB types of a query's columns."""
        try:
            return [
                (row[0], row[1]) for row in self.connection.execute(f"DESCRIBE {query}").fetchall()
            ]
        except ERRORS as problem:
            raise database_error(problem) from None

    def try_out(self, query: str) -> None:
        """Evaluate a query on one row: what its constants stop is said now, not at a record."""
        try:
            self.connection.execute(f"SET schema = '{_TRIED}'")
            self.connection.execute(query).fetchall()
            self.connection.execute("SET schema = 'main'")
        except ERRORS as problem:
            raise database_error(problem) from None

    def reads(self, text: str, kind: str) -> bool:
        """Whether a text is a value of a type."""
        try:
            self.connection.execute(f"SELECT CAST(? AS {kind})", [text])
        except duckdb.ConversionException:
            return False
        except ERRORS:  # not a type: reported where the whole query is bound
            return True
        return True

    def schema(self, query: str) -> pa.Schema:
        """The Arrow schema that a query gives."""
        try:
            return self.connection.sql(query).to_arrow_table().schema
        except ERRORS as problem:
            raise database_error(problem) from None


def _some(kind: str) -> str:
    """A value of a type, mostly not null."""
    tried = (f"TRY_CAST({value} AS {kind})" for value in _VALUES)
    return f"COALESCE({', '.join(tried)})"


def database_error(problem: Exception) -> DatabaseError:
    """What DuckDB says of a statement."""
    if isinstance(problem, UnicodeDecodeError):
        return DatabaseError("A text constant has characters that cannot be used there", None)
    text = str(problem)
    try:
        detail = json.loads(text[text.index("{") :])
    except ValueError:
        return DatabaseError(text.splitlines()[0], None)
    message = detail.get("exception_message", "").splitlines()
    return DatabaseError(message[0] if message else text, detail.get("name"))


def is_type(name: str) -> bool:
    """Whether DuckDB has a type of this name."""
    try:
        parser().execute(f"SELECT CAST(NULL AS {name})")
    except ERRORS:
        return False
    return True
