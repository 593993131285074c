"""Expressions of the row part: they work on one row by itself, and never vary.

Privacy contract: every function is looked up in DuckDB's own catalogue; one that is not known to be
a deterministic function of its arguments is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from sqlglot import exp

from dpsqlp.errors import SqlError
from dpsqlp.sql.binder import Binder
from dpsqlp.sql.functions import bad_function, nearest_function
from dpsqlp.sql.location import Text
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.relations import Scope, sql
from dpsqlp.sql.row_limits import captured, unbounded
from dpsqlp.sql.syntax import DatabaseError

ROW_WISE = "The row part sees one row at a time."
PUBLIC_WAY_OUT = "Prepare public data in CREATE PUBLIC TABLE, where any query is allowed."
TIME_OF_A_NUMBER = (
    "Write TO_TIMESTAMP(x) for seconds since 1970, TIMESTAMP '1970-01-01' +"
    " TO_MICROSECONDS(1000 * x) for milliseconds, or TIMESTAMP '1970-01-01' + TO_MICROSECONDS(x)"
    " for microseconds."
)

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In)
_NUMBERS = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    *("FLOAT", "DOUBLE", "DECIMAL"),
)
# Types that a text compared with them is cast to, and not every text can be.
_PARSED = (*_NUMBERS, "BOOLEAN", "DATE", "TIME", "UUID", "INTERVAL")


def _is_text(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Literal) and node.is_string


def _is_plain(kind: str) -> bool:
    """Whether a type is one of them: no text, and nothing that holds others."""
    return kind.startswith(_PARSED) and not kind.endswith("]")


def is_number(kind: str) -> bool:
    """Whether a type is a number's."""
    return kind.startswith(_NUMBERS) and not kind.endswith("]")


def missing_column(text: Text, node: exp.Column, known: Iterable[str]) -> SqlError:
    """The refusal of a column that does not exist, with the nearest one that does."""
    columns = sorted(set(known))
    near = difflib.get_close_matches(node.name.lower(), columns, 1, 0.6)
    way_out = f"Did you mean {near[0]}?" if near else f"The columns are {', '.join(columns)}."
    return text.refuse(node.this, f"There is no column {node.name}", way_out)


def _compared(node: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Each text of a comparison, after what it is compared with."""
    sides = [*node.args.values()]
    flat = [part for side in sides for part in (side if isinstance(side, list) else [side])]
    parts = [part for part in flat if isinstance(part, exp.Expr)]
    typed = next((part for part in parts if not _is_text(part)), None)
    if typed is not None and not typed.find(exp.Query):
        yield from ((typed, part) for part in parts if _is_text(part))


class Expressions:
    """Checks expressions, and asks DuckDB for their types."""

    def __init__(self, text: Text, binder: Binder) -> None:
        self.text = text
        self.binder = binder

    def check(self, node: exp.Expr, scope: Scope | None = None) -> None:
        """Refuse expressions that do not work on a row by itself, or vary; and constants that are
        NULL on every row, which would look like a stream without rows."""
        if node.find(exp.Query):
            raise self.refused_subquery(node)
        for below in node.find_all(exp.Window, exp.Explode, exp.Unnest, exp.Placeholder):
            if isinstance(below, exp.Window):
                raise self.text.refuse(
                    below,
                    f"An analytic function (OVER) couples rows. {ROW_WISE}",
                    "Aggregate with GROUP BY; there is no private equivalent per row.",
                )
            raise self.text.refuse(
                below,
                "A parameter has no value here"
                if isinstance(below, exp.Placeholder)
                else "UNNEST cannot stand inside an expression",
                "Write the value itself."
                if isinstance(below, exp.Placeholder)
                else "Write FROM s, UNNEST(s.x) AS t(y), or select it by itself in a WITH query.",
            )
        called = node.find_all(exp.Func, exp.AtTimeZone, exp.Escape)
        for function in reversed(list(called)):  # innermost first
            if not isinstance(function, exp.Connector):  # AND and OR, whose parts are looked at
                self._check_function(function)
        self._check_lambdas(node, scope)
        self._check_constants(node, scope)
        self._check_times(node, scope)

    def _check_function(self, node: exp.Expr) -> None:
        try:
            query = f"SELECT {sql(node)}"
            found = bad_function(query) or unbounded(query)
        except DatabaseError:
            found = (self.text.written(node), "unknown")
        if found is None:
            return
        name, kind = self.text.written(node).upper() or found[0].upper(), found[1]
        if isinstance(node, exp.AtTimeZone):
            name = "AT TIME ZONE"
        facts = {
            "aggregate": f"{name} couples rows. {ROW_WISE}",
            "varying": f"{name} may give another value when it is evaluated again, so a restart"
            " would compute with other data",
            "table": f"{name} is a table function",
            "constant": f"{name} stops a run on an unknown part of time, time zone or escape"
            " character, so this argument must be a constant",
            "unchecked": f"{name} can make timestamps that are out of range, which stop a run",
            "fatal": f"{name} can end the process on some values",
            "length": f"{name} could make a result of any length from one row",
            "repeated": f"{name} could repeat a text of one row any number of times",
            "growing": f"{name} could make a result of any length from one row",
        }
        ways_out = {
            "aggregate": "Aggregate in the SELECT WITH DIFFERENTIAL_PRIVACY. " + PUBLIC_WAY_OUT,
            "varying": "Use the row's own columns, for example its timestamp.",
            "table": "Read it once with CREATE PUBLIC TABLE.",
            "constant": "Write CASE x WHEN 'one' THEN ... WHEN 'another' THEN ... END.",
            "unchecked": "Write TIMESTAMP '1970-01-01' + TO_MICROSECONDS(1000 * x) for milliseconds"
            " x; for the milliseconds of a timestamp, EPOCH_US(ts) // 1000.",
            "fatal": "Use JSON_EXTRACT, JSON_EXISTS, LIST_CONTAINS or LIST_FILTER.",
            "length": "Write the length as a constant, or as LEAST(x, 100); a series as"
            " RANGE(0, LEAST(x, 100)).",
            "repeated": "Make the separator, replacement or format a constant, without widths that"
            " are arguments.",
            "growing": "Use LIST_SUM, LIST_MAX or ARRAY_TO_STRING, and LEVENSHTEIN.",
        }
        if name in ("TUMBLE", "HOP"):
            raise self.text.refuse(
                node, f"{name} makes windows, which stand in GROUP BY", f"Move {name} to GROUP BY."
            )
        raise self.text.refuse(
            node,
            facts.get(kind, f"There is no function {name}"),
            ways_out.get(kind) or nearest_function(name),
        )

    def _check_lambdas(self, node: exp.Expr, scope: Scope | None) -> None:
        """Refuse lambdas that would repeat a text or list of the row in each element."""
        names = sorted(captured(f"SELECT {sql(node)}"))
        if not names:
            return
        columns: list[exp.Expr] = [
            exp.Var(this=f"{'.'.join(map(quote_identifier, parts))} AS c{number}")
            for number, parts in enumerate(names)
        ]
        try:  # what is no column here belongs to a lambda further out
            kinds = [] if scope is None else self.binder.types(scope.query(columns))
        except DatabaseError:
            kinds = []
        if not kinds or not all(_is_plain(kind) for _, kind in kinds):
            raise self.text.refuse(
                node,
                "A lambda would repeat a text or list of the row in each element",
                "Use the lambda's own parameters, and columns that are numbers or times; or UNNEST"
                " the list.",
            )

    def _check_constants(self, node: exp.Expr, scope: Scope | None) -> None:
        """Refuse texts that are not of the type they are cast to or compared with."""
        for cast in node.find_all(exp.Cast):
            if (
                not isinstance(cast, exp.TryCast)
                and not cast.find_ancestor(exp.Try)
                and _is_text(cast.this)
            ):
                self._check_constant(cast.this, sql(cast.to))
        pairs = [pair for below in node.find_all(*_COMPARISONS) for pair in _compared(below)]
        if scope is None or not pairs:
            return
        texts = list(dict.fromkeys(sql(typed) for typed, _ in pairs))
        named = ", ".join(f"{text} AS c{number}" for number, text in enumerate(texts))
        try:
            found = self.binder.types(scope.query([exp.Var(this=named)]))
        except DatabaseError:  # reported where the whole query is bound
            return
        kinds = dict(zip(texts, (kind for _, kind in found), strict=True))
        for typed, constant in pairs:
            kind = kinds[sql(typed)]
            if _is_plain(kind):
                self._check_constant(constant, kind)

    def _check_times(self, node: exp.Expr, scope: Scope | None) -> None:
        """Refuse numbers that are cast to a time: DuckDB makes each of them NULL."""
        casts = [
            cast for cast in node.find_all(exp.Cast) if cast.to.this in exp.DataType.TEMPORAL_TYPES
        ]
        if scope is None or not casts:
            return
        cast_from: list[exp.Expr] = [
            exp.alias_(cast.this.copy(), f"c{number}") for number, cast in enumerate(casts)
        ]
        try:
            kinds = [kind for _, kind in self.binder.types(scope.query(cast_from))]
        except DatabaseError:  # reported where the whole query is bound, or of a lambda
            return
        for cast, kind in zip(casts, kinds, strict=True):
            if is_number(kind):
                raise self.text.refuse(
                    cast.this,
                    f"A {kind} cast to {sql(cast.to)} is NULL on every row",
                    TIME_OF_A_NUMBER,
                )

    def _check_constant(self, node: exp.Expr, kind: str) -> None:
        if not self.binder.reads(node.name, kind):
            raise self.text.refuse(
                node,
                f"{sql(node)} is not a {kind}, so this would be NULL on every row",
                "Correct the constant, or compare with a column of its type.",
            )

    def types(self, scope: Scope, nodes: list[exp.Expr], place: exp.Expr) -> list[str]:
        """DuckDB types of expressions in a scope."""
        named = [exp.alias_(node.copy(), f"c{n}") for n, node in enumerate(nodes)]
        return [kind for _, kind in self.describe(scope.query(named), place, scope)]

    def describe(
        self, query: str, place: exp.Expr, scope: Scope | None = None
    ) -> list[tuple[str, str]]:
        """Names and DuckDB types of a query's columns, or an SqlError at `place`."""
        try:
            return self.binder.types(query)
        except DatabaseError as problem:
            raise self.translate(problem, place, scope) from None

    def translate(
        self, problem: DatabaseError, place: exp.Expr, scope: Scope | None = None
    ) -> Exception:
        """DuckDB's error as an SqlError, at the column or function that it names."""
        quoted = str(problem).split('"')[1::2]
        names = {name.lower() for name in [problem.name, *quoted] if name}
        for node in place.find_all(exp.Column, exp.Func):
            known = {node.name.lower(), self.text.written(node).lower()}
            if known & names:
                place = node
                break
        if (
            scope is not None
            and isinstance(place, exp.Column)
            and place.name.lower() not in scope.columns
        ):
            return missing_column(self.text, place, scope.columns)
        return self.text.refuse(
            place,
            str(problem).rstrip("!."),
            "Check names and types against the source and the public tables.",
        )

    def refused_subquery(self, node: exp.Expr) -> Exception:
        """Why a subquery cannot stand where it does."""
        place = node.find(exp.Query) or node
        return self.text.refuse(
            place,
            "A subquery stands only after IN or EXISTS in a condition, over public tables",
            "Join to the public table instead.",
        )
