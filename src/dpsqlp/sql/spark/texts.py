"""Functions of text, by code points."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import duckdb
from sqlglot import exp

from dpsqlp.sql.spark.cells import Cell, loosely, partial, strictly, text_sql
from dpsqlp.sql.spark.expressions import Expression, Translation

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


def _length(self: Expression, node: exp.Expr) -> Cell | None:
    """Of a list, its elements; of a text, its characters."""
    x = self.cell(node.this)
    if not x.kind.endswith("[]"):
        return _text_function(self, node)
    return strictly(f"CAST(array_size({x.sql}) AS BIGINT)", "BIGINT", x)


def _bytes(self: Expression, node: exp.Expr) -> Cell | None:
    """The length of a text or blob in bytes."""
    x = self.cell(node.expressions[0])
    if x.kind not in ("VARCHAR", "BLOB"):
        return None
    return strictly(f"CAST(octet_length({x.sql}) AS BIGINT)", "BIGINT", x)


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
    if x.kind != "VARCHAR":
        return None
    at = f"CAST(greatest(least({start.sql}, 2000000000L), -2000000000L) AS INT)"
    if node.args.get("length") is None:
        value = f"substring({x.sql}, {at})"
    else:
        count = self.value(node.args["length"])
        if not isinstance(count, int) or not 0 <= count < 2**31:
            return None
        shorter = f"CASE WHEN {start.sql} = 0 THEN {max(count - 1, 0)} ELSE {count} END"
        value = f"substring({x.sql}, {at}, {shorter})"
    possible = f"{start.sql} BETWEEN -4294967295 AND 4294967295"  # beyond, DuckDB fails
    return partial(f"CASE WHEN {possible} THEN {value} END", "VARCHAR", x, start)


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


TRANSLATIONS: Mapping[type[exp.Expr] | str, Translation] = {
    **dict.fromkeys(_TEXT_FUNCTIONS, _text_function),
    **dict.fromkeys(("STRLEN", "OCTET_LENGTH"), _bytes),
    exp.Length: _length,
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
}
