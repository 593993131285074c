"""The release query: HAVING, ORDER BY, LIMIT and the selected columns, over released rows.

All of it is post-processing, per window and trigger, with ties broken by key bytes, so that a retry
gives the same rows in the same order.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection

from sqlglot import exp

from dpsqlp.sql.aggregates import find_aggregates
from dpsqlp.sql.expressions import Expressions
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import Output
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.relations import sql

FIXED = ("window_start", "window_end", "trigger", "released_at", "window_trigger", "final")
_GROUP = "window_number, trigger"


class Post:
    """Rewrites expressions over groups into expressions over the table `released`.

    `column_of` gives the released column of a group key, the window or an alias, and None for
    anything else; `formula_of` gives an aggregate's SQL; `names` are those of released columns.
    """

    def __init__(
        self,
        text: Text,
        expressions: Expressions,
        column_of: Callable[[exp.Expr], str | None],
        formula_of: Callable[[exp.Expr], str],
        names: Collection[str],
    ) -> None:
        self.text = text
        self.expressions = expressions
        self.column_of = column_of
        self.formula_of = formula_of
        self.names = names

    def rewrite(self, node: exp.Expr, clause: str) -> str:
        """DuckDB SQL of an expression in HAVING or ORDER BY; NULL where it fails."""
        if node.find(exp.Query):
            raise self.text.refuse(
                node.find(exp.Query) or node,
                f"A subquery in {clause} is not supported",
                "Compare with numbers, keys and aggregates.",
            )
        aggregates = list(find_aggregates(node))
        plain = node.copy()
        marked = {id(n): self.formula_of(n) for n in aggregates}
        rewritten = self._replace(node, marked, clause)
        for aggregate in list(find_aggregates(plain)):
            if aggregate is plain:
                plain = exp.null()
            else:
                aggregate.replace(exp.null())
        self.expressions.check(plain)
        return f"TRY({sql(rewritten)})"

    def _replace(self, node: exp.Expr, marked: dict[int, str], clause: str) -> exp.Expr:
        if id(node) in marked:
            return _raw(marked[id(node)])
        column = self.column_of(node)
        if column is not None:
            return _raw(column)
        if isinstance(node, exp.Column):
            near = difflib.get_close_matches(node.name, self.names, 1, 0.6)
            raise self.text.refuse(
                node,
                f"{node.name} in {clause} is neither a group key, the window nor an aggregate",
                f"Did you mean {near[0]}?"
                if near
                else "Filter rows with WHERE; HAVING and ORDER BY act on released rows.",
            )
        copied = node.copy()
        for old, new in zip(
            list(node.iter_expressions()), list(copied.iter_expressions()), strict=True
        ):
            new.replace(self._replace(old, marked, clause))
        return copied


def _raw(text: str) -> exp.Expr:
    """Generated SQL inside a tree, in parentheses."""
    return exp.Paren(this=exp.Var(this=text))


def release_sql(text: Text, select: exp.Select, outputs: tuple[Output, ...], post: Post) -> str:
    """The query over `released`."""
    columns = [*FIXED, *_selected(outputs)]
    rows = "released"
    having = select.args.get("having")
    if having is not None:
        condition = post.rewrite(exp.cast(having.this, exp.DType.BOOLEAN), "HAVING")
        rows += f" WHERE {condition}"
    offset = _number(text, select.args.get("offset"), "OFFSET")
    limit = _number(text, select.args.get("limit"), "LIMIT")
    limits = [] if offset is None else [f"rows.release_rank > {offset}"]
    if limit is not None:
        limits.append(f"rows.release_rank <= {limit + (offset or 0)}")
    if not limits and select.args.get("order") is None:  # then nothing need be ranked
        # Sorting also fixes the bytes under a null, which a retry must write again.
        inner = f"SELECT * FROM {rows}"
        return f"SELECT {', '.join(columns)} FROM ({inner}) AS rows ORDER BY rows.position"
    inner = f"SELECT *, {_rank(text, select, outputs, post)} AS release_rank FROM {rows}"
    outer = f"SELECT {', '.join(columns)} FROM ({inner}) AS rows"
    if limits:
        outer += f" WHERE {' AND '.join(limits)}"
    return f"{outer} ORDER BY rows.window_number, rows.trigger, rows.release_rank"


def _selected(outputs: tuple[Output, ...]) -> list[str]:
    return [
        f"{column} AS {quote_identifier(name)}"
        for output in outputs
        for name, column in output.columns.items()
    ]


def _rank(text: Text, select: exp.Select, outputs: tuple[Output, ...], post: Post) -> str:
    terms = []
    order = select.args.get("order")
    for ordered in order.expressions if order is not None else []:
        term = ordered.this
        if isinstance(term, exp.Literal) and term.is_int:
            number = int(term.name)
            if not 1 <= number <= len(outputs):
                raise text.refuse(term, f"ORDER BY {number} is not a column", "Name the column.")
            rewritten = outputs[number - 1].sql
        else:
            rewritten = post.rewrite(term, "ORDER BY")
        direction = "DESC" if ordered.args.get("desc") else "ASC"
        nulls = "FIRST" if ordered.args.get("nulls_first") else "LAST"
        terms.append(f"{rewritten} {direction} NULLS {nulls}")
    terms.append("position")
    return f"ROW_NUMBER() OVER (PARTITION BY {_GROUP} ORDER BY {', '.join(terms)})"


def _number(text: Text, node: exp.Expr | None, clause: str) -> int | None:
    if node is None:
        return None
    value = node.expression
    more = [part for name, part in node.args.items() if part and name not in ("this", "expression")]
    if more or not (isinstance(value, exp.Literal) and value.is_int):
        raise text.refuse(
            node, f"{clause} must be a whole number", f"Write, for example, {clause} 10."
        )
    return int(value.name)
