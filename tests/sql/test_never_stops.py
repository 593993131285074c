"""TRY holds: whatever is accepted is NULL where it fails on a row, and no row stops a run.

DuckDB has functions that stop in spite of TRY; those that do are refused. What is accepted is tried
here on the edges of every type.
"""

import itertools

import duckdb
import pyarrow as pa
import pytest

from dpsqlp.errors import SqlError
from dpsqlp.sources.columns import try_cast
from dpsqlp.sql import compile_script, connect

FIRST_US, LAST_US = -9223372022400000000, 2**63 - 1
MOMENTS = [
    *(-(2**63), -(2**63) + 1, -(2**63) + 2, FIRST_US - 1, FIRST_US, FIRST_US + 1, -1, 0),
    *(LAST_US, LAST_US - 1, LAST_US - 3 * 86_400_000_000, 1_704_067_200_000_000),
]
DAYS = [-(2**31), -(2**31) + 2, 2**31 - 2, 2**31 - 1, -106_751_992, 106_751_991, 0, 5_881_580]
TEXTS = ["", "a", "infinity", "2024-02-30", "1e400", "\x00", "24:00:00", "P1Y", "🙂", "[1", "week"]
FLOATS = [float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 1e-320, 9.3e18, 253402300800.0]
COLUMNS = {"x": "TIMESTAMP", "z": "TIMESTAMPTZ", "h": "TIME", "d": "DATE", "i": "BIGINT"}
COLUMNS |= {"f": "DOUBLE", "t": "TEXT"}
VALUES = [
    *("x", "z", "h", "d", "i", "f", "t", "x + INTERVAL 1 MONTH", "x - INTERVAL 1 MICROSECOND"),
    *("date_trunc('week', x)", "date_trunc('millennium', x)", "time_bucket(INTERVAL 7 DAYS, x)"),
    *("last_day(x)", "x::DATE", "x::DATE::TIMESTAMP", "d::TIMESTAMP", "d - INTERVAL 1 DAY"),
    *("d + i::INT", "to_timestamp(f)", "to_timestamp(i)", "make_timestamp_ns(i)", "x::TIME"),
    *("TIMESTAMP '1970-01-01' + to_microseconds(1000 * i)", "make_date(i::INT, 1, 1)"),
    *("make_timestamp(i, 1, 1, 0, 0, f)", "make_time(i, 1, f)", "x::TIMESTAMPTZ", "z::TIMESTAMP"),
    *("x::TIMESTAMP_NS", "x::TIMESTAMP_MS", "x::TIMESTAMP_S", "x - TIMESTAMP '2020-01-01'"),
    *("age(x, TIMESTAMP '2020-01-01')", "to_months(i::INT)", "to_hours(i)", "to_seconds(f)"),
    *("t::TIMESTAMP", "t::INTERVAL", "t::TIME", "t::DATE", "t::JSON", "t::BLOB", "t::BIT"),
    *(
        "strptime(t, '%Y')",
        "x AT TIME ZONE 'Europe/Berlin'",
        "f::DECIMAL(38, 10)",
        "i::HUGEINT * i",
    ),
    *("make_timestamp(i)", "make_timestamp_ms(i)", "epoch_ms(i)", '"make_timestamp"(i)'),
    *(
        "t.timezone(TIMESTAMP '2020-01-01')",
        "i.make_timestamp()",
        "list_value(x)",
        "struct_pack(a := x)",
        "main.epoch_ms(i)",
    ),
]
AROUND = [
    *("{}", "CAST({} AS VARCHAR)", "concat({}, '')", "to_json({})", "CAST({} AS TIMESTAMP)"),
    *("age({}, TIMESTAMP '2020-01-01')", "strftime({}, '%c')", "date_trunc('month', {})"),
    *("epoch_us({})", "list_value({})::VARCHAR", "{} AT TIME ZONE t", "timezone(t, {})"),
    *("date_part(t, {})", "t.timezone({})", "date_trunc(t, {})", "date_diff(t, {}, {})"),
    *("yearweek({})", "date_part('week', {})", "x LIKE 'a' ESCAPE CAST({} AS VARCHAR)"),
]


def source() -> pa.Table:
    """Records as a binary file may have them."""
    size = max(len(MOMENTS), len(DAYS), len(TEXTS), len(FLOATS))
    moments = pa.array(MOMENTS, pa.int64())
    stored = {
        "x": moments.cast(pa.timestamp("us")),
        "z": moments.cast(pa.timestamp("us", "UTC")),
        "h": moments.cast(pa.time64("us")),
        "d": pa.array(DAYS, pa.int32()).cast(pa.date32()),
        "i": moments,
        "f": pa.array(FLOATS),
        "t": pa.array(TEXTS),
    }
    cycled = {
        name: column.take(pa.array([n % len(column) for n in range(size)]))
        for name, column in stored.items()
    }
    return pa.table(cycled)


def accepted(expressions: list[str]) -> list[str]:
    """Those that compile, as they are rewritten."""
    script = (
        f"CREATE SOURCE s (u TEXT, {', '.join(f'{n} {k}' for n, k in COLUMNS.items())});"
        " CREATE SINK o AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,"
        " privacy_unit_column = u, max_rows_contributed = 1) t, COUNT({}) AS n FROM s GROUP BY t"
        " EMIT EVERY INTERVAL 1 HOUR FOR 24 TRIGGERS;"
    )
    found = []
    for expression in expressions:
        try:
            (sink,) = compile_script(script.format(expression)).sinks
        except SqlError:
            continue
        found.append(sink.query.row_sql)
    return found


def stops(database: duckdb.DuckDBPyConnection, query: str) -> bool:
    try:
        database.execute(f"CREATE OR REPLACE TEMP TABLE result AS {query}")
    except duckdb.Error:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("around", AROUND)
def test_no_row_stops_a_run(around: str) -> None:
    queries = accepted([around.format(*itertools.repeat(f"({value})", 2)) for value in VALUES])
    database = connect()
    database.register("stored", source())
    columns = f"'u' AS u, {try_cast(tuple(COLUMNS.items()), lambda name: name)}"
    database.execute(f"CREATE TEMP VIEW s AS SELECT {columns} FROM stored")
    assert next((query for query in queries if stops(database, query)), None) is None


def test_most_of_it_is_accepted() -> None:
    """All but those that stop, by any of their names."""
    refused = {"make_timestamp(i)", "make_timestamp_ms(i)", "epoch_ms(i)", '"make_timestamp"(i)'}
    refused |= {"i.make_timestamp()", "main.epoch_ms(i)", "t.timezone(TIMESTAMP '2020-01-01')"}
    assert not accepted(sorted(refused))
    others = [value for value in VALUES if value not in refused]
    assert len(accepted(others)) == len(others)
