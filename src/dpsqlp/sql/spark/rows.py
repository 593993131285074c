"""The row query in Spark SQL, with the same rows as DuckDB's: bit for bit, also where it fails.

Every relation gets a name of its own and every column is written with it, so nothing depends on
how the two databases look names up. WITH queries are written where they are read.

Privacy contract: a construct that is not known to mean the same on both is refused, so a unit's
rows are bounded alike on every engine.

Not covered: timestamps of the first days that 64 bits hold (290309 BC), where DuckDB itself wraps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dpsqlp.errors import SqlError
from dpsqlp.sql.binder import Binder
from dpsqlp.sql.dialect import Stream
from dpsqlp.sql.query import Query
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.relations import sql
from dpsqlp.sql.spark import operators, texts, times
from dpsqlp.sql.spark.cells import Cell, name_sql, spark_type
from dpsqlp.sql.spark.expressions import Expression, different, refused
from dpsqlp.sql.syntax import syntax_tree

_WHITELIST = {**operators.TRANSLATIONS, **texts.TRANSLATIONS, **times.TRANSLATIONS}
_JOINS = {
    ("", ""): "CROSS JOIN",
    ("", "CROSS"): "CROSS JOIN",
    ("", "INNER"): "JOIN",
    ("LEFT", ""): "LEFT JOIN",
    ("LEFT", "OUTER"): "LEFT JOIN",
    ("", "SEMI"): "LEFT SEMI JOIN",
    ("", "ANTI"): "LEFT ANTI JOIN",
}

_GROUPED = (  # operators, whose places in the order of precedence might be read differently
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe, exp.Not),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Is, exp.In, exp.Between, exp.Like, exp.Escape),
)


def spark_rows(query: Query) -> str:
    """Spark SQL of `query.row_sql`, for a session in UTC and ANSI mode.

    It reads views with the names of the source and the public tables, whose columns have the types
    of `spark_type`. An SqlError says what DuckDB and Spark would not do alike.
    """
    tables = {table.name: table.rows for table in query.public_tables}
    binder = Binder({query.source.name: query.source.columns}, tables)
    for _, kind in query.source.columns:
        spark_type(kind)
    (tree,) = Stream().parse(query.row_sql)
    assert tree is not None
    relations = {}
    for name in (query.source.name, *tables):
        columns = binder.types(f"FROM {quote_identifier(name)}")
        relations[name.lower()] = _Named(name_sql(name), tuple(columns))
    text, _ = _Rows(binder).query(tree, relations, None)
    _check_reading(query.row_sql, tree)
    return text


def known_columns(rows: pa.Table) -> pa.Table:
    """A public table's columns of types that Spark has; queries that use others are refused."""
    known = []
    for name, kind in Binder({}, {"t": rows}).types("FROM t"):
        with suppress(SqlError):
            spark_type(kind)
            known.append(name)
    return rows.select(known)


@dataclass(frozen=True, slots=True)
class _Named:
    """A relation that can be read: its Spark SQL, and its columns with DuckDB types."""

    sql: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """A relation of a FROM."""

    name: str  # in the query, lower case
    alias: str  # in Spark, unique
    columns: tuple[tuple[str, str], ...]

    def cell(self, name: str) -> Cell | None:
        for column, kind in self.columns:
            if column.lower() == name.lower():
                return Cell(f"{self.alias}.{name_sql(column)}", kind)
        return None


@dataclass(slots=True)
class _From:
    """The relations of a FROM, and those of the query around it."""

    outer: _From | None
    items: list[_Item] = field(default_factory=list)
    hidden: set[tuple[str, str]] = field(default_factory=set)  # (alias, column) that USING merged
    conditions: list[str] = field(default_factory=list)  # of joins, for the WHERE

    def find(self, node: exp.Column) -> Cell:
        *tables, name = [part.name for part in node.parts]
        found = [
            cell
            for item in self.items
            if (cell := item.cell(name)) is not None
            and (item.name == tables[0].lower() if tables else not self._merged(item, name))
        ]
        if len(found) == 1 and len(tables) <= 1:
            return found[0]
        if not found and self.outer is not None:
            return self.outer.find(node)
        raise refused(
            node,
            "The Spark engine does not find this column in the FROM",
            "Fields of a STRUCT and names given in the same SELECT are not supported on Spark:"
            " name it in a WITH query.",
        )

    def _merged(self, item: _Item, name: str) -> bool:
        return (item.alias, name.lower()) in self.hidden

    def star(self, table: str) -> list[tuple[str, Cell]]:
        """The columns of a *."""
        return [
            (column, cell)
            for item in self.items
            for column, _ in item.columns
            if table in ("", item.name) and (table or not self._merged(item, column))
            if (cell := item.cell(column)) is not None
        ]


class _Rows:
    """Writes the relations of one query."""

    def __init__(self, binder: Binder) -> None:
        self.binder = binder
        self.aliases = 0

    def query(
        self, node: exp.Expr, relations: Mapping[str, _Named], outer: _From | None
    ) -> tuple[str, list[tuple[str, str]]]:
        """A SELECT in Spark SQL, and its columns."""
        while isinstance(node, exp.Subquery):
            node = node.this
        if not isinstance(node, exp.Select):
            raise different(node)
        relations = dict(relations)
        for cte in node.args["with_"].expressions if node.args.get("with_") else []:
            body, columns = self.query(cte.this, relations, outer)
            relations[cte.alias.lower()] = _renamed(
                _Named(f"({body})", tuple(columns)), cte.args["alias"]
            )
        scope = _From(outer)

        def subquery(below: exp.Expr) -> str:
            return self.query(below, relations, scope)[0]

        expression = Expression(self.binder, _WHITELIST, scope.find, subquery)
        text = "FROM " + self._item(node.args["from_"].this, relations, scope, expression)
        for join in node.args.get("joins") or []:
            text += " " + self._join(join, relations, scope, expression)
        if node.args.get("where"):
            scope.conditions.append(expression.cell(node.args["where"].this).sql)
        if scope.conditions:
            text += f" WHERE {' AND '.join(f'({each})' for each in scope.conditions)}"
        projections = _projections(node, scope, expression)
        listed = ", ".join(f"{cell.sql} AS {name_sql(name)}" for name, cell in projections)
        return f"SELECT {listed} {text}", [(name, cell.kind) for name, cell in projections]

    def _item(
        self,
        node: exp.Expr,
        relations: Mapping[str, _Named],
        scope: _From,
        expression: Expression,
        outer: bool = False,
    ) -> str:
        """One relation of a FROM, added to the scope. `outer`: an empty list is a null."""
        alias = node.args.get("alias")
        if isinstance(node, exp.Table) and node.name.lower() in relations:
            named = relations[node.name.lower()]
        elif isinstance(node, exp.Subquery):
            body, columns = self.query(node, relations, None)
            named = _Named(f"({body})", tuple(columns))
        elif isinstance(node, exp.Lateral):
            unnested = _unnest(node.this.this.expressions[0].this, expression, outer)
            named = _Named(
                f"LATERAL (SELECT {unnested.sql} AS `unnest`)", (("unnest", unnested.kind),)
            )
        else:
            raise different(node)
        named = _renamed(named, alias)
        self.aliases += 1
        item = _Item(node.alias_or_name.lower(), f"r{self.aliases}", named.columns)
        scope.items.append(item)
        return f"{named.sql} AS {item.alias}"

    def _join(
        self,
        node: exp.Join,
        relations: Mapping[str, _Named],
        scope: _From,
        expression: Expression,
    ) -> str:
        side, kind = (str(node.args.get(part) or "").upper() for part in ("side", "kind"))
        on, using = node.args.get("on"), node.args.get("using") or []
        words = _JOINS.get((side, kind))
        if words is None:
            raise different(node, "Use JOIN or LEFT JOIN, with the stream on the left.")
        if words == "CROSS JOIN" and (on or using):
            words = "JOIN"
        left = list(scope.items)
        lateral = isinstance(node.this, exp.Lateral)
        item = self._item(node.this, relations, scope, expression, lateral and side == "LEFT")
        right = scope.items[-1]
        conditions = [] if on is None else [expression.cell(on).sql]
        for name in using:
            cells = (
                _From(None, left, scope.hidden).find(exp.column(name.copy())),
                right.cell(name.name),
            )
            assert cells[1] is not None
            conditions.append(f"({cells[0].sql} = {cells[1].sql})")
            scope.hidden.add((right.alias, name.name.lower()))
        if lateral:  # as another join, Spark would copy the whole list into each of its rows
            if kind in ("SEMI", "ANTI") or (side == "LEFT" and conditions != ["TRUE"]):
                raise different(node, "Write LEFT JOIN UNNEST(x) AS t(y) ON TRUE, and a WHERE.")
            scope.conditions += [condition for condition in conditions if condition != "TRUE"]
            return f"CROSS JOIN {item}"
        if words in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
            scope.items.pop()
        return f"{words} {item}" + (f" ON {' AND '.join(conditions)}" if conditions else "")


def _renamed(named: _Named, alias: exp.Expr | None) -> _Named:
    """A relation with other names for its columns: AS t(a, b)."""
    names = [column.name for column in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return named
    pairs = list(zip(names, named.columns, strict=False))
    listed = [f"{name_sql(old)} AS {name_sql(new)}" for new, (old, _) in pairs]
    rest = named.columns[len(names) :]
    listed += [name_sql(name) for name, _ in rest]
    columns = (*((new, kind) for new, (_, kind) in pairs), *rest)
    prefix = "LATERAL " if named.sql.startswith("LATERAL ") else ""
    return _Named(f"{prefix}(SELECT {', '.join(listed)} FROM {named.sql[len(prefix) :]})", columns)


def _projections(node: exp.Select, scope: _From, expression: Expression) -> list[tuple[str, Cell]]:
    found: list[tuple[str, Cell]] = []
    unnested = 0
    for projection in node.expressions:
        inner = projection.unalias()
        star = inner.this if isinstance(inner, exp.Column) else inner
        if isinstance(star, exp.Star):
            left_out = {c.name.lower() for c in star.args.get("except_") or []}
            table = inner.table.lower() if isinstance(inner, exp.Column) else ""
            found += [(n, c) for n, c in scope.star(table) if n.lower() not in left_out]
        elif isinstance(inner, exp.Explode):
            unnested += 1
            if unnested > 1:
                raise different(inner, "Use one UNNEST in a SELECT.")
            found.append((projection.alias_or_name, _unnest(inner, expression)))
        else:
            cell = expression.cell(inner)
            spark_type(cell.kind)
            found.append((projection.alias_or_name, cell))
    return found


def _unnest(node: exp.Explode, expression: Expression, outer: bool = False) -> Cell:
    series = node.this
    if not isinstance(series, exp.GenerateSeries):
        cell = expression.cell(series)
        if not cell.kind.endswith("[]"):
            raise different(node)
        return Cell(f"explode{'_outer' if outer else ''}({cell.sql})", cell.kind[:-2])
    if series.args.get("step") or not series.args.get("is_end_exclusive"):
        raise different(node)
    first, last = (expression.as_type(series.args[end], "BIGINT") for end in ("start", "end"))
    numbers = f"sequence({first.sql}, try_subtract({last.sql}, 1L))"
    return Cell(f"explode(CASE WHEN {first.sql} < {last.sql} THEN {numbers} END)", "BIGINT")


def _check_reading(text: str, tree: exp.Expr) -> None:
    """Refuse what DuckDB and sqlglot group differently.

    With every operation in parentheses, the text must still be the same to DuckDB.
    """
    for node in reversed(list(tree.walk())):
        if isinstance(node, _GROUPED) and not isinstance(node.parent, exp.Paren | exp.Escape):
            node.replace(exp.Paren(this=node.copy()))
    if _shape(syntax_tree(sql(tree))) != _shape(syntax_tree(text)):
        raise refused(
            tree,
            "DuckDB and the Spark engine would group the operations of this query differently",
            "Write parentheses around each operation.",
        )


def _shape(tree: Any) -> Any:
    """DuckDB's syntax tree without the places in the text; NOT x IS NULL is x IS NOT NULL."""
    if isinstance(tree, list):
        return [_shape(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    below = tree.get("children") or [{}]
    if tree.get("type") == "OPERATOR_NOT" and below[0].get("type") == "OPERATOR_IS_NULL":
        tree = {**below[0], "type": "OPERATOR_IS_NOT_NULL"}
    return {k: _shape(v) for k, v in tree.items() if not k.startswith("query_location")}
