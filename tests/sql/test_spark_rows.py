"""The row query in Spark SQL gives the same rows as in DuckDB, bit for bit, or is refused.

Expressions are keys of one query, so that one run of Spark compares many of them.
"""

from __future__ import annotations

import math
import os
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from dpsqlp.entropy.canonical import encode, kind_of
from dpsqlp.errors import SqlError
from dpsqlp.sql import Query, compile_script, connect
from dpsqlp.sql.spark import spark_rows, spark_type

OPTIONS = "epsilon = 1, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 4"
SIZE = int(os.environ.get("DPSQLP_SPARK_FUZZ", "48"))  # random expressions
US_MAX, DAY_MAX = 2**63 - 1, 2**31 - 1
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 100, 127, -128]
DOUBLES = [
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.5, 0.1, 0.3, -0.3, 0.7, -0.7),
    *(1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan, 2.0**53 + 2, 0.49999999999999994),
    *(2.0**63, -(2.0**63), 9.223372036854774e18, 2147483647.5, -2147483648.5, 2147483647.4),
    *(4503599627370497.5, 127.5, 32767.5, 2.675, 1.005, -1.005, 123456789.987654321, 1e22, None),
]
TEXTS = [
    *("", "a", "A", " ", "  a  ", "12", " 12 ", "+12", "-12", "1e3", "1.5", "0x10", "1_000", "1_"),
    *("_1", "1__0", ".5", "5.", "-.5", "+", "e", "1e", "25e-1", "1e400", "1e-400", "nan", "-nan"),
    *("NaN", "inf", "-Infinity", "+inf", "infin", "true", "TRUE", "t", "yes", "no", "N", "on"),
    *(" true", "false", "0", "1", "2", "9223372036854775808", "\t5", "5\n", "\u00a05\u2003", "1d"),
    *("１２", "1f", "0b11", "9007199254740993", "é", "e\u0301", "ß", "İ", "ı", "ΑΣ", "ǅ", "ﬁ"),
    *("日本語", "👍🏽", "a%b_c", "a\\b", "a_c", "x\ny", "abcabc", "'", '"', "$", "${x}", "\x00"),
    *("a\x00b", "\U0010ffff", "a/b/c", "//", "/", "2020-01-01", None),
]
MICROS = [
    *(0, 1, -1, 86_400_000_000, -86_400_000_001, 10**15, -(10**15), 253402300799999999),
    *(253402300800000000, -62135596800000000, -62135596800000001, 951782400000000, 10**17, 10**18),
    *(1583020799999999, -12219292800000001, 1609459199999999, 1609718400000000, 1609632000000000),
    *(9 * 10**18, -9 * 10**18, US_MAX, -US_MAX, US_MAX - 1, -9223371036854775808, None),
]
DAYS = [
    *(0, -1, 18321, -25509, -719162, 2932896, 2932897, 18630, 18627, -141427, 5373484, -2440588),
    *(10**8, -(10**8), 106751991, 106751992, DAY_MAX, -DAY_MAX, DAY_MAX - 1, None),
]
VALUES: dict[str, pa.Array] = {
    "BIGINT": pa.array(
        [*INTEGERS, 2**63 - 1, -(2**63), 2**63 - 2, 2**31, 2**53 + 1, 10**18, None], pa.int64()
    ),
    "INTEGER": pa.array([*INTEGERS, 2**31 - 1, -(2**31), 86400, None], pa.int32()),
    "SMALLINT": pa.array([*INTEGERS, 2**15 - 1, -(2**15), None], pa.int16()),
    "TINYINT": pa.array([*INTEGERS, None], pa.int8()),
    "DOUBLE": pa.array(DOUBLES, pa.float64()),
    "REAL": pa.array(DOUBLES, pa.float64()).cast(pa.float32(), safe=False),
    "TEXT": pa.array(TEXTS),
    "BOOLEAN": pa.array([True, False, None]),
    "TIMESTAMP": pa.array(MICROS, pa.int64()).cast(pa.timestamp("us")),
    "DATE": pa.array(DAYS, pa.int32()).cast(pa.date32()),
    "DECIMAL(9,2)": pa.array(["0", "0.01", "-0.01", "1.5", "123.45", "9999999.99", None]).cast(
        pa.decimal128(9, 2)
    ),
    "BLOB": pa.array([b"", b"a", b"\x00\xff", None]),
    "TEXT[]": pa.array([[], ["a"], ["a", None, "b"], None]),
}


def script(types: dict[str, str], keys: list[str], rows: str = "FROM s") -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    listed = ", ".join(f"{key} AS k{n}" for n, key in enumerate(keys))
    names = ", ".join(f"k{n}" for n in range(len(keys)))
    return (
        f"CREATE SOURCE s (unit BIGINT, {columns}) WITH (connector = 'files', path = 'x');"
        f" CREATE SINK t AS WITH w AS (SELECT unit, {listed} {rows})"
        f" SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}) {names}"
        f" FROM w GROUP BY {names} EMIT EVERY INTERVAL 1 HOUR FOR 3 TRIGGERS;"
    )


def compiled(types: dict[str, str], keys: list[str], **kwargs: Any) -> Query:
    tables = kwargs.pop("tables", None)
    return compile_script(script(types, keys, **kwargs), tables=tables).sinks[0].query


def crossed(types: dict[str, str]) -> pa.Table:
    """Every combination of odd values."""
    pools = [VALUES[kind] for kind in types.values()]
    places = np.indices([len(pool) for pool in pools]).reshape(len(pools), -1)
    columns = {
        name: pool.take(pa.array(place))
        for name, pool, place in zip(types, pools, places, strict=True)
    }
    return pa.table({"unit": pa.array(range(places.shape[1]), pa.int64()), **columns})


def both(spark: Any, query: Query, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What DuckDB and Spark make of the same rows, in the same order."""
    text = spark_rows(query)
    connection = connect({table.name: table.rows for table in query.public_tables})
    connection.register(query.source.name, rows)
    local = connection.sql(query.row_sql).to_arrow_table()
    show(spark, query.source.name, rows, query.source.columns)
    for table in query.public_tables:
        columns = connection.execute(f"DESCRIBE {table.name}").fetchall()
        show(spark, table.name, table.rows, [(name, kind) for name, kind, *_ in columns])
    connection.close()
    return in_order(local), in_order(spark.sql(text).toArrow())


SHOWN: dict[str, pa.Table] = {}


def show(spark: Any, name: str, rows: pa.Table, columns: Sequence[tuple[str, str]]) -> None:
    """Make it a view, unless it is one already."""
    if name in SHOWN and SHOWN[name].equals(rows):
        return
    schema = ", ".join(f"`{column}` {spark_type(kind)}" for column, kind in columns)
    spark.createDataFrame(rows, schema=schema).createOrReplaceTempView(name)
    SHOWN[name] = rows


def in_order(table: pa.Table) -> pa.Table:
    """By all columns: joins and UNNEST give rows in any order."""
    if table.num_columns == 0:
        return table
    coded = encode([column.combine_chunks() for column in table.columns], table.num_rows)
    return table.take(pa.array(np.argsort(np.array(coded.to_arrow().to_pylist(), object))))


def exact(column: pa.ChunkedArray) -> list[Any]:
    """Values as canonical bytes; floats as their bits, but for NaN, of which there is one."""
    if kind_of(column.type) == "float":
        return [
            None if v is None else "nan" if math.isnan(v) else struct.pack(">d", v)
            for v in column.to_pylist()
        ]
    array = column.combine_chunks()
    return list(encode([array], len(array)).to_arrow().to_pylist())


def compare(local: pa.Table, remote: pa.Table, names: dict[str, str]) -> None:
    assert remote.column_names == local.column_names
    assert remote.num_rows == local.num_rows
    wrong = {}
    for name in local.column_names:
        kinds = {kind_of(table.schema.field(name).type) for table in (local, remote)}
        assert len(kinds - {"null"}) <= 1, (names.get(name, name), kinds)
        pairs = zip(exact(local[name]), exact(remote[name]), strict=True)
        rows = [row for row, (here, there) in enumerate(pairs) if here != there]
        if rows:
            some = [(local["unit_0"][r].as_py(), local[name][r], remote[name][r]) for r in rows[:5]]
            wrong[names.get(name, name)] = (len(rows), some)
    assert not wrong, "\n".join(f"{name}: {rows}" for name, rows in wrong.items())


def check(spark: Any, types: dict[str, str], keys: list[str]) -> None:
    rows = crossed(types)
    local, remote = both(spark, compiled(types, keys), rows)
    assert local.num_rows == rows.num_rows
    compare(local, remote, {f"key_{n}": key for n, key in enumerate(keys)})


COMPARED = [
    *("x = y", "x <> y", "x < y", "x <= y", "x > y", "x >= y", "x IS DISTINCT FROM y"),
    *("x IS NOT DISTINCT FROM y", "x BETWEEN y AND x", "x IN (y)", "x NOT IN (y, y)"),
    *("NULLIF(x, y)", "COALESCE(x, y)", "GREATEST(x, y)", "LEAST(x, y)", "x IS NULL"),
    *("x IS NOT NULL AND y IS NOT NULL", "CASE WHEN x = y THEN x ELSE y END", "IF(x < y, x, y)"),
    *("CASE x WHEN y THEN 1 END", "IFNULL(x, y)"),
]
WHOLE = ["x + y", "x - y", "x * y", "x // y", "x % y", "x / y", "-x", "ABS(x)"]
FAILING = [  # an error passes through what would otherwise give a value
    *("COALESCE(x + y, 5)", "COALESCE(5, x + y)", "(x + y) IS NULL", "x * y > 0 OR TRUE"),
    *("x - y > 0 AND FALSE", "CASE WHEN x > 0 THEN 1 ELSE x * y END", "x IN (1, x * y)"),
    *("CASE WHEN x * y > 0 THEN 1 ELSE 2 END", "GREATEST(x, x * y)", "NULLIF(x, x * y)"),
    *("CONCAT('a', x * y)", "x * y IS DISTINCT FROM 1", "COALESCE(TRY(x * y), 7)"),
    *("COALESCE(-x, 1)", "x IN (x * y, 1)"),
    *("COALESCE(x % y, 7)", "COALESCE(x // y, 7)", "COALESCE(ABS(x), y)", "x BETWEEN 1 AND x * y"),
    *("COALESCE(CAST(x AS TINYINT), 7)", "COALESCE(TRY_CAST(x AS TINYINT), 7)"),
    *("CASE WHEN x = 7 THEN 0 WHEN x + y > 0 THEN 1 END", "TRY_CAST(x * y AS TINYINT) IS NULL"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["BIGINT", "INTEGER", "SMALLINT", "TINYINT"])
def test_integers(spark: Any, kind: str) -> None:
    """Arithmetic, comparisons and failures of whole numbers."""
    with_constants = [
        *("x + 1", "1 - x", "x * 3", "x // 7", "x % 7", "x // -1", "x % -1", "x // 0", "x / 0"),
        *("x > 1.5", "x = 2.0", "x IN (1, 2, 300)", "x = '7'", "x * 0.5e0", "x + 100000"),
        *("SQRT(x)", "FLOOR(x / 10)", "CEIL(x / 10)", "ROUND(x / 7, 2)", "x BETWEEN -1 AND 2.5"),
    ]
    casts = ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DOUBLE", "REAL", "TEXT", "BOOLEAN"]
    casts = [f"CAST(x AS {to})" for to in (*casts, "DECIMAL(10,2)")]
    keys = [*COMPARED, *WHOLE, *FAILING, *with_constants, *casts]
    check(spark, {"x": kind, "y": kind}, keys)


def test_mixed_numbers(spark: Any) -> None:
    """Both sides are brought to DuckDB's type."""
    keys = [*COMPARED, *WHOLE[:3]]
    check(spark, {"x": "INTEGER", "y": "BIGINT"}, [*keys, *WHOLE[3:]])
    check(spark, {"x": "BIGINT", "y": "DOUBLE"}, [*keys, "x / y", "x % y"])
    check(spark, {"x": "REAL", "y": "DOUBLE"}, keys)
    check(spark, {"x": "SMALLINT", "y": "TINYINT"}, keys)
    check(spark, {"x": "DECIMAL(9,2)", "y": "BIGINT"}, COMPARED[:11])
    check(spark, {"x": "DECIMAL(9,2)", "y": "DOUBLE"}, [*keys, "CAST(x AS DOUBLE)", "x > 1.234"])


def test_doubles(spark: Any) -> None:
    """NaN equals itself and is the greatest; zero keeps its sign; nothing fails."""
    keys = [
        *(*COMPARED, "x + y", "x - y", "x * y", "x / y", "x % y", "-x", "ABS(x)", "SQRT(x)"),
        *("FLOOR(x)", "CEIL(x)", "ROUND(x)", "ROUND(x, 0)", "ROUND(x, 1)", "ROUND(x, 2)"),
        *("ROUND(x, 5)", "ISNAN(x)", "x * 0.1", "x > 0.3", "x + 1", "x / 3", "x IN (1, 2.5)"),
        *(f"CAST(x AS {to})" for to in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "BOOLEAN")),
        *("COALESCE(CAST(x AS INTEGER), 7)", "TRY_CAST(x AS INTEGER)", "x = 1e300", "x = 'inf'"),
        *("CASE WHEN x THEN 1 ELSE 2 END", "NOT x", "x AND y", "x OR y"),
    ]
    check(spark, {"x": "DOUBLE", "y": "DOUBLE"}, keys)
    real = [key for key in COMPARED if not key.startswith(("GREATEST", "LEAST"))]
    check(spark, {"x": "REAL", "y": "REAL"}, [*real, "x + y", "x - y", "x * y", "-x", "ABS(x)"])


def test_booleans(spark: Any) -> None:
    """Three-valued logic, and casts."""
    keys = [
        *(*COMPARED, "x AND y", "x OR y", "NOT x", "x IS TRUE", "x IS NOT TRUE", "x IS FALSE"),
        *("CAST(x AS INTEGER)", "CAST(x AS DOUBLE)", "CAST(x AS TEXT)", "x AND NULL", "x = TRUE"),
    ]
    check(spark, {"x": "BOOLEAN", "y": "BOOLEAN"}, keys)


def test_texts(spark: Any) -> None:
    """Text functions by code points, with everything that looks like a number or an escape."""
    keys = [
        *(*COMPARED, "x || y", "CONCAT(x, y, 1)", "x || 1", "LENGTH(x)", "LOWER(x)", "UPPER(x)"),
        *("TRIM(x)", "LTRIM(x)", "RTRIM(x)", "TRIM(x, y)", "LTRIM(x, y)", "RTRIM(x, 'a')"),
        *("REPLACE(x, y, 'z')", "REPLACE(x, 'a', 'é')", "STARTS_WITH(x, y)", "CONTAINS(x, y)"),
        *("ENDS_WITH(x, y)", "STRPOS(x, y)", "POSITION(y IN x)", "MD5(x)", "x = 'a\\b'"),
        *("x LIKE 'a%'", "x LIKE '%b%'", "x LIKE '_'", "x NOT LIKE '__'", "x LIKE 'a\\b'"),
        *("x LIKE 'a!%b!_%' ESCAPE '!'", "x LIKE 'a\\_c' ESCAPE '\\'", "x LIKE '%'", "x LIKE ''"),
        *("x LIKE 'x_y'", "x = '${x}'", "x = ''''", "x || '\n\t\"$`'", "LEFT(x, 2)", "RIGHT(x, 2)"),
        *("LEFT(x, 0)", "RIGHT(x, 100)", "SPLIT_PART(x, '/', 1)", "SPLIT_PART(x, '/', -1)"),
        *("SPLIT_PART(x, '//', 2)", "SPLIT_PART(x, '.', 1)", "SPLIT_PART(x, 'a', 7)"),
        *(f"SUBSTR(x, {at})" for at in (1, 2, 0, -1, -3, 100, -100)),
        *(f"SUBSTR(x, {at}, {n})" for at in (1, 2, 0, -1, -3, -100) for n in (0, 1, 2, 100)),
        *("SUBSTR(x, STRPOS(x, y) + 1)", "SUBSTR(x, STRPOS(x, y) - 1, 2)", "x > 'a'"),
        *("CAST(x AS DOUBLE)", "TRY_CAST(x AS DOUBLE)", "CAST(x AS BOOLEAN)", "CAST(x AS TEXT)"),
        *("COALESCE(CAST(x AS DOUBLE), 7)", "COALESCE(TRY_CAST(x AS DOUBLE), 7)", "x AND y"),
        *("CAST(CAST(x AS DOUBLE) AS BIGINT)", "CASE WHEN x THEN 'yes' END"),
    ]
    check(spark, {"x": "TEXT", "y": "TEXT"}, keys)
    check(spark, {"x": "TEXT", "y": "BIGINT"}, ["SUBSTR(x, y)", "SUBSTR(x, y, 2)", "x || y",
                                                "COALESCE(SUBSTR(x, y), 'none')"])  # fmt: skip


def test_every_character(spark: Any) -> None:
    """Case, spaces and length of all of Unicode."""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    texts = ["".join(map(chr, points[at : at + 64])) for at in range(0, len(points), 64)]
    spaced = [f"a{chr(c)}" for c in points if chr(c).isspace()]
    single = [chr(c) for c in points[:0x3000]]
    rows = pa.table({"x": [*texts, *spaced, *single, *(f"1{c}" for c in single)]})
    rows = rows.add_column(0, "unit", pa.array(range(rows.num_rows), pa.int64()))
    keys = ["LOWER(x)", "UPPER(x)", "LENGTH(x)", "TRIM(x)", "LTRIM(x)", "RTRIM(x)", "MD5(x)"]
    keys += ["x LIKE '1_'", "SUBSTR(x, 3, 5)", "RIGHT(x, 3)", "CAST(x AS DOUBLE)"]
    keys += ["CAST(x AS BOOLEAN)", "STRPOS(x, 'é')", "x > 'é'"]
    local, remote = both(spark, compiled({"x": "TEXT"}, keys), rows)
    compare(local, remote, {f"key_{n}": key for n, key in enumerate(keys)})


def test_numbers_in_texts(spark: Any) -> None:
    """What DuckDB reads as a number or a truth, Spark reads as the same."""
    generator = random.Random(5)
    pieces = [
        *"0123456789+-._eE \t\nxdfLnaiNIF",
        "inf",
        "nan",
        "1e",
        "_",
        "true",
        "t",
        "\x0b",
        "\r",
    ]
    texts = ["".join(generator.choices(pieces, k=generator.randint(1, 7))) for _ in range(30_000)]
    texts += [repr(struct.unpack(">d", generator.randbytes(8))[0]) for _ in range(10_000)]
    texts += [
        str(generator.getrandbits(90)) + "." + str(generator.getrandbits(90)) for _ in range(3000)
    ]
    rows = pa.table({"unit": pa.array(range(len(texts)), pa.int64()), "x": texts})
    keys = ["CAST(x AS DOUBLE)", "CAST(x AS BOOLEAN)", "ROUND(CAST(x AS DOUBLE), 2)",
            "CAST(CAST(x AS DOUBLE) AS INTEGER)", "FLOOR(CAST(x AS DOUBLE))"]  # fmt: skip
    local, remote = both(spark, compiled({"x": "TEXT"}, keys), rows)
    assert local["key_0"].null_count < local.num_rows - 10_000
    compare(local, remote, {f"key_{n}": key for n, key in enumerate(keys)})


LONG = 200_000
HOSTILE = [
    *("1" * LONG, "1" + "_1" * LONG, "1_" * LONG, "1." + "1" * LONG, "1e" + "1" * LONG),
    *(" " * LONG, " " * LONG + "1", "\t" * LONG + "x", "+" * LONG, "-" * LONG, "." * LONG),
    *("n" * LONG, "nan(" + "a" * LONG + ")", "nan(" + "a" * LONG, "t" * LONG, "true" * LONG),
    *("a" * LONG, "aé" * LONG, "👍🏽" * LONG, "/" * LONG, "%_" * LONG, "ß" * LONG, "\x00" * LONG),
]


def test_long_texts(spark: Any) -> None:
    """No text is so long that it stops a job, in which every retry would fail."""
    keys = [
        *(
            "LENGTH(x)",
            "MD5(LOWER(x))",
            "MD5(UPPER(x))",
            "MD5(TRIM(x))",
            "MD5(REPLACE(x, 'a', ''))",
        ),
        *("STARTS_WITH(x, 'a')", "ENDS_WITH(x, 'a')", "CONTAINS(x, 'é')", "STRPOS(x, 'x')"),
        *("MD5(x || x)", "MD5(CONCAT(x, x))", "SUBSTR(x, 199999, 3)", "LEFT(x, 3)", "RIGHT(x, 3)"),
        *("SPLIT_PART(x, '/', 9)", "x LIKE 'a%'", "x LIKE '%a'", "x LIKE '%b%'", "x LIKE '_%_'"),
        *("CAST(x AS DOUBLE)", "TRY_CAST(x AS DOUBLE)", "CAST(x AS BOOLEAN)", "x = x || 'a'"),
        *("CAST(CAST(x AS DOUBLE) AS BIGINT)", "x IN (x, 'a')", "STRLEN(x)", "MD5(LTRIM(x, 'a '))"),
    ]
    rows = pa.table({"unit": pa.array(range(len(HOSTILE)), pa.int64()), "x": HOSTILE})
    local, remote = both(spark, compiled({"x": "TEXT"}, keys), rows)
    assert local.num_rows == len(HOSTILE)
    compare(local, remote, {f"key_{n}": key for n, key in enumerate(keys)})


def test_no_pattern_repeats_a_group() -> None:
    """Java goes deeper with each turn: a long text would end the task, or hang a local session."""
    written = spark_rows(compiled({"x": "TEXT"}, ["CAST(x AS DOUBLE)", "CAST(x AS BOOLEAN)"]))
    patterns = re.findall(r"RLIKE '((?:[^'])*)'", written)
    assert len(set(patterns)) == 4
    assert not [pattern for pattern in patterns if re.search(r"\)[*+{]", pattern)]


@pytest.mark.parametrize(
    "rows",
    ["FROM s, UNNEST(s.l) AS t(y)", "FROM s LEFT JOIN UNNEST(s.l) AS t(y) ON TRUE",
     "FROM s JOIN UNNEST(s.l) AS t(y) ON y > c"],
)  # fmt: skip
def test_no_join_copies_a_list_into_its_rows(spark: Any, rows: str) -> None:
    """Spark has an operator for it; as a join, a list of 65,536 elements would take gigabytes."""
    query = compiled({"c": "TEXT", "l": "TEXT[]"}, ["c", "y"], rows=rows)
    show(spark, "s", pa.table({"unit": [1], "c": ["a"], "l": [["a"]]}), query.source.columns)
    plan = spark.sql(spark_rows(query))._jdf.queryExecution().optimizedPlan().toString()
    assert "Generate" in plan
    assert "Join" not in plan


def test_a_condition_of_a_left_join_to_a_list_is_refused() -> None:
    rows = "FROM s LEFT JOIN UNNEST(s.l) AS t(y) ON y > c"
    with pytest.raises(SqlError, match="ON TRUE"):
        spark_rows(compiled({"c": "TEXT", "l": "TEXT[]"}, ["c"], rows=rows))


def test_what_a_row_may_become(spark: Any) -> None:
    """The same rows are left out: lists and keys that are too long."""
    rows = pa.table(
        {
            "unit": pa.array(range(7), pa.int64()),
            "c": ["a" * 16384, "a" * 16385, "é" * 8192, "é" * 8192 + "a", None, "x", "x"],
            "l": [["a"]] * 4 + [None, ["y"] * 65_536, ["y"] * 65_537],
        }
    )
    for from_ in ("FROM s, UNNEST(s.l) AS t(item)", "FROM (SELECT *, UNNEST(l) AS item FROM s)"):
        query = compiled({"c": "TEXT", "l": "TEXT[]"}, ["c", "item"], rows=from_)
        local, remote = both(spark, query, rows)
        compare(local, remote, {})
        assert set(local["unit_0"].to_pylist()) == {0, 2, 5}
        assert local.num_rows == 65_538


def test_times(spark: Any) -> None:
    """Before 1970, after 9999, leap days, and DuckDB's infinities."""
    units = ["millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"]
    parts = ["year", "quarter", "month", "week", "day", "doy", "dow", "isodow"]
    clock = ["hour", "minute", "second"]
    keys = [
        *(*COMPARED, "CAST(x AS DATE)", "EPOCH_US(x)", "COALESCE(EPOCH_US(x), 7)"),
        *(f"DATE_TRUNC('{unit}', x)" for unit in units),
        *(f"EXTRACT({part} FROM x)" for part in (*parts, *clock)),
        *(f"DATE_PART('{part}', x)" for part in parts),
        *("YEAR(x)", "MONTH(x)", "DAY(x)", "HOUR(x)", "WEEK(x)", "DAYOFWEEK(x)", "ISODOW(x)"),
        *("x + INTERVAL 1 HOUR", "x - INTERVAL 90 MINUTES", "x + INTERVAL 3 DAYS", "DAYOFYEAR(x)"),
        *("x - INTERVAL '1 day 2 hours'", "COALESCE(x + INTERVAL 1 DAY, y)", "QUARTER(x)"),
        *("x > TIMESTAMP '2000-01-01'", "x < '2000-01-01 10:00:00'", "x > DATE '2000-01-01'"),
        *("x = TIMESTAMP 'infinity'", "CAST(CAST(x AS DATE) AS TIMESTAMP)"),
    ]
    check(spark, {"x": "TIMESTAMP", "y": "TIMESTAMP"}, keys)
    keys = [
        *(*COMPARED, "CAST(x AS TIMESTAMP)", "EPOCH_US(x)", "COALESCE(EPOCH_US(x), 7)"),
        *(f"DATE_TRUNC('{unit}', x)" for unit in units[4:]),
        *(f"EXTRACT({part} FROM x)" for part in parts),
        *("x > DATE '2000-02-29'", "x = '2020-02-29'", "COALESCE(CAST(x AS TIMESTAMP), NULL)"),
    ]
    check(spark, {"x": "DATE", "y": "DATE"}, keys)
    check(spark, {"x": "DATE", "y": "TIMESTAMP"}, COMPARED)
    keys = ["x + TO_MICROSECONDS(y)", "TIMESTAMP '1970-01-01' + TO_MICROSECONDS(1000 * y)",
            "COALESCE(x + TO_MICROSECONDS(y), x)"]  # fmt: skip
    check(spark, {"x": "TIMESTAMP", "y": "BIGINT"}, keys)


def test_constants_are_duckdbs(spark: Any) -> None:
    """What does not depend on the row is computed once, by DuckDB: any function may stand there."""
    keys = [
        *("x + LN(2)", "x > POWER(2, 0.5)", "REGEXP_REPLACE('abc', 'b', 'x')", "1e400", "-0.0e0"),
        *("DATE '2020-01-01' + 1", "TIMESTAMP '-infinity'", "'a' || 1.5", "CAST('0x10' AS INT)"),
        *(
            "-9223372036854775808",
            "TRUE",
            "CAST('ab' AS BLOB)",
            "1.50",
            "'it''s \\ ${x}'",
            "7::TINYINT",
        ),
    ]
    check(spark, {"x": "DOUBLE"}, keys)


def test_columns_that_are_passed_on(spark: Any) -> None:
    """They keep their values, whatever their type."""
    check(spark, {"a": "BLOB", "b": "BOOLEAN", "c": "DECIMAL(9,2)"}, ["a", "b", "c", "a IS NULL"])


def odd_rows(query: Query) -> pa.Table:
    """Rows for any source: each column goes through its odd values at another speed."""
    columns = {}
    for n, (name, kind) in enumerate(query.source.columns):
        pool = VALUES[{"VARCHAR": "TEXT", "INT": "INTEGER"}.get(kind.upper(), kind.upper())]
        places = [(row * (n + 1) + row // len(pool)) % len(pool) for row in range(200)]
        columns[name] = pool.take(pa.array(places))
    return pa.table(columns)


GOLDEN = sorted((Path(__file__).parent / "golden").glob("ok_*.sql"))
REFUSED = {
    "ok_calendar_date_in_a_zone",
    "ok_failing_expressions",
    "ok_lambda",
    "ok_time_zone",
    "ok_timestamptz",
}


def test_golden_statements(spark: Any) -> None:
    """Every statement of the golden tests, but those with functions that differ."""
    seen, refused = set(), set()
    for file in GOLDEN:
        for sink in compile_script(file.read_text(), folder=str(file.parent)).sinks:
            if sink.query.row_sql in seen:
                continue
            seen.add(sink.query.row_sql)
            try:
                spark_rows(sink.query)
            except SqlError:
                refused.add(file.stem)
                continue
            local, remote = both(spark, sink.query, odd_rows(sink.query))
            compare(local, remote, {"key_0": file.stem})
    assert refused == REFUSED
    assert len(seen) > 20


TABLES = {
    "names": pa.table({"c": ["a", "A", "", None, "a"], "label": ["x", "y", "z", "w", None]}),
    "numbers": pa.table({"f": [0.0, math.nan, math.inf, None], "v": [1, 2, 3, 4]}),
}
FROMS = {
    "FROM s JOIN names ON s.c = names.c": ["label"],
    "FROM s LEFT JOIN names USING (c)": ["c", "label"],
    "FROM s JOIN UNNEST(['a', '', NULL, 'b']) AS t(c) USING (c)": ["c"],
    "FROM s, names WHERE s.c < names.c": ["label"],
    "FROM s CROSS JOIN names": ["names.c"],
    "FROM s LEFT JOIN names AS n(e, l) ON s.c = n.e AND n.l > 'w'": ["n.l", "e"],
    "FROM s JOIN numbers ON d = f": ["v", "f"],
    "FROM s SEMI JOIN names USING (c)": [],
    "FROM s ANTI JOIN names ON s.c = names.c": [],
    "FROM s WHERE c IN (SELECT c FROM names WHERE c IS NOT NULL)": [],
    "FROM s WHERE c NOT IN (SELECT c FROM names)": [],
    "FROM s WHERE c NOT IN (SELECT c FROM names WHERE c IS NOT NULL)": [],
    "FROM s WHERE EXISTS (SELECT 1 FROM names WHERE names.c = s.c)": [],
    "FROM s WHERE NOT EXISTS (SELECT 1 FROM numbers WHERE f = d)": [],
    "FROM s WHERE d > 0 OR c IN (SELECT label FROM names)": [],
    "FROM (SELECT * EXCLUDE (d), d * 2 AS d FROM s) AS s": [],
    "FROM (SELECT * FROM s JOIN names USING (c)) AS s": ["c", "label"],
    "FROM (SELECT s.*, v FROM s LEFT JOIN numbers ON d = f) AS s": ["v"],
    "FROM s, UNNEST(s.l) AS t(item)": ["item"],
    "FROM s LEFT JOIN UNNEST(s.l) AS t(item) ON TRUE": ["item"],
    "FROM s JOIN UNNEST(s.l) AS t(item) ON item > c LEFT JOIN names ON s.c = names.c": ["label"],
    "FROM (SELECT *, UNNEST(l) AS item FROM s) AS s": ["item"],
    "FROM s AS q(unit, c, d, l)": ["q.c"],
}


def test_relations(spark: Any) -> None:
    """Joins, subqueries, stars and UNNEST, with nulls and NaN on both sides."""
    types = {"c": "TEXT", "d": "DOUBLE", "l": "TEXT[]"}
    rows = crossed({"c": "TEXT"})
    for name in ("d", "l"):
        pool = VALUES[types[name]]
        places = pa.array([row % len(pool) for row in range(rows.num_rows)])
        rows = rows.append_column(name, pool.take(places))
    for from_, extra in FROMS.items():
        query = compiled(types, ["d", *extra], rows=from_, tables=TABLES)
        local, remote = both(spark, query, rows)
        compare(local, remote, {name: f"{name}: {from_}" for name in local.column_names})
        assert local.num_rows or from_.endswith("NOT IN (SELECT c FROM names)")


def windowed(group: str, options: str = "") -> Query:
    script = (
        "CREATE SOURCE s (unit BIGINT, ts TIMESTAMP, x DOUBLE, y DATE);"
        f" CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}{options}) COUNT(*),"
        " SUM(x, contribution_bounds_per_row => (-1, 2)) FILTER (WHERE x > 0 OR unit < 9) AS a,"
        " STDDEV(x, contribution_bounds_per_row => (0, 1)) AS b"
        f" FROM s GROUP BY {group} EMIT EVERY INTERVAL 1 HOUR;"
    )
    return compile_script(script).sinks[0].query


def test_windows_and_periods(spark: Any) -> None:
    """Numbers of windows and periods, also of times that are in none."""
    numbers = range(len(MICROS))
    rows = pa.table(
        {
            "unit": pa.array(numbers, pa.int64()),
            "ts": VALUES["TIMESTAMP"],
            "x": VALUES["DOUBLE"].slice(0, len(MICROS)),
            "y": VALUES["DATE"].take(pa.array([n % len(DAYS) for n in numbers])),
        }
    )
    for query in [
        windowed("TUMBLE(ts, INTERVAL 7 DAYS)", ", privacy_unit_period = INTERVAL 1 DAY"),
        windowed("HOP(ts, INTERVAL 6 HOURS, INTERVAL 1 DAY)"),
        windowed("HOP(ts, INTERVAL 5 HOURS, INTERVAL 13 HOURS)"),
        windowed("DATE_TRUNC('hour', ts)"),
        windowed("CAST(y AS DATE)"),
    ]:
        local, remote = both(spark, query, rows)
        compare(local, remote, {})
        assert local["window_number"].null_count < local.num_rows


class Grammar:
    """Random expressions of what is admitted, nested, so that failures meet everything else."""

    LEAVES: ClassVar = {
        "i": ["i", "j", "7", "-1", "0", "2147483647", "LENGTH(t)"],
        "d": ["d", "0.5e0", "-0.0e0", "CAST(t AS DOUBLE)", "i / j"],
        "t": ["t", "'a'", "''", "'1'"],
        "b": ["e", "i > j", "d < 1", "t = 'a'", "CAST(t AS BOOLEAN)"],
    }
    ANY: ClassVar = [  # lower-case letters stand for a part of that kind, x for the same kind
        *("COALESCE({x}, {x})", "CASE WHEN {b} THEN {x} ELSE {x} END", "NULLIF({x}, {x})"),
        *("TRY({x})", "IF({b}, {x}, {x})", "CASE {i} WHEN {i} THEN {x} WHEN {i} THEN {x} END"),
    ]
    FORMS: ClassVar = {
        "i": [
            *(
                "({i} + {i})",
                "({i} - {i})",
                "({i} * {i})",
                "({i} // {i})",
                "({i} % {i})",
                "(- {i})",
            ),
            *("CAST({d} AS INTEGER)", "GREATEST({i}, {i})", "ABS({i})", "TRY_CAST({d} AS INTEGER)"),
        ],
        "d": [
            *(
                "({d} + {d})",
                "({d} - {d})",
                "({d} * {d})",
                "({d} / {d})",
                "({d} % {d})",
                "FLOOR({d})",
            ),
            *("CEIL({d})", "ROUND({d})", "ABS({d})", "LEAST({d}, {d})", "ROUND({d}, 2)"),
        ],
        "t": [
            *("CONCAT({t}, {i})", "({t} || {t})", "SUBSTR({t}, {i})", "UPPER(TRIM({t}))"),
            *("REPLACE({t}, {t}, 'z')", "LEFT({t}, 2)", "SUBSTR({t}, {i}, 3)"),
        ],
        "b": [
            *("({b} AND {b})", "({b} OR {b})", "(NOT {b})", "({i} < {i})", "({i} = {d})"),
            *(
                "({d} BETWEEN {d} AND {i})",
                "({t} IN ({t}, {t}))",
                "({i} IS NULL)",
                "({i} IN ({i}, 7))",
            ),
            *("({d} IS DISTINCT FROM {d})", "({t} LIKE 'a%')", "CONTAINS({t}, {t})", "({t} < {t})"),
        ],
    }

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def make(self, kind: str, depth: int) -> str:
        if depth == 0:
            return self.random.choice(self.LEAVES[kind])
        form = self.random.choice(self.FORMS[kind] if self.random.random() < 0.6 else self.ANY)
        return re.sub(
            r"\{(.)\}",
            lambda part: self.make(
                kind if part[1] == "x" else part[1], self.random.randrange(depth)
            ),
            form,
        )


def admitted(types: dict[str, str], key: str) -> bool:
    try:
        spark_rows(compiled(types, [key]))
    except SqlError:
        return False
    return True


def test_random_expressions(spark: Any) -> None:
    """A failure below COALESCE, CASE, AND, IN and the rest reaches the TRY around it."""
    types = {"i": "INTEGER", "j": "INTEGER", "d": "DOUBLE", "t": "TEXT", "e": "BOOLEAN"}
    grammar = Grammar(3)
    columns = {}
    for name, kind in types.items():
        places = grammar.random.choices(range(len(VALUES[kind])), k=400)
        columns[name] = VALUES[kind].take(pa.array(places))
    rows = pa.table({"unit": pa.array(range(400), pa.int64()), **columns})
    keys = [grammar.make(kind, 3) for kind in "idtb" for _ in range(SIZE // 4)]
    keys = [key for key in keys if admitted(types, key)]
    assert len(keys) > SIZE // 2
    local, remote = both(spark, compiled(types, keys), rows)
    compare(local, remote, {f"key_{n}": key for n, key in enumerate(keys)})


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ({"x": "TEXT"}, "CAST(x AS BIGINT)"),
        ({"x": "TEXT"}, "CAST(x AS TIMESTAMP)"),
        ({"x": "TEXT"}, "CAST(x AS DATE)"),
        ({"x": "TEXT"}, "REVERSE(x)"),
        ({"x": "TEXT"}, "REGEXP_EXTRACT(x, 'a')"),
        ({"x": "TEXT"}, "x ILIKE 'a'"),
        ({"x": "TEXT", "y": "TEXT"}, "x LIKE y"),
        ({"x": "TEXT"}, "SUBSTR(x, 2, -1)"),
        ({"x": "TEXT"}, "LEFT(x, -1)"),
        ({"x": "TEXT"}, "SPLIT_PART(x, '', 1)"),
        ({"x": "TEXT", "y": "BIGINT"}, "x = y"),
        ({"x": "DOUBLE"}, "CAST(x AS TEXT)"),
        ({"x": "DOUBLE"}, "x || 'a'"),
        ({"x": "DOUBLE"}, "LN(x)"),
        ({"x": "DOUBLE"}, "EXP(x)"),
        ({"x": "DOUBLE"}, "POWER(x, 2)"),
        ({"x": "DOUBLE"}, "x // 2"),
        ({"x": "DOUBLE"}, "CAST(x AS REAL)"),
        ({"x": "DOUBLE"}, "ROUND(x, -1)"),
        ({"x": "REAL"}, "GREATEST(x, x)"),
        ({"x": "DOUBLE"}, "1 / LEAST(x, 0)"),
        ({"x": "BIGINT"}, "CASE WHEN x = 1 OR x * x > 5 THEN 1 END"),
        ({"x": "BIGINT"}, "x * 0.1"),
        ({"x": "DECIMAL(9,2)"}, "x + x"),
        ({"x": "DECIMAL(18,2)"}, "CAST(x AS DOUBLE)"),
        ({"x": "TIMESTAMP"}, "CAST(x AS TEXT)"),
        ({"x": "TIMESTAMP"}, "x + INTERVAL 1 MONTH"),
        ({"x": "TIMESTAMP"}, "STRFTIME(x, '%H')"),
        ({"x": "DATE"}, "x + 1"),
        ({"x": "BLOB"}, "x = x"),
        ({"x": "TEXT[]"}, "x[1]"),
        ({"x": "BIGINT"}, "TO_TIMESTAMP(x)"),
    ],
)
def test_what_differs_is_refused(types: dict[str, str], key: str) -> None:
    """With the expression, the reason and a way out."""
    with pytest.raises(SqlError, match="The Spark engine does not have") as caught:
        spark_rows(compiled(types, [f"({key}) IS NULL"]))
    assert caught.value.way_out


def test_types() -> None:
    """The Spark type of every DuckDB type that has one."""
    types = {
        "TEXT": "STRING",
        "INT4": "INT",
        "BIGINT": "BIGINT",
        "REAL": "FLOAT",
        "DOUBLE": "DOUBLE",
        "TIMESTAMP": "TIMESTAMP_NTZ",
        "DECIMAL(10, 2)": "DECIMAL(10,2)",
        "BLOB": "BINARY",
        "VARCHAR[]": "ARRAY<STRING>",
    }
    assert {kind: spark_type(kind) for kind in types} == types
    for kind in ("HUGEINT", "UBIGINT", "TIME", "UUID", "INTERVAL", "TIMESTAMPTZ", "TIMESTAMP_NS"):
        with pytest.raises(SqlError, match="does not have the type"):
            spark_type(kind)
