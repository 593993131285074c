"""Expressions of the row part in Spark SQL: a whitelist, in which each entry is known to be equal.

What stands here was compared with DuckDB on every kind of odd value (tests/sql/test_spark_rows.py).
What does not is refused: a pipeline that moves between engines must see the same rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import duckdb
from sqlglot import exp

from dpsqlp.errors import SqlError
from dpsqlp.sql.database import Binder, DatabaseError
from dpsqlp.sql.place import Text
from dpsqlp.sql.scope import sql
from dpsqlp.sql.spark_cells import (
    FIRST_US,
    INTEGERS,
    LAST_US,
    NULL,
    Cell,
    cast,
    decimal_parts,
    infinite_sql,
    literal,
    loosely,
    micros_sql,
    partial,
    spark_type,
    strictly,
    text_sql,
    timestamp_sql,
)

_LONGEST = 200_000  # characters of one expression in Spark SQL
_NUMBERS = (*INTEGERS, "FLOAT", "DOUBLE")
_COMPARED = (*_NUMBERS, "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")
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
_FIXED_UNITS = {
    "MILLISECOND": 10**3,
    "SECOND": 10**6,
    "MINUTE": 60 * 10**6,
    "HOUR": 3600 * 10**6,
    "DAY": 86400 * 10**6,
}
_CALENDAR_UNITS = ("WEEK", "MONTH", "QUARTER", "YEAR")
_PARTS = {
    "YEAR": "YEAR",
    "QUARTER": "QUARTER",
    "MONTH": "MONTH",
    "WEEK": "WEEK",
    "DAY": "DAY",
    "DOY": "DOY",
    "DAYOFYEAR": "DOY",
    "ISODOW": "DAYOFWEEK_ISO",
    "DOW": "DAYOFWEEK",
    "DAYOFWEEK": "DAYOFWEEK",
    "HOUR": "HOUR",
    "MINUTE": "MINUTE",
    "SECOND": "SECOND",
}
_PART_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Year: "YEAR",
    exp.Quarter: "QUARTER",
    exp.Month: "MONTH",
    exp.Week: "WEEK",
    exp.Day: "DAY",
    exp.DayOfYear: "DOY",
    exp.DayOfWeek: "DOW",
    exp.DayOfWeekIso: "ISODOW",
    exp.Hour: "HOUR",
    exp.Minute: "MINUTE",
    exp.Second: "SECOND",
}
# Functions of text that have the same name or another, and the type of the result.
_TEXT_FUNCTIONS: dict[type[exp.Expr], tuple[str, str, tuple[str, ...]]] = {
    exp.Length: ("CAST(length({}) AS BIGINT)", "BIGINT", ("this",)),
    exp.Replace: ("replace({}, {}, {})", "VARCHAR", ("this", "expression", "replacement")),
    exp.StartsWith: ("startswith({}, {})", "BOOLEAN", ("this", "expression")),
    exp.EndsWith: ("endswith({}, {})", "BOOLEAN", ("this", "expression")),
    exp.Contains: ("contains({}, {})", "BOOLEAN", ("this", "expression")),
    exp.StrPosition: ("CAST(instr({}, {}) AS BIGINT)", "BIGINT", ("this", "substr")),
    exp.MD5: ("md5({})", "VARCHAR", ("this",)),
    exp.DPipe: ("({} || {})", "VARCHAR", ("this", "expression")),
}
_SAME = "Run it on the local engine, or write it with functions that both have: see On Spark in"


def refused(node: exp.Expr, fact: str, way_out: str) -> SqlError:
    """An error at an expression's own text: its place in the script is not known here."""
    text = sql(node)
    return Text(text).error(fact, way_out, 0, len(text) - 1)


def different(node: exp.Expr, way_out: str = f"{_SAME} the SQL reference.") -> SqlError:
    """The error for what is not on the whitelist."""
    fact = "The Spark engine does not have this: DuckDB and Spark would give different answers"
    return refused(node, fact, way_out)


class Expression:
    """Translates the expressions of one SELECT; DuckDB says what type each part has.

    `column` finds a column in the FROM, `subquery` translates a query after IN or EXISTS.
    """

    def __init__(
        self,
        binder: Binder,
        column: Callable[[exp.Column], Cell],
        subquery: Callable[[exp.Expr], str],
    ) -> None:
        self.binder = binder
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
        translate = _TRANSLATIONS.get(type(node)) or _named(node)
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
        """DuckDB computes what does not depend on the row."""
        try:
            kind = self.binder.types(f"SELECT {sql(node)}")[0][1]
        except DatabaseError:
            raise different(node) from None
        try:
            rows = self.binder.connection.sql(f"SELECT {sql(node)}").to_arrow_table()
        except duckdb.Error:
            return Cell("NULL", kind, "TRUE")
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
            raise different(node, f"It would be cast to {kind} here, which is not the same on both")
        return found

    def common(self, node: exp.Expr, *parts: exp.Expr) -> list[Cell]:
        """Operands of a comparison, in the type that DuckDB compares them in."""
        fixed = [p for p in parts if not (isinstance(p, exp.Literal) and p.is_string)]
        kinds = {self.cell(p).kind for p in fixed or parts} - {NULL}
        kind = _common(kinds or {"VARCHAR"})
        if kind is None:
            raise different(node, "Compare values of one type: convert one side with CAST.")
        return [self.as_type(part, kind) for part in parts]


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.Query) is None


def _common(kinds: set[str]) -> str | None:
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return kind if kind in _COMPARED or decimal_parts(kind) else None
    if kinds <= set(INTEGERS):
        return max(kinds, key=lambda kind: INTEGERS[kind])
    if kinds == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    if "DOUBLE" in kinds and all(k in _NUMBERS or decimal_parts(k) for k in kinds):
        return "DOUBLE"
    parts = [part for kind in kinds if (part := decimal_parts(kind))]
    if len(parts) == len(kinds):
        scale, whole = max(s for _, s in parts), max(p - s for p, s in parts)
        return f"DECIMAL({whole + scale},{scale})" if whole + scale <= 38 else None
    return None


# Operators


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
    if isinstance(node.expression, exp.Interval):
        return _shifted(self, node)
    kind = self.kind(node)
    on_integers, on_floats = _ARITHMETIC[type(node)]
    if kind not in _NUMBERS:
        return None
    left, right = self.as_type(node.this, kind), self.as_type(node.expression, kind)
    if kind in INTEGERS:
        return partial(f"{on_integers}({left.sql}, {right.sql})", kind, left, right)
    return strictly(f"({left.sql} {on_floats} {right.sql})", kind, left, right)


def _divided(self: Expression, node: exp.Expr) -> Cell | None:
    """Division by zero is infinite in DuckDB, and keeps the sign of zero."""
    if self.kind(node) != "DOUBLE":
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
    """// and % on integers: null by zero; the smallest number by -1 fails."""
    kind = self.kind(node)
    if kind not in INTEGERS:
        return None
    left, right = self.as_type(node.this, kind), self.as_type(node.expression, kind)
    form = (
        "({} % {})" if isinstance(node, exp.Mod) else f"CAST({{}} div {{}} AS {spark_type(kind)})"
    )
    if self.value(node.expression) not in (None, 0, -1):
        return strictly(form.format(left.sql, right.sql), kind, left, right)
    value = form.format(left.sql, f"nullif(nullif({right.sql}, 0), -1)")
    by_minus_one = f"({_minus(left)} % 1)" if isinstance(node, exp.Mod) else _minus(left)
    value = f"CASE WHEN {right.sql} = -1 THEN {by_minus_one} ELSE {value} END"
    fails = f"({right.sql} <=> -1 AND {left.sql} IS NOT NULL AND {_minus(left)} IS NULL)"
    return strictly(value, kind, left, right, fails=fails)


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
    if kind != x.kind or kind not in _NUMBERS:
        return None
    if kind in INTEGERS:
        return partial(_minus(x), kind, x)
    return strictly(f"(- {x.sql})", kind, x)


def _absolute(self: Expression, node: exp.Expr) -> Cell | None:
    x = self.cell(node.this)
    if x.kind in INTEGERS:
        return partial(f"CASE WHEN {x.sql} < 0 THEN {_minus(x)} ELSE {x.sql} END", x.kind, x)
    return strictly(f"abs({x.sql})", x.kind, x) if x.kind in _NUMBERS else None


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
    if kind not in _COMPARED:
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
        return f"Go over a number: CAST(CAST(x AS DOUBLE) AS {wanted})."
    if given == "VARCHAR":
        return f"Declare the column as {wanted} in CREATE SOURCE."
    if wanted == "VARCHAR":
        return "Group by the value itself, or convert it where the data is written."
    return "Convert it where the data is written, or compute with DOUBLE or BIGINT."


# Text


def _text_function(self: Expression, node: exp.Expr) -> Cell | None:
    form, kind, names = _TEXT_FUNCTIONS[type(node)]
    allowed = {*names, "safe"}
    if any(value for name, value in node.args.items() if name not in allowed):
        return None
    arguments = [self.cell(node.args[name]) for name in names]
    if isinstance(node, exp.DPipe) and any(a.kind == "VARCHAR" for a in arguments):
        arguments = [self.as_type(node.args[name], "VARCHAR") for name in names]
    if any(argument.kind != "VARCHAR" for argument in arguments):
        return None
    return strictly(form.format(*(a.sql for a in arguments)), kind, *arguments)


def _concat(self: Expression, node: exp.Expr) -> Cell | None:
    if self.kind(node) != "VARCHAR":
        return None
    cells = [self.as_type(part, "VARCHAR") for part in node.expressions]
    return loosely(
        f"concat({', '.join(f'''coalesce({c.sql}, '')''' for c in cells)})", "VARCHAR", *cells
    )


def _case_mapped(self: Expression, node: exp.Expr) -> Cell | None:
    """DuckDB maps each code point by itself, Spark by context and into several: 'ß' to 'SS'."""
    x = self.cell(node.this)
    if x.kind != "VARCHAR":
        return None
    name = "lower" if isinstance(node, exp.Lower) else "upper"
    given, mapped = (text_sql(part) for part in case_map(name))
    return strictly(
        f"CASE WHEN octet_length({x.sql}) = length({x.sql}) THEN {name}({x.sql})"
        f" ELSE translate({x.sql}, {given}, {mapped}) END",
        "VARCHAR",
        x,
    )


@functools.cache
def case_map(function: str) -> tuple[str, str]:
    """The characters that DuckDB's LOWER or UPPER changes, and what they become."""
    pairs = _characters(f"SELECT c, {function}(c) FROM characters WHERE {function}(c) <> c")
    return "".join(a for a, _ in pairs), "".join(b for _, b in pairs)


@functools.cache
def spaces() -> str:
    """The characters that DuckDB's TRIM takes away."""
    return "".join(c for (c,) in _characters("SELECT c FROM characters WHERE trim(c) = ''"))


def _characters(query: str) -> list[tuple[str, ...]]:
    points = "(FROM range(1, 55296) UNION ALL FROM range(57344, 1114112)) AS t(i)"  # no surrogates
    characters = f"WITH characters AS (SELECT chr(CAST(i AS INTEGER)) AS c FROM {points})"
    return duckdb.connect(":memory:").execute(f"{characters} {query} ORDER BY c").fetchall()


def _trim(self: Expression, node: exp.Expr) -> Cell | None:
    side = str(node.args.get("position") or "BOTH").upper()
    x = self.cell(node.this)
    given = node.args.get("expression")
    what = Cell(text_sql(spaces()), "VARCHAR") if given is None else self.cell(given)
    if x.kind != "VARCHAR" or what.kind != "VARCHAR" or node.args.get("collation"):
        return None
    return strictly(f"trim({side} {what.sql} FROM {x.sql})", "VARCHAR", x, what)


def _like(self: Expression, node: exp.Expr) -> Cell | None:
    """DuckDB has no escape character unless one is given; Spark's is the backslash."""
    escape = None
    if isinstance(node, exp.Escape):
        escape, node = self.value(node.expression), node.this
        if not isinstance(node, exp.Like) or not isinstance(escape, str) or len(escape) != 1:
            return None
    x, pattern = self.cell(node.this), self.value(node.expression)
    if x.kind != "VARCHAR" or not isinstance(pattern, str):
        return None
    written, rest = "", iter(pattern)
    for character in rest:
        if character == escape:
            following = next(rest, None)
            if following is None:
                return None
            written += f"\\{following}" if following in "%_\\" else following
        else:
            written += "\\\\" if character == "\\" else character
    found = f"({x.sql} LIKE {text_sql(written)})"
    return strictly(f"(NOT {found})" if node.args.get("negate") else found, "BOOLEAN", x)


def _substring(self: Expression, node: exp.Expr) -> Cell | None:
    """Position 0 is one before the first in DuckDB, and the first in Spark."""
    x, start = self.cell(node.this), self.as_type(node.args["start"], "BIGINT")
    length = node.args.get("length")
    if x.kind != "VARCHAR":
        return None
    # Beyond these positions DuckDB fails; no text is as long as what Spark's INT holds.
    fails: str | None = f"coalesce({start.sql} NOT BETWEEN -4294967295 AND 4294967295, FALSE)"
    if node.args["start"].find(exp.Column) is None:
        fails = None if abs(self.value(node.args["start"]) or 0) < 2**31 else fails
    at = f"CAST(greatest(least({start.sql}, 2000000000L), -2000000000L) AS INT)"
    if length is None:
        value = f"substring({x.sql}, {at})"
    else:
        count = self.value(length)
        if not isinstance(count, int) or not 0 <= count < 2**31:
            return None
        less = max(count - 1, 0)
        value = f"substring({x.sql}, {at}, CASE WHEN {start.sql} = 0 THEN {less} ELSE {count} END)"
    if fails is not None:
        value = f"CASE WHEN NOT {fails} THEN {value} END"
        fails = f"({fails} AND {x.sql} IS NOT NULL)"
    return strictly(value, "VARCHAR", x, start, fails=fails)


def _side(self: Expression, node: exp.Expr) -> Cell | None:
    x, count = self.cell(node.this), self.value(node.expression)
    if x.kind != "VARCHAR" or not isinstance(count, int) or not 0 <= count < 2**31:
        return None
    name = "left" if isinstance(node, exp.Left) else "right"
    return strictly(f"{name}({x.sql}, {count})", "VARCHAR", x)


def _split_part(self: Expression, node: exp.Expr) -> Cell | None:
    x = self.cell(node.this)
    delimiter, number = self.value(node.args["delimiter"]), self.value(node.args["part_index"])
    if x.kind != "VARCHAR" or not delimiter or not isinstance(number, int) or not number:
        return None
    if abs(number) >= 2**31:
        return None
    return strictly(f"split_part({x.sql}, {text_sql(delimiter)}, {number})", "VARCHAR", x)


# Time


def _epoch_us(self: Expression, node: exp.Expr) -> Cell | None:
    (argument,) = node.expressions
    if self.cell(argument).kind not in ("DATE", "TIMESTAMP"):
        return None
    x = self.as_type(argument, "TIMESTAMP")
    value = f"nullif(nullif({micros_sql(x.sql)}, {LAST_US}L), -{LAST_US}L)"
    return strictly(value, "BIGINT", x)


def _truncated(self: Expression, node: exp.Expr) -> Cell | None:
    unit = node.args["unit"].name.upper()
    if self.cell(node.this).kind not in ("DATE", "TIMESTAMP") or self.kind(node) != "TIMESTAMP":
        return None
    x = self.as_type(node.this, "TIMESTAMP")
    micros = micros_sql(x.sql)
    if unit in _FIXED_UNITS:
        value = timestamp_sql(f"try_subtract({micros}, pmod({micros}, {_FIXED_UNITS[unit]}L))")
    elif unit in _CALENDAR_UNITS:
        # Before the first full year the result is out of range: DuckDB fails, and so would Spark.
        possible = f"CASE WHEN year({x.sql}) > -290308 THEN {x.sql} END"
        value = f"CAST(date_trunc('{unit}', {possible}) AS TIMESTAMP_NTZ)"
    else:
        return None
    return partial(f"CASE WHEN {infinite_sql(x)} THEN {x.sql} ELSE {value} END", "TIMESTAMP", x)


def _part(self: Expression, name: str, argument: exp.Expr, node: exp.Expr) -> Cell | None:
    x = self.cell(argument)
    part = _PARTS.get(name.upper())
    if part is None or x.kind not in ("DATE", "TIMESTAMP") or self.kind(node) != "BIGINT":
        return None
    if x.kind == "DATE" and part in ("HOUR", "MINUTE", "SECOND"):
        return None
    less = " - 1" if part == "DAYOFWEEK" else ""  # from Sunday, which is 0 in DuckDB
    extracted = f"CAST(EXTRACT({part} FROM {x.sql}){less} AS BIGINT)"
    return strictly(f"CASE WHEN {infinite_sql(x)} THEN NULL ELSE {extracted} END", "BIGINT", x)


def _extract(self: Expression, node: exp.Expr) -> Cell | None:
    return _part(self, node.name, node.expression, node)


def _part_function(self: Expression, node: exp.Expr) -> Cell | None:
    return _part(self, _PART_FUNCTIONS[type(node)], node.this, node)


def _date_part(self: Expression, node: exp.Expr) -> Cell | None:
    name = self.value(node.expressions[0])
    return _part(self, name, node.expressions[1], node) if isinstance(name, str) else None


def _shifted(self: Expression, node: exp.Expr) -> Cell | None:
    """A timestamp and a fixed interval."""
    x = self.cell(node.this)
    if x.kind != "TIMESTAMP" or node.expression.find(exp.Column):
        return None
    interval = sql(node.expression)
    row = self.binder.connection.execute(
        f"SELECT date_part('year', {interval}) = 0 AND date_part('month', {interval}) = 0,"
        f" epoch_us(TIMESTAMP '1970-01-01' + {interval})"
    ).fetchone()
    if row is None or not row[0]:
        return None
    micros = micros_sql(x.sql)
    name = _ARITHMETIC[type(node)][0]
    moved = f"{name}({micros}, {row[1]}L)"
    value = timestamp_sql(f"CASE WHEN least({micros}, {moved}) >= {FIRST_US}L THEN {moved} END")
    return partial(f"CASE WHEN {infinite_sql(x)} THEN {x.sql} ELSE {value} END", "TIMESTAMP", x)


Translation = Callable[[Expression, exp.Expr], Cell | None]

_TRANSLATIONS: Mapping[type[exp.Expr], Translation] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_TEXT_FUNCTIONS, _text_function),
    **dict.fromkeys(_PART_FUNCTIONS, _part_function),
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
    exp.Concat: _concat,
    exp.Lower: _case_mapped,
    exp.Upper: _case_mapped,
    exp.Trim: _trim,
    exp.Like: _like,
    exp.Escape: _like,
    exp.Substring: _substring,
    exp.Left: _side,
    exp.Right: _side,
    exp.SplitPart: _split_part,
    exp.TimestampTrunc: _truncated,
    exp.DateTrunc: _truncated,
    exp.Extract: _extract,
}
_NAMED: Mapping[str, Translation] = {"EPOCH_US": _epoch_us, "DATE_PART": _date_part}


def _named(node: exp.Expr) -> Translation | None:
    """Functions that sqlglot knows by name only."""
    return _NAMED.get(str(node.this).upper()) if isinstance(node, exp.Anonymous) else None
