"""The row query against DuckDB run on the user's own expressions, one row at a time."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from dpsqlp.errors import SqlError
from dpsqlp.sql import connect
from sql.scripts import query

INTEGERS = st.sampled_from(
    ["a", "1", "0", "-7", "2147483647", "LENGTH(c)", "CAST(c AS INTEGER)", "CAST(b AS INTEGER)"]
)
DOUBLES = st.sampled_from(["b", "0.5", "-3.25", "1e300", "CAST(c AS DOUBLE)", "SQRT(b)", "LN(a)"])
TEXTS = st.sampled_from(["c", "'12'", "'x'", "''", "CAST(a AS VARCHAR)", "LOWER(c)", "c || '1'"])
BOOLEANS = st.sampled_from(["e", "TRUE", "c IS NULL", "CAST(c AS BOOLEAN)", "b > 0.5"])


def _integers(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, below, st.sampled_from(["+", "-", "*", "//", "%"]), below),
        st.builds("CASE WHEN {} THEN {} ELSE {} END".format, BOOLEANS, below, below),
        st.builds("COALESCE(NULLIF({}, {}), {})".format, below, below, below),
        st.builds("CAST(ROUND({} / {}, 2) AS BIGINT)".format, below, below),
    )


def _texts(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("SUBSTR({}, {}, {})".format, below, integers, integers),
        st.builds("REPLACE(UPPER({}), {}, 'xyz')".format, below, below),
        st.builds("REGEXP_EXTRACT({}, '[0-9]+')".format, below),
        st.builds("SPLIT_PART({}, {}, 1)".format, below, below),
        st.builds("STRFTIME(ts + INTERVAL 1 HOUR, '%H') || {}".format, below),
        st.builds("CONCAT({}, {})".format, below, integers),
    )


def _booleans(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, below, st.sampled_from(["AND", "OR"]), below),
        st.builds("(NOT {})".format, below),
        st.builds("({} {} {})".format, integers, st.sampled_from(["<", "=", "<>"]), integers),
        st.builds("({} BETWEEN {} AND {})".format, integers, integers, integers),
        st.builds("({} LIKE {})".format, texts, texts),
        st.builds("({} IN ({}, {}))".format, texts, texts, texts),
        st.builds("({} = {})".format, texts, integers),  # casts, and may fail
        st.builds("({} IS DISTINCT FROM {})".format, doubles, doubles),
    )


def _doubles(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, below, st.sampled_from(["+", "-", "*", "/"]), below),
        st.builds("POWER({}, {})".format, below, below),
        st.builds("GREATEST({}, LEAST({}, {}))".format, below, below, below),
    )


integers = st.recursive(INTEGERS, _integers, max_leaves=4)
doubles = st.recursive(DOUBLES, _doubles, max_leaves=4)
texts = st.recursive(TEXTS, _texts, max_leaves=4)
booleans = st.recursive(BOOLEANS, _booleans, max_leaves=4)

ROWS = pa.table(
    {
        "unit": ["u0", "u1", "u2", "u3", "u4", "u5", "u6"],
        "a": pa.array([0, 7, -7, None, 2147483647, 3, 1], pa.int32()),
        "b": pa.array([0.0, 1.5, -2.0, float("nan"), float("inf"), None, 1e300]),
        "c": pa.array(["", "12", "x", None, "true", "3.5", "-12"]),
        "ts": pa.array(
            [0, 1, -1, 86_400_000_000, -86_400_000_001, None, 10**15], pa.timestamp("us")
        ),
        "e": pa.array([True, False, None, True, True, False, True]),
    }
)
ONE = "SELECT * FROM rows WHERE unit = ?"


def direct(inner: str, keep: str, key: str, value: str, inner_type: str) -> dict[str, Any]:
    """Every row by itself, as the user wrote it; what fails is NULL."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("PRAGMA disable_optimizer")  # it may evaluate more or less than is written
    connection.register("given", ROWS)
    connection.execute("CREATE TABLE rows AS SELECT * FROM given")
    kept = {}
    for unit in ROWS.column("unit").to_pylist():

        def evaluate(expression: str) -> Any:
            try:
                return connection.execute(f"SELECT {expression} FROM t").fetchall()[0][0]
            except duckdb.Error:
                return None

        try:
            connection.execute(
                f"CREATE OR REPLACE TABLE t AS SELECT *, {inner} AS x FROM ({ONE})", [unit]
            )
        except duckdb.Error:
            null = f"CAST(NULL AS {inner_type}) AS x"
            connection.execute(
                f"CREATE OR REPLACE TABLE t AS SELECT *, {null} FROM ({ONE})", [unit]
            )
        if evaluate(f"CAST({keep} AS BOOLEAN)") is True:
            kept[unit] = repr((evaluate(key), evaluate(f"CAST({value} AS DOUBLE)")))
    connection.close()
    return kept


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(inner=texts, keep=booleans, key=st.one_of(texts, integers), value=doubles)
def test_the_row_query_is_the_users_expressions(
    inner: str, keep: str, key: str, value: str
) -> None:
    """Projection, WITH query, filter, key and value agree row by row with DuckDB run directly."""
    try:
        compiled = query(
            f"{key} AS k, SUM({value}, contribution_bounds_per_row => (0, 1)) AS v",
            ctes=f"WITH w AS (SELECT *, {inner} AS x FROM s)",
            rows=f"FROM w WHERE {keep}",
            group="GROUP BY k",
            emit="EMIT EVERY INTERVAL 1 HOUR FOR 3 TRIGGERS",
        )
    except SqlError as error:
        if "out of range" in error.fact or "by zero" in error.fact:
            reject()  # a constant that always fails is an error in the query
        raise
    connection = connect()
    connection.register("s", ROWS)
    rows = connection.sql(compiled.row_sql).fetchall()
    connection.close()
    got = {unit: repr((k, v)) for unit, k, _, _, v in rows}
    assert got == direct(inner, keep, key, value, "VARCHAR")


def test_what_occurs_twice_stays_in_its_try() -> None:
    """DuckDB would take a common subexpression out of its TRY, where it fails on a row."""
    compiled = query(
        "c, SUM(CAST(c AS DOUBLE) * CAST(c AS DOUBLE), contribution_bounds_per_row => (0, 9)) AS v"
    )
    connection = connect()
    connection.register("s", ROWS)
    values = [row[-1] for row in connection.sql(compiled.row_sql).fetchall()]
    assert values == [None, 144.0, None, None, None, 12.25, 144.0]
