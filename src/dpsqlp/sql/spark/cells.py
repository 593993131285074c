"""Spark SQL of single values: names, types, literals, casts, and where DuckDB fails on a row.

In DuckDB an error anywhere below TRY makes the whole TRY null, even where a COALESCE or an AND
stands between them; Spark has no TRY. So an expression is translated to a `Cell`: a value that
never fails in Spark, and the condition on which DuckDB would have failed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from dpsqlp.errors import SqlError
from dpsqlp.sql.location import Text

INTEGERS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}  # and their digits
_TYPES = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "STRING",
    "BLOB": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP_NTZ",
}
_WAYS_OUT = {
    "HUGEINT": "Declare it as BIGINT or DECIMAL(38, 0).",
    "UTINYINT": "Declare it as SMALLINT.",
    "USMALLINT": "Declare it as INTEGER.",
    "UINTEGER": "Declare it as BIGINT.",
    "UBIGINT": "Declare it as BIGINT or DECIMAL(20, 0).",
    "UUID": "Declare it as TEXT.",
    "JSON": "Declare it as TEXT.",
    "TIME": "Declare it as TEXT, or as a TIMESTAMP.",
    "TIMESTAMP WITH TIME ZONE": "Declare it as TIMESTAMP; times are in UTC.",
}
_SUFFIXES = {"INTEGER": "", "BIGINT": "L"}  # of literals
NULL = '"NULL"'  # DuckDB's type of a bare NULL
LAST_US = 2**63 - 1  # stands for infinity in DuckDB; minus it for minus infinity
FIRST_US = -9223372022400000000  # the first day that DuckDB computes with
_FIRST = "TIMESTAMP_NTZ'-290308-12-22 00:00:00'"  # the same
_MINUS_INFINITY = "TIMESTAMP_NTZ'-290308-12-21 19:59:05.224193'"
_LAST_DAY = 2**31 - 1  # likewise, for dates
_SPACE = r"[ \t\n\x0B\f\r]*"
# No group that repeats: Java goes deeper with each turn, and a long text would end the task. Two
# underscores in a row are looked for by themselves.
_DIGITS = "[0-9]([0-9_]*[0-9])?"
_MAGNITUDE = rf"({_DIGITS}(\.({_DIGITS})?)?|\.{_DIGITS})([eE][+-]?{_DIGITS})?"
_NUMBER = rf"\A{_SPACE}\+?-?({_MAGNITUDE}|(?i:inf(inity)?)){_SPACE}\z"
_NAN = rf"\A{_SPACE}\+?-?(?i:nan)(\([A-Za-z0-9_]*\))?{_SPACE}\z"


@dataclass(frozen=True, slots=True)
class Cell:
    """An expression in Spark SQL."""

    sql: str
    kind: str  # DuckDB type
    failed: str | None = None  # Spark condition, never null: on these rows DuckDB fails
    strict: bool = True  # null on all of those rows

    def attempt(self) -> Cell:
        """TRY: null where DuckDB fails."""
        if self.failed is None or self.strict:
            return Cell(self.sql, self.kind)
        return Cell(f"CASE WHEN {self.failed} THEN NULL ELSE {self.sql} END", self.kind)


def either(*conditions: str | None) -> str | None:
    """Whether one of them holds; None is never."""
    given = list(dict.fromkeys(c for c in conditions if c is not None))
    return f"({' OR '.join(given)})" if given else None


def strictly(sql: str, kind: str, *arguments: Cell, fails: str | None = None) -> Cell:
    """A function that is null if an argument is, and null on the rows where it fails itself."""
    failed = either(*(a.failed for a in arguments), fails)
    return Cell(sql, kind, failed, all(a.strict for a in arguments))


def partial(sql: str, kind: str, *arguments: Cell) -> Cell:
    """The same for a function that is null exactly where it fails or an argument is null."""
    given = " AND ".join(f"{a.sql} IS NOT NULL" for a in arguments)
    return strictly(sql, kind, *arguments, fails=f"({sql} IS NULL AND {given})")


def loosely(sql: str, kind: str, *arguments: Cell, failed: str | None = None) -> Cell:
    """A function that may have a value though an argument is null."""
    failed = failed or either(*(a.failed for a in arguments))
    return Cell(sql, kind, failed, failed is None)


def type_error(kind: str) -> SqlError:
    """The error for a type that Spark does not have."""
    way_out = _WAYS_OUT.get(kind, "Convert it where the data is written: to text or a number.")
    fact = f"The Spark engine does not have the type {kind}"
    return Text(kind).error(fact, way_out, 0, len(kind) - 1)


@functools.cache
def canonical_type(kind: str) -> str:
    """DuckDB's own name of a type: INT4 is INTEGER, TEXT is VARCHAR."""
    row = duckdb.connect(":memory:").execute(f"DESCRIBE SELECT CAST(NULL AS {kind})").fetchone()
    assert row is not None
    return str(row[1])


def spark_type(duckdb_type: str) -> str:
    """The Spark type that holds a DuckDB type's values; an SqlError if there is none."""
    kind = canonical_type(duckdb_type)
    if kind.endswith("[]"):
        return f"ARRAY<{spark_type(kind[:-2])}>"
    if kind.startswith("DECIMAL("):
        return kind
    if kind not in _TYPES:
        raise type_error(kind)
    return _TYPES[kind]


def decimal_parts(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal or integer type."""
    if kind in INTEGERS:
        return INTEGERS[kind], 0
    found = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind)
    return (int(found[1]), int(found[2])) if found else None


def name_sql(name: str) -> str:
    """A quoted identifier; Spark replaces ${...} wherever it stands in a text."""
    if "${" in name:
        fact = "The Spark engine cannot read a name with ${"
        raise Text(name).error(fact, "Rename it.", 0, len(name) - 1)
    return "`" + name.replace("`", "``") + "`"


def text_sql(text: str) -> str:
    """A string literal. Spark reads escapes, and replaces ${...} even within quotes."""
    return "'" + re.sub(r"[\x00-\x1f'\"\\$]", lambda c: f"\\u{ord(c[0]):04x}", text) + "'"


def literal(value: pa.Scalar, kind: str) -> Cell:
    """A constant that DuckDB has computed."""
    if not value.is_valid:
        return Cell("NULL" if kind == NULL else f"CAST(NULL AS {spark_type(kind)})", kind)
    if kind == "VARCHAR":
        return Cell(text_sql(value.as_py()), kind)
    if kind == "BOOLEAN":
        return Cell(str(value.as_py()).upper(), kind)
    if kind == "BLOB":
        return Cell(f"X'{value.as_py().hex()}'", kind)
    if kind == "DATE":
        return Cell(f"date_from_unix_date({value.cast(pa.int32()).as_py()})", kind)
    if kind == "TIMESTAMP":
        return Cell(timestamp_sql(f"{value.cast(pa.int64()).as_py()}L"), kind)
    if kind.endswith("[]"):
        items = ", ".join(literal(item, kind[:-2]).sql for item in value)
        return Cell(f"CAST(array({items}) AS {spark_type(kind)})", kind)
    if kind in _SUFFIXES and value.as_py() >= 0:
        return Cell(f"{value.as_py()}{_SUFFIXES[kind]}", kind)
    return Cell(f"CAST('{value.as_py()}' AS {spark_type(kind)})", kind)


# Time. TIMESTAMP_NTZ has few functions that do not fail, so times are computed in microseconds.


def micros_sql(sql: str) -> str:
    """Microseconds of a timestamp; the session's zone is UTC."""
    return f"unix_micros(CAST({sql} AS TIMESTAMP))"


def timestamp_sql(micros: str) -> str:
    """The timestamp of microseconds."""
    return f"CAST(timestamp_micros({micros}) AS TIMESTAMP_NTZ)"


def without_zone_sql(sql: str) -> str:
    """A zoned timestamp in UTC, whatever the session's zone is."""
    return f"timestampadd(MICROSECOND, unix_micros({sql}), TIMESTAMP_NTZ'1970-01-01 00:00:00')"


def in_range_sql(sql: str) -> str:
    """The timestamp, null if DuckDB has none like it; whatever the session's zone is."""
    return f"CASE WHEN {sql} >= {_FIRST} OR {sql} = {_MINUS_INFINITY} THEN {sql} END"


def infinite_sql(cell: Cell) -> str:
    """Whether a date or timestamp is one of DuckDB's infinities."""
    if cell.kind == "DATE":
        return f"unix_date({cell.sql}) IN ({_LAST_DAY}, -{_LAST_DAY})"
    return f"{micros_sql(cell.sql)} IN ({LAST_US}L, -{LAST_US}L)"


# Casts: (from, to) -> the value in Spark, and whether it may fail on a row.


def _plain(cell: Cell, kind: str) -> Cell:
    return strictly(f"CAST({cell.sql} AS {spark_type(kind)})", kind, cell)


def _narrow(cell: Cell, kind: str) -> Cell:
    return partial(f"try_cast({cell.sql} AS {spark_type(kind)})", kind, cell)


def _rounded(cell: Cell, kind: str) -> Cell:
    """DuckDB rounds half to even, Spark cuts off; Spark takes 2^63 for the largest BIGINT."""
    rounded = f"rint({cell.sql})"
    if kind == "BIGINT":
        rounded = f"CASE WHEN {rounded} < 9223372036854775808D THEN {rounded} END"
    return partial(f"try_cast({rounded} AS {spark_type(kind)})", kind, cell)


def _parsed_double(cell: Cell, kind: str) -> Cell:
    """DuckDB reads 1_000, +-1 and -nan; Spark reads 1d and 1f, and passes over controls."""
    bare = f"replace(replace({cell.sql}, '_', ''), '+-', '-')"
    return partial(
        f"CASE WHEN {cell.sql} RLIKE {text_sql(_NUMBER)} AND NOT contains({cell.sql}, '__')"
        f" THEN try_cast({bare} AS DOUBLE)"
        f" WHEN {cell.sql} RLIKE {text_sql(_NAN)} THEN CAST('NaN' AS DOUBLE) END",
        kind,
        cell,
    )


def _parsed_boolean(cell: Cell, kind: str) -> Cell:
    """Spark trims, DuckDB does not."""
    yes, no = (text_sql(rf"(?i)\A({words})\z") for words in ("true|t|1|yes|y", "false|f|0|no|n"))
    return partial(
        f"CASE WHEN {cell.sql} RLIKE {yes} THEN TRUE WHEN {cell.sql} RLIKE {no} THEN FALSE END",
        kind,
        cell,
    )


def _to_timestamp(cell: Cell, kind: str) -> Cell:
    days = f"CAST(unix_date({cell.sql}) AS BIGINT)"
    sign = f"CASE WHEN {days} > 0 THEN {LAST_US}L ELSE -{LAST_US}L END"
    micros = f"try_multiply({days}, 86400000000L)"
    return partial(
        timestamp_sql(f"CASE WHEN {infinite_sql(cell)} THEN {sign} ELSE {micros} END"), kind, cell
    )


def _to_date(cell: Cell, kind: str) -> Cell:
    sign = f"CASE WHEN {micros_sql(cell.sql)} > 0 THEN {_LAST_DAY} ELSE -{_LAST_DAY} END"
    return strictly(
        f"CASE WHEN {infinite_sql(cell)} THEN date_from_unix_date({sign})"
        f" ELSE CAST({cell.sql} AS DATE) END",
        kind,
        cell,
    )


_CASTS: dict[tuple[str, str], Callable[[Cell, str], Cell]] = {
    **{(a, b): _plain for a in INTEGERS for b in ("FLOAT", "DOUBLE", "VARCHAR", "BOOLEAN")},
    **{
        (a, b): _plain if INTEGERS[a] < INTEGERS[b] else _narrow for a in INTEGERS for b in INTEGERS
    },
    **{("DOUBLE", b): _rounded for b in INTEGERS},
    **{("BOOLEAN", b): _plain for b in (*INTEGERS, "DOUBLE", "VARCHAR")},
    ("FLOAT", "DOUBLE"): _plain,
    ("DOUBLE", "BOOLEAN"): _plain,
    ("VARCHAR", "DOUBLE"): _parsed_double,
    ("VARCHAR", "BOOLEAN"): _parsed_boolean,
    ("DATE", "TIMESTAMP"): _to_timestamp,
    ("TIMESTAMP", "DATE"): _to_date,
}


def cast(cell: Cell, kind: str) -> Cell | None:
    """The cell as another type; None where the two databases would disagree."""
    if cell.kind == kind:
        return cell
    if cell.kind == NULL:
        return replace(cell, sql=f"CAST(NULL AS {spark_type(kind)})", kind=kind)
    if (cell.kind, kind) in _CASTS:
        return _CASTS[cell.kind, kind](cell, kind)
    given, wanted = decimal_parts(cell.kind), decimal_parts(kind)
    if given and kind == "DOUBLE" and given[0] <= 15:  # then both round correctly
        return _plain(cell, kind)
    if given and wanted and kind not in INTEGERS:
        if given[1] <= wanted[1] and given[0] - given[1] <= wanted[0] - wanted[1]:
            return _plain(cell, kind)
        return _narrow(cell, kind) if cell.kind in INTEGERS else None
    return None
