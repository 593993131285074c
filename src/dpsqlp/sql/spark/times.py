"""Functions of dates and timestamps: DuckDB has infinite ones, Spark fails out of range."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsqlp.sql.scope import sql
from dpsqlp.sql.spark.cells import (
    FIRST_US,
    LAST_US,
    Cell,
    cast,
    infinite_sql,
    micros_sql,
    partial,
    strictly,
    timestamp_sql,
)
from dpsqlp.sql.spark.expressions import Expression, Translation

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


def _epoch_us(self: Expression, node: exp.Expr) -> Cell | None:
    (argument,) = node.expressions
    if self.cell(argument).kind not in ("DATE", "TIMESTAMP"):
        return None
    x = self.as_type(argument, "TIMESTAMP")
    value = f"nullif(nullif({micros_sql(x.sql)}, {LAST_US}L), -{LAST_US}L)"
    return strictly(value, "BIGINT", x)


def _truncated(self: Expression, node: exp.Expr) -> Cell | None:
    unit, x = node.args["unit"].name.upper(), self.cell(node.this)
    if self.kind(node) != "TIMESTAMP":
        return None
    if x.kind == "DATE":
        return _truncated_date(x, unit)
    micros = micros_sql(x.sql)
    if x.kind == "TIMESTAMP" and unit in _FIXED_UNITS:
        value = timestamp_sql(f"try_subtract({micros}, pmod({micros}, {_FIXED_UNITS[unit]}L))")
    elif x.kind == "TIMESTAMP" and unit in _CALENDAR_UNITS:
        # Before the first full year the result is out of range: DuckDB fails, and so would Spark.
        possible = f"CASE WHEN year({x.sql}) > -290308 THEN {x.sql} END"
        value = f"CAST(date_trunc('{unit}', {possible}) AS TIMESTAMP_NTZ)"
    else:
        return None
    return partial(f"CASE WHEN {infinite_sql(x)} THEN {x.sql} ELSE {value} END", "TIMESTAMP", x)


def _truncated_date(x: Cell, unit: str) -> Cell | None:
    """As a date, then as a timestamp, which has a smaller range."""
    if unit == "DAY":
        return cast(x, "TIMESTAMP")
    if unit not in _CALENDAR_UNITS:
        return None
    possible = f"CASE WHEN abs(unix_date({x.sql})) < 107000000 THEN {x.sql} END"
    value = f"CASE WHEN {infinite_sql(x)} THEN {x.sql} ELSE trunc({possible}, '{unit}') END"
    return cast(partial(value, "DATE", x), "TIMESTAMP")


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


def shifted(self: Expression, node: exp.Expr) -> Cell | None:
    """A timestamp plus or minus a fixed interval."""
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
    name = "try_add" if isinstance(node, exp.Add) else "try_subtract"
    moved = f"{name}({micros}, {row[1]}L)"
    value = timestamp_sql(f"CASE WHEN least({micros}, {moved}) >= {FIRST_US}L THEN {moved} END")
    return partial(f"CASE WHEN {infinite_sql(x)} THEN {x.sql} ELSE {value} END", "TIMESTAMP", x)


TRANSLATIONS: Mapping[type[exp.Expr] | str, Translation] = {
    **dict.fromkeys(_PART_FUNCTIONS, _part_function),
    exp.TimestampTrunc: _truncated,
    exp.DateTrunc: _truncated,
    exp.Extract: _extract,
    "EPOCH_US": _epoch_us,
    "DATE_PART": _date_part,
}
