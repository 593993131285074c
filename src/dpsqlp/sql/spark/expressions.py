"""Expressions of the row part in Spark SQL: a whitelist, in which each entry is known to be equal.

What stands here was compared with DuckDB on every kind of odd value (tests/sql/test_spark_rows.py).
What does not is refused: a pipeline that moves between engines must see the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from dpsqlp.errors import SqlError
from dpsqlp.sql.binder import Binder
from dpsqlp.sql.location import Text
from dpsqlp.sql.relations import sql
from dpsqlp.sql.spark.cells import INTEGERS, NULL, Cell, cast, decimal_parts, literal
from dpsqlp.sql.syntax import DatabaseError

_LONGEST = 200_000  # characters of one expression in Spark SQL
NUMBERS = (*INTEGERS, "FLOAT", "DOUBLE")
COMPARED = (*NUMBERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
_SAME = "Run it on the local engine, or write it with functions that both have: see On Spark in"


def refused(node: exp.Expr, fact: str, way_out: str) -> SqlError:
    """An error at an expression's own text: its place in the script is not known here."""
    text = sql(node)
    return Text(text).error(fact, way_out, 0, len(text) - 1)


def different(node: exp.Expr, way_out: str = f"{_SAME} the SQL reference.") -> SqlError:
    """The error for an expression that is not on the whitelist."""
    fact = "The Spark engine does not have this: DuckDB and Spark would give different answers"
    return refused(node, fact, way_out)


class Expression:
    """Translates the expressions of one SELECT; DuckDB says what type each part has.

    `translations` is the whitelist, `column` finds a column in the FROM, `subquery` translates a
    query after IN or EXISTS.
    """

    def __init__(
        self,
        binder: Binder,
        translations: Mapping[type[exp.Expr] | str, Translation],
        column: Callable[[exp.Column], Cell],
        subquery: Callable[[exp.Expr], str],
    ) -> None:
        self.binder = binder
        self.translations = translations
        self.column = column
        self.subquery = subquery

    def cell(self, node: exp.Expr) -> Cell:
        """An expression in Spark SQL; an SqlError where it might differ."""
        if isinstance(node, exp.Paren):
            return self.cell(node.this)
        if isinstance(node, exp.Column):
            return self.column(node)
        if isinstance(node, exp.Try):
            return self.cell(node.this).attempt()
        if _is_constant(node):
            return self._constant(node)
        named = str(node.this).upper() if isinstance(node, exp.Anonymous) else type(node)
        translate = self.translations.get(named)
        found = None if translate is None else translate(self, node)
        if found is None:
            raise different(node)
        if len(found.sql) + len(found.failed or "") > _LONGEST:
            raise refused(
                node, "This expression is too long for the Spark engine", "Write it in fewer steps."
            )
        return found

    def kind(self, node: exp.Expr) -> str:
        """DuckDB's type of an expression."""
        columns: dict[str, str] = {}

        def replaced(below: exp.Expr) -> exp.Expr:
            if not isinstance(below, exp.Column):
                return below
            name = f"c{len(columns)}"
            columns[name] = self.column(below).kind
            return exp.column(name)

        typed = sql(node.copy().transform(replaced))
        given = ", ".join(
            f"{'NULL' if kind == NULL else f'CAST(NULL AS {kind})'} AS {name}"
            for name, kind in columns.items()
        )
        try:
            return self.binder.types(f"SELECT {typed} AS r FROM (SELECT {given or 1})")[0][1]
        except DatabaseError:
            raise different(node) from None

    def _constant(self, node: exp.Expr) -> Cell:
        """DuckDB computes constants."""
        try:
            kind = self.binder.types(f"SELECT {sql(node)}")[0][1]
        except DatabaseError:
            raise different(node) from None
        try:
            rows = self.binder.connection.sql(f"SELECT {sql(node)}").to_arrow_table()
        except duckdb.Error:
            return replace(literal(pa.scalar(None), kind), failed="TRUE")
        return literal(rows.column(0).combine_chunks()[0], kind)

    def value(self, node: exp.Expr) -> Any:
        """The value of a constant, else None."""
        if not _is_constant(node):
            return None
        try:
            rows = self.binder.connection.sql(f"SELECT {sql(node)}").to_arrow_table()
        except duckdb.Error:
            return None
        return rows.column(0).combine_chunks()[0].as_py()

    def as_type(self, node: exp.Expr, kind: str) -> Cell:
        """An expression, cast as DuckDB casts it."""
        if _is_constant(node):
            return self._constant(exp.cast(node.copy(), kind, dialect="duckdb"))
        found = cast(self.cell(node), kind)
        if found is None:
            raise different(
                node, f"It would be cast to {kind} here, and the two engines cast differently"
            )
        return found

    def common(self, node: exp.Expr, *parts: exp.Expr) -> list[Cell]:
        """Operands of a comparison, in the type that DuckDB compares them in."""
        fixed = [p for p in parts if not (isinstance(p, exp.Literal) and p.is_string)]
        kinds = {self.cell(p).kind for p in fixed or parts} - {NULL}
        kind = _common(kinds or {"VARCHAR"})
        if kind is None:
            raise different(node, "Compare values of one type: convert one side with CAST.")
        return [self.as_type(part, kind) for part in parts]


def _common(kinds: set[str]) -> str | None:
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return kind if kind in COMPARED or decimal_parts(kind) else None
    if kinds <= set(INTEGERS):
        return max(kinds, key=lambda kind: INTEGERS[kind])
    if kinds == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    if "DOUBLE" in kinds and all(k in NUMBERS or decimal_parts(k) for k in kinds):
        return "DOUBLE"
    parts = [part for kind in kinds if (part := decimal_parts(kind))]
    if len(parts) == len(kinds):
        scale, whole = max(s for _, s in parts), max(p - s for p, s in parts)
        return f"DECIMAL({whole + scale},{scale})" if whole + scale <= 38 else None
    return None


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.Query) is None


Translation = Callable[[Expression, exp.Expr], Cell | None]
"""Spark SQL of a node, or None if it is not known to be the same."""
