"""What one row may become is bounded: by the query's constants, or it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from dpsqlp.errors import SqlError
from dpsqlp.sql import Query, compile_script, connect
from dpsqlp.sql.row_limits import BYTES_MAX, ROWS_MAX

COLUMNS = "unit BIGINT, k TEXT, n BIGINT, x DOUBLE, l TEXT[], m BIGINT[], j JSON, b BLOB"
OF_ANY_LENGTH = [
    *("LPAD(k, CAST(n AS INTEGER), 'x')", "RPAD(k, CAST(n AS INTEGER), 'x')", "REPEAT(k, n)"),
    *("REPEAT(k, LEAST(n, 101))", "REPEAT(k, GREATEST(n, 5))", "REPEAT(k, LEAST(n, n))"),
    *("k.lpad(CAST(n AS INTEGER), 'x')", "main.lpad(k, CAST(n AS INTEGER), 'x')", '"repeat"(k, n)'),
    *("LEN(RANGE(n))", "LEN(RANGE(0, n))", "LEN(RANGE(n, 5))", "LEN(n.range())"),
    *("LEN(RANGE(0, LEAST(n, 5), -1))", "LEN(RANGE(0, LEAST(n, 5), n))", "LEN(RANGE(0, 70000, n))"),
    *("LEN(RANGE(-1000000, LEAST(n, 5)))", "LEN(RANGE(0, LEAST(n, 70000)))"),
    *("LEN(GENERATE_SERIES(0, n))", "LEN(LIST_RESIZE(l, n))", "LEN(ARRAY_RESIZE(l, n, 'x'))"),
    *("CAST(BITSTRING('1', CAST(n AS INTEGER)) AS TEXT)", "LEN(EQUI_WIDTH_BINS(0, 9, n, TRUE))"),
    *("REPLACE(k, 'a', k)", "k.replace('a', k)", "REGEXP_REPLACE(k, 'a', k, 'g')"),
    *("PRINTF(k, n)", "PRINTF('%*d', n, n)", "FORMAT(k, n)", "FORMAT('{:{}}', n, n)"),
    *("FORMAT('{0: >{1}}', n, n)", "CONCAT_WS(k, l, l)", "ARRAY_TO_STRING(l, k)"),
    *("LIST_AGGREGATE(l, 'string_agg', k)", "k.concat_ws(l)"),
    *("CAST(LIST_TRANSFORM(l, lambda y: y || k) AS TEXT)", "CAST([k FOR y IN l] AS TEXT)"),
    *(
        "CAST(LIST_TRANSFORM(l, lambda y: l) AS TEXT)",
        "CAST(LIST_TRANSFORM(l, lambda y: j) AS TEXT)",
    ),
    *("CAST(LIST_TRANSFORM(l, lambda n: LIST_TRANSFORM([1], lambda y: n || y)) AS TEXT)",),
    *("CAST(l.list_transform(lambda y: k) AS TEXT)", "LIST_REDUCE(l, lambda a, y: a || a)"),
    *("ARRAY_REDUCE(m, lambda a, y: a + y)", "DAMERAU_LEVENSHTEIN(k, k)", "JSON_PRETTY(j)"),
]
ENDS_THE_PROCESS = [
    *("JSON_CONTAINS(j, j)", "CAST(CAST(j AS VARIANT) AS TEXT)", "CAST(j AS VARIANT[])[1] IS NULL"),
    *("LIST_SELECT(l, m) IS NULL", "LIST_WHERE(l, [TRUE]) IS NULL", "l.array_select(m) IS NULL"),
    *("VARIANT_TYPEOF(j)", "j::STRUCT(a VARIANT) IS NULL", "TRY_CAST(j AS VARIANT) IS NULL"),
    *('"!="(l, n)', "__internal_decompress_string(n)", '"__cast"(k)'),
]
BOUNDED = [
    *("LPAD(k, 5, 'x')", "LPAD(k, CAST(LEAST(n, 65536) AS INTEGER), 'x')", "k.lpad(5, 'x')"),
    *("REPEAT(k, 3)", "REPEAT(k, LEAST(n, 100))", "LEN(RANGE(0, LEAST(n, 65536)))"),
    *("LEN(RANGE(GREATEST(n, 0), LEAST(n + 5, 10), 2))", "LEN(RANGE(10, 0, -1))", "LEN(RANGE(9))"),
    *("LEN(LIST_RESIZE(l, LEAST(n, 9)))", "REPLACE(k, k, 'a')", "REGEXP_REPLACE(k, k, 'a')"),
    *("PRINTF('%05d', n)", "FORMAT('{:>5} {}', n, k)", "CONCAT_WS('-', k, k)", "k || k"),
    *("ARRAY_TO_STRING(l, ', ')", "LIST_AGGREGATE(l, 'string_agg', ', ')", "LEVENSHTEIN(k, k)"),
    *("CAST(LIST_TRANSFORM(l, lambda y: y || n) AS TEXT)", "CAST([y * x FOR y IN m] AS TEXT)"),
    *("CAST(LIST_FILTER(l, lambda y: y = k) AS TEXT)",),
    *("CAST(LIST_TRANSFORM(l, lambda y: LIST_TRANSFORM([y], lambda z: z || '!')) AS TEXT)",),
]


def compiled(key: str, rows: str = "FROM s", group: str = "key") -> Query:
    return compile_script(
        f"CREATE SOURCE s ({COLUMNS}); CREATE SINK o AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS"
        " (epsilon = 1, delta = 1e-9, privacy_unit_column = unit, max_rows_contributed = 1)"
        f" {key} AS key, COUNT(*) AS n {rows} GROUP BY {group}"
        " EMIT EVERY INTERVAL 1 HOUR FOR 4 TRIGGERS;"
    ).sinks[0].query  # fmt: skip


@pytest.mark.parametrize("key", OF_ANY_LENGTH)
def test_a_result_of_any_length_is_refused(key: str) -> None:
    """Also as a method, by another name, and where two parsers read it differently."""
    with pytest.raises(SqlError, match=r"of any length|any number of times|repeat|limited length"):
        compiled(key)


@pytest.mark.parametrize("key", ENDS_THE_PROCESS)
def test_what_can_end_the_process_is_refused(key: str) -> None:
    with pytest.raises(SqlError, match=r"can end the process|There is no function|known to work"):
        compiled(key)


@pytest.mark.parametrize("key", BOUNDED)
def test_a_result_of_limited_length_is_not(key: str) -> None:
    assert compiled(key).row_sql


def rows_of(query: Query, **columns: Sequence[object]) -> list[tuple[object, ...]]:
    """Unit and key of each row that records become."""
    types = {"k": pa.string(), "l": pa.list_(pa.string()), "m": pa.list_(pa.int64()),
             "b": pa.binary()}  # fmt: skip
    size = len(next(iter(columns.values())))
    table = {"unit": pa.array(range(size), pa.int64())}
    for name, kind in (column.split(" ") for column in COLUMNS.split(", ")[1:]):
        given = columns.get(name, [None] * size)
        table[name] = pa.array(given, types.get(name, pa.string() if kind == "JSON" else None))
    with connect() as connection:
        connection.register("s", pa.table(table))
        return connection.sql(f"SELECT unit_0, key_0 FROM ({query.row_sql})").fetchall()


def test_a_row_becomes_no_more_rows_than_it_may() -> None:
    """One that would is left out, whatever stands beside it."""
    lists = [list(range(ROWS_MAX)), list(range(ROWS_MAX + 1)), [7], None]
    for rows in ("FROM s, UNNEST(s.m) AS t(y)", "FROM (SELECT unit, UNNEST(m) AS y FROM s)"):
        found = rows_of(compiled("y", rows), m=lists)
        assert {unit: sum(u == unit for u, _ in found) for unit in range(4)} == {
            0: ROWS_MAX, 1: 0, 2: 1, 3: 0
        }  # fmt: skip


def test_several_unnests_share_what_a_row_may_become() -> None:
    """Their product is bounded."""
    rows = "FROM (SELECT unit, m, UNNEST(m) AS y FROM s) AS q, UNNEST(q.m) AS t(z)"
    found = rows_of(compiled("y + z", rows), m=[[0] * 256, [0] * 257])
    assert [unit for unit, _ in found] == [0] * ROWS_MAX


def test_a_unit_and_its_key_are_no_longer_than_they_may_be() -> None:
    """In bytes, not in characters; nulls have none."""
    texts = ["a" * BYTES_MAX, "a" * (BYTES_MAX + 1), "é" * (BYTES_MAX // 2), None]
    texts += ["é" * (BYTES_MAX // 2) + "a"]
    assert [unit for unit, _ in rows_of(compiled("k"), k=texts)] == [0, 2, 3]
    blobs = [b"a" * BYTES_MAX, b"a" * (BYTES_MAX + 1)]
    assert [unit for unit, _ in rows_of(compiled("b"), b=blobs)] == [0]
    query = compiled("k AS other, l[1]", group="other, key")
    found = rows_of(query, k=[None, "a", texts[1]], l=[["a"], [texts[1]], None])
    assert [unit for unit, _ in found] == [0]
