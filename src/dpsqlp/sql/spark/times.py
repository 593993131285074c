"""Functions of dates and timestamps: DuckDB has infinite ones, Spark fails out of range."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsqlp.sql.relations import sql
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


def is_microseconds(node: exp.Expr) -> bool:
    """Whether an interval is a number of microseconds, which may be a column."""
    return isinstance(node, exp.Anonymous) and node.name.upper() == "TO_MICROSECONDS"


def shifted(self: Expression, node: exp.Expr) -> Cell | None:
    """A timestamp plus or minus a fixed interval, or plus microseconds."""
    x, interval = self.cell(node.this), node.expression
    adds = isinstance(node, exp.Add)
    if x.kind != "TIMESTAMP":
        return None
    if is_microseconds(interval):
        by = self.as_type(interval.expressions[0], "BIGINT") if adds else None
    else:
        by = _fixed(self, interval)
    if by is None:
        return None
    micros = micros_sql(x.sql)
    moved = f"{'try_add' if adds else 'try_subtract'}({micros}, {by.sql})"
    within = f"least({micros}, {moved}) >= {FIRST_US}L AND {moved} < {LAST_US}L"
    value = timestamp_sql(f"CASE WHEN {within} THEN {moved} END")
    infinite = f"{infinite_sql(x)} AND {by.sql} IS NOT NULL"
    return partial(f"CASE WHEN {infinite} THEN {x.sql} ELSE {value} END", "TIMESTAMP", x, by)


def _fixed(self: Expression, node: exp.Expr) -> Cell | None:
    """The microseconds of an interval without months."""
    if node.find(exp.Column):
        return None
    interval = sql(node)
    row = self.binder.connection.execute(
        f"SELECT date_part('year', {interval}) = 0 AND date_part('month', {interval}) = 0,"
        f" epoch_us(TIMESTAMP '1970-01-01' + {interval})"
    ).fetchone()
    return None if row is None or not row[0] else Cell(f"{row[1]}L", "BIGINT")


TRANSLATIONS: Mapping[type[exp.Expr] | str, Translation] = {
    **dict.fromkeys(_PART_FUNCTIONS, _part_function),
    exp.TimestampTrunc: _truncated,
    exp.DateTrunc: _truncated,
    exp.Extract: _extract,
    "EPOCH_US": _epoch_us,
    "DATE_PART": _date_part,
}
