"""The row part: the query below the aggregation, one input row at a time.

Implements section 2 of the privacy mathematics for the row query: it maps each row of the stream by
itself, with frozen public tables, to zero or more rows. What couples rows or varies between
evaluations is refused; an expression that fails on a row yields NULL.

Privacy contract: within one FROM there is at most one relation that comes from the stream, and it
is on the preserved side of every join, so an output row depends on one input row. Every expression
that may fail stands in TRY; `sql.row_limits` bounds the rows and bytes that one row may become. The
unit's contributions are bounded after all of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from sqlglot import exp

from dpsqlp.sql.dialect import EmitClause, PrivacyClause
from dpsqlp.sql.expressions import PUBLIC_WAY_OUT, ROW_WISE, Expressions
from dpsqlp.sql.joins import check_join, refused_relation
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import PublicTable, SourceDef
from dpsqlp.sql.relations import PUBLIC, STREAM, UNKNOWN, UNNEST, Relation, Scope, safe, sql
from dpsqlp.sql.row_limits import ROWS_MAX

_SELECT_ARGS = {"expressions", "from_", "joins", "where", "with_"}
_REFUSED_ARGS = {
    "distinct": (
        "DISTINCT",
        "Units are counted once by COUNT(DISTINCT unit); groups are distinct.",
    ),
    "limit": ("LIMIT", "LIMIT may follow the SELECT WITH DIFFERENTIAL_PRIVACY, on released rows."),
    "offset": ("OFFSET", "OFFSET may follow the SELECT WITH DIFFERENTIAL_PRIVACY."),
    "group": ("GROUP BY", "Group in the SELECT WITH DIFFERENTIAL_PRIVACY."),
    "having": ("HAVING", "HAVING may follow the SELECT WITH DIFFERENTIAL_PRIVACY."),
    "order": ("ORDER BY", "ORDER BY may follow the SELECT WITH DIFFERENTIAL_PRIVACY."),
    "qualify": ("QUALIFY", "Filter with WHERE on the row's own columns."),
    "windows": ("WINDOW", "Analytic functions are not supported."),
    "sample": ("SAMPLE", "Filter with WHERE on the row's own columns."),
    "laterals": ("LATERAL", "Use UNNEST, or a join to a public table."),
}


def _base(columns: Sequence[str], origin: str) -> Relation:
    origins = {name.lower(): frozenset([origin]) for name in columns}
    return Relation("", origins, origin == STREAM)


class RowPart:
    """Checks and rewrites the row part of one query."""

    def __init__(
        self,
        text: Text,
        source: SourceDef,
        other_sources: set[str],
        tables: Mapping[str, PublicTable],
        expressions: Expressions,
        unnests: int,
    ) -> None:
        """`unnests` is how many UNNESTs the query has: a row becomes the product of their lists."""
        self.text = text
        self.elements_max = exp.Literal.number(int(ROWS_MAX ** (1 / max(unnests, 1)) + 1e-9))
        self.expressions = expressions
        self.other_sources = other_sources
        self.base = {source.name.lower(): _base([c for c, _ in source.columns], STREAM)}
        for name, table in tables.items():
            self.base[name] = _base(table.rows.column_names, PUBLIC)
        self.ctes: dict[str, tuple[exp.CTE, Relation]] = {}

    def scope(self, select: exp.Select) -> Scope:
        """The FROM, joins, WITH and WHERE of a select, checked and rewritten."""
        self._read_with(select)
        scope = Scope(exp.Select())
        from_ = select.args.get("from_")
        if from_ is None:
            raise self.text.refuse(select, "FROM is missing", "Select from a source.")
        item, relation = self._relation(from_.this, scope)
        scope.relations.append(relation)
        scope.select.set("from_", exp.From(this=item))
        for join in select.args.get("joins") or []:
            self._join(join, scope)
        self._attach_ctes(scope)
        where = select.args.get("where")
        if where is not None:
            condition = self._on if select.args.get("joins") else self.condition
            scope.select.set("where", exp.Where(this=condition(where.this, scope)))
            if not isinstance(select.parent, exp.Exists):  # may refer to the query around it
                self.expressions.types(scope, [exp.true()], where)
        return scope

    def _read_with(self, select: exp.Select) -> None:
        with_ = select.args.get("with_")
        if with_ is None:
            return
        if with_.args.get("recursive"):
            raise self.text.refuse(
                with_, f"A recursive query couples rows. {ROW_WISE}", PUBLIC_WAY_OUT
            )
        for cte in with_.expressions:
            query, relation = self._query(cte.this)
            found = self._bind(query, cte)
            name = cte.alias.lower()
            relation = self._renamed(relation, name, cte.args["alias"], found)
            rewritten = exp.CTE(this=query, alias=cte.args["alias"].copy())
            self.ctes[name] = (rewritten, relation)

    def _attach_ctes(self, scope: Scope) -> None:
        if self.ctes:
            rewritten = [cte.copy() for cte, _ in self.ctes.values()]
            scope.select.set("with_", exp.With(expressions=rewritten))

    def _query(self, node: exp.Expr) -> tuple[exp.Select, Relation]:
        """A select of the row part: a WITH query, a derived table, a subquery."""
        while isinstance(node, exp.Subquery) and not node.args.get("alias"):
            node = node.this
        if isinstance(node, exp.SetOperation):
            raise self.text.refuse(
                node,
                f"{type(node).__name__.upper()} is not supported in the row part",
                "Filter with OR, or use one sink for each part.",
            )
        if not isinstance(node, exp.Select):
            raise self.text.refuse(node, "A SELECT is expected here", PUBLIC_WAY_OUT)
        self._check_select(node)
        outer = dict(self.ctes)
        scope = self.scope(node)
        self.ctes = outer
        projections: list[exp.Expr] = []
        columns: dict[str, frozenset[str]] = {}
        for projection in node.expressions:
            self._project(projection, scope, projections, columns)
        select = scope.select
        select.set("expressions", projections)
        select.set("with_", self._own_with(node, select))
        stream = any(relation.stream for relation in scope.relations)
        return select, Relation("", columns, stream)

    def _own_with(self, node: exp.Select, select: exp.Select) -> exp.With | None:
        """The WITH queries that were written here; outer ones are attached further out."""
        if node.args.get("with_") is None:
            return None
        names = {cte.alias.lower() for cte in node.args["with_"].expressions}
        own = [cte for cte in select.args["with_"].expressions if cte.alias.lower() in names]
        return exp.With(expressions=own)

    def _check_select(self, node: exp.Select) -> None:
        if isinstance(node.args.get("hint"), PrivacyClause) or isinstance(
            node.args.get("emit"), EmitClause
        ):
            raise self.text.refuse(
                node.args.get("hint") or node.args["emit"],
                "Only the outermost SELECT of a sink aggregates privately",
                "Make it a sink of its own.",
            )
        for name, value in node.args.items():
            if not value or name in _SELECT_ARGS:
                continue
            word, way_out = _REFUSED_ARGS.get(name, (name.rstrip("_").upper(), "Leave it out."))
            place = value[0] if isinstance(value, list) else value
            raise self.text.refuse(
                place if isinstance(place, exp.Expr) else node,
                f"{word} couples rows. {ROW_WISE}",
                way_out,
            )

    def _project(
        self,
        node: exp.Expr,
        scope: Scope,
        projections: list[exp.Expr],
        columns: dict[str, frozenset[str]],
    ) -> None:
        inner = node.this if isinstance(node, exp.Alias) else node
        star = inner.this if isinstance(inner, exp.Column) else inner
        if isinstance(star, exp.Star):
            if {k for k, v in star.args.items() if v} - {"except_"}:
                raise self.text.refuse(
                    node, "Only * and * EXCLUDE (...) are supported", "List the columns."
                )
            left_out = {c.name.lower() for c in star.args.get("except_") or []}
            table = inner.table.lower() if isinstance(inner, exp.Column) else ""
            for relation in scope.relations:
                if table in ("", relation.name):
                    for name, origin in relation.columns.items():
                        if name not in left_out:
                            columns.setdefault(name, origin)
            projections.append(node.copy())
            return
        origin = scope.origins(inner)
        if isinstance(inner, exp.Explode):
            self.expressions.check(inner.this, scope)
            rewritten: exp.Expr = exp.Explode(this=self._bounded(inner.this))
            origin |= {UNNEST}
        else:
            self.expressions.check(inner, scope)
            rewritten = safe(inner)
        name = node.alias_or_name
        if name:
            columns[name.lower()] = columns.get(name.lower(), frozenset()) | origin
            rewritten = exp.alias_(rewritten, exp.to_identifier(name, quoted=True), copy=False)
        projections.append(rewritten)

    def _relation(self, node: exp.Expr, scope: Scope) -> tuple[exp.Expr, Relation]:
        """One item of a FROM."""
        extra = {k for k, v in node.args.items() if v} - {"this", "alias", "expressions"}
        alias = node.args.get("alias")
        if isinstance(node, exp.Unnest) and not extra:
            if len(node.expressions) != 1 or not scope.relations:
                raise self.text.refuse(
                    node,
                    "UNNEST follows the stream and takes one list",
                    "Write FROM s, UNNEST(s.x) AS t(y).",
                )
            self.expressions.check(node.expressions[0], scope)
            origin = scope.origins(node.expressions[0]) | {UNNEST}
            names = [c.name.lower() for c in alias.columns] if alias else []
            # As a relation of its own, DuckDB would copy the whole list into each of its rows.
            element = exp.alias_(exp.Explode(this=self._bounded(node.expressions[0])), "unnest")
            elements = exp.Subquery(this=exp.Select(expressions=[element]))
            item = exp.Lateral(this=elements, alias=alias.copy() if alias else None)
            name = node.alias.lower()
            return item, Relation(name, dict.fromkeys(names or ["unnest"], origin), False)
        if isinstance(node, exp.Values) and not extra:
            names = [c.name.lower() for c in alias.columns] if alias else []
            for row in node.expressions:
                self.expressions.check(row)
            columns = dict.fromkeys(names, frozenset([PUBLIC]))
            return node.copy(), Relation(node.alias.lower(), columns, False)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query) and not extra:
            query, relation = self._query(node.this)
            found = self._bind(query, node)
            renamed = self._renamed(relation, node.alias.lower(), alias, found)
            return exp.Subquery(this=query, alias=alias.copy() if alias else None), renamed
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and not extra:
            relation = self._named(node)
            renamed = self._renamed(relation, node.alias_or_name.lower(), alias)
            return node.copy(), renamed
        raise refused_relation(self.text, node)

    def _bounded(self, node: exp.Expr) -> exp.Expr:
        """A list, NULL where it fails or has more elements than a row may become rows."""
        short = exp.LTE(this=exp.Length(this=node.copy()), expression=self.elements_max.copy())
        return safe(exp.Case(ifs=[exp.If(this=short, true=node.copy())]))

    def _named(self, node: exp.Table) -> Relation:
        name = node.name.lower()
        if name in self.ctes:
            return self.ctes[name][1]
        if name in self.base:
            return self.base[name]
        if name in self.other_sources:
            raise self.text.refuse(
                node,
                f"{node.name} is a second stream: in a join of streams, one unit's rows decide"
                " which rows of another count",
                "Use one source for each sink; make reference data a CREATE PUBLIC TABLE.",
            )
        near = difflib.get_close_matches(name, [*self.base, *self.ctes], 1, 0.5)
        raise self.text.refuse(
            node,
            f"There is no source or public table {node.name}",
            f"Did you mean {near[0]}?"
            if near
            else "Define it with CREATE SOURCE, or read a file"
            " with CREATE PUBLIC TABLE name AS SELECT * FROM 'file.csv'.",
        )

    def _renamed(
        self,
        relation: Relation,
        name: str,
        alias: exp.Expr | None,
        found: Sequence[tuple[str, str]] | None = None,
    ) -> Relation:
        """The relation under a name. `found` are its columns as DuckDB has them, in their order:
        a column without a name of its own has a place too. Of one name, all are meant.
        """
        given = [column.lower() for column, _ in found] if found else list(relation.columns)
        names = [c.name.lower() for c in alias.columns] if isinstance(alias, exp.TableAlias) else []
        columns: dict[str, frozenset[str]] = {}
        for place, column in enumerate(given):
            new = names[place] if place < len(names) else column
            origin = relation.columns.get(column, frozenset([UNKNOWN]))
            columns[new] = columns.get(new, frozenset()) | origin
        return Relation(name, columns, relation.stream)

    def _join(self, join: exp.Join, scope: Scope) -> None:
        item, relation = self._relation(join.this, scope)
        before = any(r.stream for r in scope.relations)
        side, kind = check_join(self.text, join, before, relation)
        rewritten = exp.Join(this=item, side=side or None, kind=kind or None)
        on, using = join.args.get("on"), join.args.get("using")
        left = Scope(scope.select.copy(), list(scope.relations))
        scope.relations.append(relation)
        if using:
            self._check_using(join, using, left, item)
            rewritten.set("using", [name.copy() for name in using])
        if on is not None:
            left.select.append("joins", exp.Join(this=item.copy(), kind="CROSS"))
            self._attach_ctes(left)
            left.relations.append(relation)
            rewritten.set("on", self._on(on, left))
        scope.select.append("joins", rewritten)
        if kind in ("SEMI", "ANTI"):
            scope.relations.pop()

    def _on(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """Equalities of columns keep their form, so that the join stays a hash join. Compared with
        a constant, rows of a file would be skipped by its statistics, which leave out NaN.
        """
        if isinstance(node, exp.Paren):
            return exp.Paren(this=self._on(node.this, scope))
        if isinstance(node, exp.And):
            return exp.And(
                this=self._on(node.this, scope), expression=self._on(node.expression, scope)
            )
        if isinstance(node, exp.EQ) and not node.find(exp.Query):
            self.expressions.check(node, scope)
            sides = [safe(node.this), safe(node.expression)]
            left, right = self.expressions.types(scope, sides, node)
            if left == right and all(side.find(exp.Column) for side in sides):
                return exp.EQ(this=sides[0], expression=sides[1])
        return self.condition(node, scope)

    def _check_using(
        self, join: exp.Join, using: list[exp.Expr], left: Scope, item: exp.Expr
    ) -> None:
        right = Scope(exp.Select(from_=exp.From(this=item.copy())))
        self._attach_ctes(left)
        self._attach_ctes(right)
        for name in using:
            column = exp.column(name.copy())
            kinds = [self.expressions.types(side, [column], name)[0] for side in (left, right)]
            if kinds[0] != kinds[1]:
                raise self.text.refuse(
                    name,
                    f"The two columns {name.name} have types {kinds[0]} and {kinds[1]}; comparing"
                    " them may fail on a row",
                    "Write JOIN ... ON TRY_CAST(a.x AS ...) = b.x.",
                )

    def condition(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """A condition that is NULL where it fails. IN and EXISTS over public tables are kept."""
        if not node.find(exp.Query):
            self.expressions.check(node, scope)
            return exp.Try(this=exp.cast(node.copy(), exp.DType.BOOLEAN))
        if isinstance(node, exp.And | exp.Or):
            return type(node)(
                this=self.condition(node.this, scope),
                expression=self.condition(node.expression, scope),
            )
        if isinstance(node, exp.Not | exp.Paren):
            return type(node)(this=self.condition(node.this, scope))
        if isinstance(node, exp.Exists):
            return exp.Exists(this=self._public_query(node.this))
        if isinstance(node, exp.In) and node.args.get("query") and not node.this.find(exp.Query):
            self.expressions.check(node.this, scope)
            query = self._public_query(node.args["query"])
            this = safe(node.this)
            self._attach_ctes(scope)
            wanted = self.expressions.types(scope, [this], node.this)[0]
            given = [kind for _, kind in self._bind(query, node)]
            if given != [wanted]:
                raise self.text.refuse(
                    node,
                    f"IN compares {wanted} with {', '.join(given)}, which may fail on a row",
                    "Select one column of the same type, or use TRY_CAST.",
                )
            return exp.In(this=this, query=exp.Subquery(this=query))
        raise self.expressions.refused_subquery(node)

    def _bind(self, query: exp.Select, place: exp.Expr) -> list[tuple[str, str]]:
        """The columns of a rewritten query; an error of DuckDB's is shown where it was written."""
        scope = Scope(query.copy())
        if query.args.get("with_") is None:
            self._attach_ctes(scope)
        return self.expressions.describe(sql(scope.select), place)

    def _public_query(self, node: exp.Expr) -> exp.Select:
        query, relation = self._query(node)
        if relation.stream:
            raise self.text.refuse(
                node,
                "A subquery over the stream couples rows of different units",
                "Only public tables can be looked up in a subquery.",
            )
        return query
