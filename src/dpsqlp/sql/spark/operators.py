"""Comparisons, logic, arithmetic, choices and casts, with the places where they fail."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsqlp.sql.relations import sql
from dpsqlp.sql.spark.cells import (
    INTEGERS,
    Cell,
    cast,
    loosely,
    partial,
    spark_type,
    strictly,
)
from dpsqlp.sql.spark.expressions import COMPARED, NUMBERS, Expression, Translation, different
from dpsqlp.sql.spark.times import is_microseconds, shifted

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], tuple[str, str]] = {  # on integers, and on floats
    exp.Add: ("try_add", "+"),
    exp.Sub: ("try_subtract", "-"),
    exp.Mul: ("try_multiply", "*"),
}


def _comparison(self: Expression, node: exp.Expr) -> Cell:
    left, right = self.common(node, node.this, node.expression)
    return strictly(f"({left.sql} {_COMPARISONS[type(node)]} {right.sql})", "BOOLEAN", left, right)


def _null_safe(self: Expression, node: exp.Expr) -> Cell:
    left, right = self.common(node, node.this, node.expression)
    same = f"({left.sql} <=> {right.sql})"
    return loosely(
        same if isinstance(node, exp.NullSafeEQ) else f"(NOT {same})", "BOOLEAN", left, right
    )


def _between(self: Expression, node: exp.Expr) -> Cell:
    x, low, high = self.common(node, node.this, node.args["low"], node.args["high"])
    return loosely(f"({x.sql} BETWEEN {low.sql} AND {high.sql})", "BOOLEAN", x, low, high)


def _in(self: Expression, node: exp.Expr) -> Cell | None:
    if node.args.get("query"):
        x = self.cell(node.this)
        return loosely(f"({x.sql} IN ({self.subquery(node.args['query'])}))", "BOOLEAN", x)
    x, *items = self.common(node, node.this, *node.expressions)
    return loosely(f"({x.sql} IN ({', '.join(i.sql for i in items)}))", "BOOLEAN", x, *items)


def _exists(self: Expression, node: exp.Expr) -> Cell:
    return Cell(f"EXISTS ({self.subquery(node.this)})", "BOOLEAN")


def _connector(self: Expression, node: exp.Expr) -> Cell:
    """DuckDB computes both sides of AND and OR on every row, so each may fail."""
    sides = [self.as_type(side, "BOOLEAN") for side in (node.this, node.expression)]
    word = "AND" if isinstance(node, exp.And) else "OR"
    return loosely(f"({sides[0].sql} {word} {sides[1].sql})", "BOOLEAN", *sides)


def _not(self: Expression, node: exp.Expr) -> Cell:
    x = self.as_type(node.this, "BOOLEAN")
    return strictly(f"(NOT {x.sql})", "BOOLEAN", x)


def _is(self: Expression, node: exp.Expr) -> Cell | None:
    if isinstance(node.expression, exp.Null):
        x = self.cell(node.this)
        return loosely(f"({x.sql} IS NULL)", "BOOLEAN", x)
    if isinstance(node.expression, exp.Boolean):
        x = self.as_type(node.this, "BOOLEAN")
        return loosely(f"({x.sql} IS {sql(node.expression)})", "BOOLEAN", x)
    return None


def _arithmetic(self: Expression, node: exp.Expr) -> Cell | None:
    if isinstance(node.expression, exp.Interval) or is_microseconds(node.expression):
        return shifted(self, node)
    kind = self.kind(node)
    on_integers, on_floats = _ARITHMETIC[type(node)]
    if kind not in NUMBERS:
        return None
    left, right = self.as_type(node.this, kind), self.as_type(node.expression, kind)
    if kind in INTEGERS:
        return partial(f"{on_integers}({left.sql}, {right.sql})", kind, left, right)
    return strictly(f"({left.sql} {on_floats} {right.sql})", kind, left, right)


def _divided(self: Expression, node: exp.Expr) -> Cell | None:
    """Division by zero is infinite in DuckDB, and keeps the sign of zero.

    Which zero GREATEST and LEAST give is not known, so they are no divisors.
    """
    if self.kind(node) != "DOUBLE" or node.expression.find(exp.Greatest, exp.Least):
        return None
    left, right = self.as_type(node.this, "DOUBLE"), self.as_type(node.expression, "DOUBLE")
    return strictly(
        f"CASE WHEN {right.sql} = 0D THEN {left.sql} * power({right.sql}, -1D)"
        f" ELSE {left.sql} / nullif({right.sql}, 0D) END",
        "DOUBLE",
        left,
        right,
    )


def _whole(self: Expression, node: exp.Expr) -> Cell | None:
    """// and % on integers: zero fails, and so does the smallest number by -1."""
    kind = self.kind(node)
    if kind not in INTEGERS:
        return None
    left, right = self.as_type(node.this, kind), self.as_type(node.expression, kind)
    word = "%" if isinstance(node, exp.Mod) else "div"
    form = f"CAST({left.sql} {word} {{}} AS {spark_type(kind)})"
    if self.value(node.expression) not in (None, 0, -1):
        return strictly(form.format(right.sql), kind, left, right)
    negated = f"({_minus(left)} * 0)" if isinstance(node, exp.Mod) else _minus(left)
    value = form.format(f"nullif(nullif({right.sql}, 0), -1)")
    return partial(f"CASE WHEN {right.sql} = -1 THEN {negated} ELSE {value} END", kind, left, right)


def _remainder(self: Expression, node: exp.Expr) -> Cell | None:
    if self.kind(node) != "DOUBLE":
        return _whole(self, node)
    left, right = self.as_type(node.this, "DOUBLE"), self.as_type(node.expression, "DOUBLE")
    return strictly(
        f"CASE WHEN {right.sql} = 0D THEN {left.sql} * CAST('NaN' AS DOUBLE)"
        f" ELSE {left.sql} % nullif({right.sql}, 0D) END",
        "DOUBLE",
        left,
        right,
    )


def _negated(self: Expression, node: exp.Expr) -> Cell | None:
    kind, x = self.kind(node), self.cell(node.this)
    if kind != x.kind or kind not in NUMBERS:
        return None
    if kind in INTEGERS:
        return partial(_minus(x), kind, x)
    return strictly(f"(- {x.sql})", kind, x)


def _absolute(self: Expression, node: exp.Expr) -> Cell | None:
    x = self.cell(node.this)
    if x.kind in INTEGERS:
        return partial(f"CASE WHEN {x.sql} < 0 THEN {_minus(x)} ELSE {x.sql} END", x.kind, x)
    return strictly(f"abs({x.sql})", x.kind, x) if x.kind in NUMBERS else None


def _minus(cell: Cell) -> str:
    return f"try_subtract(CAST(0 AS {spark_type(cell.kind)}), {cell.sql})"


# Rounding: Spark's FLOOR and CEIL give BIGINT and overflow, its ROUND goes over decimals.


def _floor(self: Expression, node: exp.Expr) -> Cell | None:
    if node.args.get("decimals") is not None or self.kind(node) != "DOUBLE":
        return None
    x = self.as_type(node.this, "DOUBLE")
    sign = "- " if isinstance(node, exp.Ceil) else ""  # CEIL(x) is -FLOOR(-x), also for -0.0
    y = f"({sign}{x.sql})"
    lower = f"CASE WHEN rint({y}) > {y} THEN rint({y}) - 1D ELSE rint({y}) END"
    return strictly(f"({sign}{lower})", "DOUBLE", x)


def _rounded(x: str) -> str:
    """Half away from zero; rint goes to even."""
    r = f"rint({x})"
    tie = f"abs({x} - {r}) = 0.5D AND abs({r}) < abs({x})"
    return f"CASE WHEN {tie} THEN {r} + 2D * ({x} - {r}) ELSE {r} END"


def _round(self: Expression, node: exp.Expr) -> Cell | None:
    places = node.args.get("decimals")
    x = self.cell(node.this)
    if x.kind != "DOUBLE":
        return None
    if places is None:
        return strictly(_rounded(x.sql), "DOUBLE", x)
    digits = self.value(places)
    if not isinstance(digits, int) or not 0 <= digits <= 15:
        return None
    scaled = f"({_rounded(f'({x.sql} * 1e{digits}D)')}) / 1e{digits}D"
    finite = f"abs({x.sql} * 1e{digits}D) < CAST('Infinity' AS DOUBLE)"
    return strictly(f"CASE WHEN {finite} THEN {scaled} ELSE {x.sql} END", "DOUBLE", x)


def _root(self: Expression, node: exp.Expr) -> Cell:
    x = self.as_type(node.this, "DOUBLE")
    return strictly(f"sqrt({x.sql})", "DOUBLE", x)


def _is_nan(self: Expression, node: exp.Expr) -> Cell | None:
    x = self.cell(node.this)
    if x.kind not in ("FLOAT", "DOUBLE"):
        return None
    return strictly(f"({x.sql} = CAST('NaN' AS {x.kind}))", "BOOLEAN", x)


# Choices: the branches that are not taken do not fail.


def _case(self: Expression, node: exp.Expr) -> Cell:
    kind = self.kind(node)
    subject = node.args.get("this")
    branches = []
    for branch in node.args["ifs"]:
        test = branch.this
        if subject is not None:
            test = exp.EQ(this=subject.copy(), expression=test.copy())
        condition = self.as_type(test, "BOOLEAN")
        if condition.failed is not None and test.find(exp.Connector):
            # Here alone DuckDB stops at the side that decides, and may try the sides in any order.
            raise different(test, "Write TRY(...) around the part that may fail on a row.")
        value = self.as_type(branch.args["true"], kind)
        branches.append((condition, value))
    default = node.args.get("default")
    return _chosen(branches, self.as_type(default or exp.null(), kind), kind)


def _chosen(branches: list[tuple[Cell, Cell]], otherwise: Cell, kind: str) -> Cell:
    whens = " ".join(f"WHEN {c.sql} THEN {v.sql}" for c, v in branches)
    value = f"CASE {whens} ELSE {otherwise.sql} END"
    cells = [otherwise, *(cell for branch in branches for cell in branch)]
    if all(cell.failed is None for cell in cells):
        return Cell(value, kind)
    tests = " ".join(
        (f"WHEN {c.failed} THEN TRUE " if c.failed else "")
        + f"WHEN {c.sql} THEN {v.failed or 'FALSE'}"
        for c, v in branches
    )
    return loosely(value, kind, failed=f"CASE {tests} ELSE {otherwise.failed or 'FALSE'} END")


def _if(self: Expression, node: exp.Expr) -> Cell:
    branch = exp.If(this=node.this.copy(), true=node.args["true"].copy())
    false = node.args.get("false")
    return _case(self, exp.Case(ifs=[branch], default=false.copy() if false else None))


def _coalesce(self: Expression, node: exp.Expr) -> Cell:
    kind = self.kind(node)
    cells = [self.as_type(part, kind) for part in (node.this, *node.expressions)]
    *first, last = cells
    branches = [(loosely(f"({c.sql} IS NOT NULL)", "BOOLEAN", c), Cell(c.sql, kind)) for c in first]
    chosen = _chosen(branches, last, kind)
    return Cell(f"coalesce({', '.join(c.sql for c in cells)})", kind, chosen.failed, chosen.strict)


def _null_if(self: Expression, node: exp.Expr) -> Cell:
    kind = self.kind(node)
    left, right = self.common(node, node.this, node.expression)
    value = self.as_type(node.this, kind)
    sql_text = f"CASE WHEN {left.sql} = {right.sql} THEN NULL ELSE {value.sql} END"
    return loosely(sql_text, kind, left, right)


def _extreme(self: Expression, node: exp.Expr) -> Cell | None:
    kind = self.kind(node)
    if kind not in COMPARED or kind == "FLOAT":  # of which DuckDB loses the sign of zero
        return None
    cells = [self.as_type(part, kind) for part in (node.this, *node.expressions)]
    name = "greatest" if isinstance(node, exp.Greatest) else "least"
    if len(cells) < 2:
        return None
    return loosely(f"{name}({', '.join(c.sql for c in cells)})", kind, *cells)


def _cast(self: Expression, node: exp.Expr) -> Cell:
    x, kind = self.cell(node.this), self.kind(node)
    found = cast(x, kind)
    if found is None:
        raise different(node, _cast_way_out(x.kind, kind))
    if isinstance(node, exp.TryCast):
        return Cell(found.sql, kind, x.failed, x.strict)
    return found


def _cast_way_out(given: str, wanted: str) -> str:
    if given == "VARCHAR" and wanted in INTEGERS:
        return f"Convert through DOUBLE: CAST(CAST(x AS DOUBLE) AS {wanted})."
    if given == "VARCHAR":
        return f"Declare the column as {wanted} in CREATE SOURCE."
    if wanted == "VARCHAR":
        return "Group by the value itself, or convert it where the data is written."
    return "Convert it where the data is written, or compute with DOUBLE or BIGINT."


TRANSLATIONS: Mapping[type[exp.Expr] | str, Translation] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    exp.NullSafeEQ: _null_safe,
    exp.NullSafeNEQ: _null_safe,
    exp.Between: _between,
    exp.In: _in,
    exp.Exists: _exists,
    exp.And: _connector,
    exp.Or: _connector,
    exp.Not: _not,
    exp.Is: _is,
    exp.Div: _divided,
    exp.IntDiv: _whole,
    exp.Mod: _remainder,
    exp.Neg: _negated,
    exp.Abs: _absolute,
    exp.Floor: _floor,
    exp.Ceil: _floor,
    exp.Round: _round,
    exp.Sqrt: _root,
    exp.IsNan: _is_nan,
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _null_if,
    exp.Greatest: _extreme,
    exp.Least: _extreme,
    exp.Cast: _cast,
    exp.TryCast: _cast,
}
