"""Rows that the row query fails on are dropped, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest

from dpsqlp.engines import row_query as rows_module
from dpsqlp.engines.row_query import RowQuery
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SourceError
from dpsqlp.sources.columns import show
from dpsqlp.sql import compile_script
from dpsqlp.sql.query import Query
from dpsqlp.sql.row_limits import ROWS_MAX
from support.fake_clock import START, FakeClock
from support.pipelines import HOUR, MINUTE, SECRET, Record, made, replay, run_all, script, step
from support.pipelines import write as write_file

BUCKETS = "TIME_BUCKET(TO_MINUTES(CAST(x AS BIGINT)), ts) AS b, COUNT(*) AS n"  # fails at x = 0


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def records(units: int = 40) -> list[Record]:
    """Records that the query can evaluate, some of each quarter of an hour."""
    return [
        (f"u{unit}", "abc"[unit % 3], 5.0 * (1 + unit % 2), START + (unit * 7 + turn * 13) * MINUTE)
        for unit in range(units)
        for turn in range(4)
    ]


def poison(count: int) -> list[Record]:
    """Records of one unit that it cannot."""
    return [("bad", "a", 0.0, START + place * MINUTE // 7) for place in range(count)]


def released(folder: Path, given: Sequence[Record], **options: str) -> dict[int, Any]:
    """What is released for records in three files."""
    for part in range(3):
        write_file(folder / "in" / f"{part}.parquet", given[part::3])
    emit = replay(START, START + 3 * HOUR)
    engine = made(folder, script(select=BUCKETS, group="b", emit=emit, **options))
    return run_all(engine)


@pytest.mark.parametrize("window", ["TUMBLE(ts, INTERVAL 1 HOUR)", "TUMBLE(ts + INTERVAL 0 DAYS,"
                                    " INTERVAL 1 HOUR)"])  # fmt: skip
def test_other_rows_are_released_as_without_the_failing_ones(tmp_path: Path, window: str) -> None:
    """Bit for bit, at every trigger, also where the span is not left to the reader."""
    alone = released(tmp_path / "alone", records(), window=window)
    together = released(tmp_path / "together", records() + poison(50), window=window)
    assert sum(map(len, alone.values())) > 10
    assert together == alone


def test_a_retry_drops_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended after its intent goes on, with the rows that it would have had."""
    runs = {}
    for name in ("once", "again"):
        folder = tmp_path / name
        write_file(folder / "in" / "a.parquet", records() + poison(3))
        sql = script(select=BUCKETS, group="b", emit=replay(START, START + HOUR))
        if name == "again":
            engine = made(folder, sql)
            monkeypatch.setattr(engine, "_compute", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                step(engine)
            engine.close()
        runs[name] = run_all(made(folder, sql))
    assert runs["once"] == runs["again"]


EVERY = "EMIT EVERY INTERVAL 15 MINUTES FOR 4 TRIGGERS"


class Given:
    """A source of one table, which counts how often it is read."""

    def __init__(self, query: Query, table: pa.Table) -> None:
        self.query, self.table, self.reads = query, table, 0

    def folders(self) -> list[str]:
        return []

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        self.reads += 1
        show(database, self.query.source, self.table)


def compiled(columns: str, key: str) -> Query:
    """A query with one key, over a source without a connector."""
    return compile_script(
        f"CREATE SOURCE s (unit BIGINT, {columns}); CREATE SINK o AS SELECT WITH"
        " DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = unit,"
        f" max_rows_contributed = 1) {key} AS key, COUNT(*) AS n FROM s GROUP BY key {EVERY};"
    ).sinks[0].query  # fmt: skip


def evaluated(columns: str, key: str, table: pa.Table) -> tuple[dict[int, Any], int]:
    """Units and the keys of their rows, and the number of rows that were dropped."""
    query = compiled(columns, key)
    numbered = table.add_column(0, "unit", pa.array(range(table.num_rows), pa.int64()))
    with RowQuery(query, Given(query, numbered), 2) as rows:  # type: ignore[arg-type]
        found = rows.run(None, None, all_rows)
    return {row["unit_0"]: row["key_0"] for row in found}, rows.dropped


def all_rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of a result."""
    return [row for batch in batches for row in batch.to_pylist()]


NUMBERS = pa.table({"x": pa.array([1, 0, 1, 0, 0, 0, 1, 1, 0], pa.int64())})
FAILING = [1, 3, 4, 5, 8]


def test_exactly_the_failing_rows_are_dropped() -> None:
    """Next to one another, at the end, and between others."""
    key = "TIME_BUCKET(TO_MINUTES(x), TIMESTAMP '2020-01-01')"
    kept, dropped = evaluated("x BIGINT", key, NUMBERS)
    assert sorted(kept) == [n for n in range(9) if n not in FAILING]
    assert dropped == len(FAILING)


def test_errors_that_invalidate_the_database() -> None:
    """It is opened anew, and the rows around are evaluated."""
    deep = "[" * 130 + "]" * 130
    table = pa.table({"x": [deep, "[1]", deep, deep, "{}", "[]", deep]})
    kept, dropped = evaluated("x JSON", "CAST(JSON_STRUCTURE(x) AS VARCHAR)", table)
    assert kept == {1: '["UBIGINT"]', 4: '"JSON"', 5: '["NULL"]'}
    assert dropped == 4


def test_rows_that_fail_only_together_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that many rows take is no reason to drop one."""
    whole = rows_module.result_batches

    def short_of_memory(result: Any, *rows: int) -> Iterator[pa.RecordBatch]:
        batches = list(whole(result, *rows))
        if "unit_0" in result.columns and sum(batch.num_rows for batch in batches) > 2:
            raise duckdb.OutOfMemoryException("together")
        return iter(batches)

    monkeypatch.setattr(rows_module, "result_batches", short_of_memory)
    kept, dropped = evaluated("x BIGINT", "x + 1", NUMBERS)
    assert (sorted(kept), dropped) == (list(range(9)), 0)


def test_a_query_that_fails_without_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be left, and nobody would know why."""
    query = compiled("x BIGINT", "x")
    broken = replace(query, row_sql="SELECT error('always') AS unit_0")
    with RowQuery(broken, Given(query, NUMBERS), 1) as rows, pytest.raises(duckdb.Error):  # type: ignore[arg-type]
        rows.run(None, None, list)


VALUES = {
    "INTERVAL": "TO_MICROSECONDS(9223372036854775807)",
    "HUGEINT": "170141183460469231731687303715884105727",
    "UUID": "'00000000-0000-0000-0000-000000000001'",
    "JSON": """'{"a": 1}'""",
    "TIMESTAMP_NS": "'2262-04-11 23:47:16.854775806'",
    "TIMETZ": "'12:00:00+15:59:59'",
    "DECIMAL(38, 3)": "'99999999999999999999999999999999999.999'",
    "STRUCT(a INTEGER[], b DATE)": "{'a': [1, NULL], 'b': 'infinity'}",
    "STRUCT(a HUGEINT, b UUID[])": "{'a': -170141183460469231731687303715884105728, 'b':"
    " ['ffffffff-ffff-ffff-ffff-ffffffffffff', NULL]}",
    "STRUCT(a TIMETZ, b JSON)[]": """[{'a': '12:00:00-15:59:59', 'b': '{"a": 1}'}]""",
    "TIMESTAMP_NS[2]": "['2262-04-11 23:47:16.854775806', NULL]",
    "MAP(VARCHAR, UHUGEINT)": "MAP {'a': 340282366920938463463374607431768211455}",
    "TIMESTAMPTZ": "'294247-01-10 04:00:54.775806'",
    "TIMESTAMP_S[]": "['290309-12-22 (BC) 00:00:00']",
    "ENUM('a', 'b')[]": "['b', NULL]",
    "BLOB[]": r"['\x00\xFF']",
}


class InDatabase(Given):
    """A source of values that only the database has."""

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        listed = [f"CAST({v} AS {kind}) AS c{n}" for n, (kind, v) in enumerate(VALUES.items())]
        database.execute(
            f"CREATE OR REPLACE TEMP VIEW s AS SELECT i AS unit, {', '.join(listed)}, i AS x"
            " FROM range(3) AS r(i)"
        )


def test_every_type_of_value_is_evaluated_as_it_is() -> None:
    """Beside a row that fails as without it."""
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))
    texts = " || ' ' || ".join(f"CAST(c{n} AS VARCHAR)" for n in range(len(VALUES)))
    found = []
    for least in (0, 1):
        fails = f"TIME_BUCKET(TO_MINUTES(GREATEST(x, {least})), TIMESTAMP '2020-01-01') IS NULL"
        query = compiled(f"{columns}, x BIGINT", f"CASE WHEN {fails} THEN NULL ELSE {texts} END")
        with RowQuery(query, InDatabase(query, NUMBERS), 1) as rows:  # type: ignore[arg-type]
            result = rows.run(None, None, all_rows)
        assert rows.dropped == 1 - least
        found.append({row["key_0"] for row in result})
    assert found[0] == found[1]
    assert None not in found[0]


def test_a_damaged_file_is_no_failing_row(tmp_path: Path) -> None:
    """Its rows are not dropped: the trigger does not run."""
    path = tmp_path / "in" / "a.parquet"
    write_file(path, records() + poison(3))
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)  # pages, not the footer
    path.write_bytes(data)
    engine = made(tmp_path, script(select=BUCKETS, group="b"))
    engine.clock = FakeClock(engine.schedule.due(engine.next_trigger))
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read"):
        step(engine)
    engine.close()


def test_what_fails_late_says_nothing_about_a_record(tmp_path: Path) -> None:
    """Arrow hands on the database's errors with their text."""
    with duckdb.connect() as database:
        late = database.sql("SELECT CAST(CASE WHEN i > 4000000 THEN 'secret' END AS INTEGER)"
                            " FROM range(5000000) AS r(i)")  # fmt: skip
        try:
            list(rows_module.result_batches(late))
        except Exception as failed:
            said = str(failed)
    assert "secret" not in said


class Wide(Given):
    """2.4 GB in a column, and a row that fails."""

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        database.execute(
            "CREATE OR REPLACE TEMP VIEW s AS SELECT i AS unit, i AS x, repeat('a', 4000) AS t"
            " FROM range(600000) AS r(i)"
        )


@pytest.mark.parametrize("key", ["1", "LENGTH(t)"])
def test_a_failing_row_needs_no_memory_for_all_rows(key: str) -> None:
    """They are read in pieces, columns that the query does not use as well."""
    fails = "TIME_BUCKET(TO_MINUTES(x), TIMESTAMP '2020-01-01') IS NULL"
    query = compiled("x BIGINT, t TEXT", f"CASE WHEN {fails} THEN 0 ELSE {key} END")
    found = 0
    with RowQuery(query, Wide(query, NUMBERS), 1) as rows, suppress(duckdb.Error):  # type: ignore[arg-type]
        found = rows.run(None, None, lambda batches: sum(batch.num_rows for batch in batches))
    assert (found, rows.dropped) == (599_999, 1)


@pytest.mark.parametrize(
    ("unit", "key", "rows"),
    [
        ("unit", "k", "s"),
        ("someone", "k", "s AS t(someone)"),
        ("p", "q", "s AS t(p, q, x, ts)"),
        ("unit", "json_extract_string(to_json(s), 'k')", "s"),
        ("unit", "CAST(s AS TEXT)", "s"),
    ],
)
def test_columns_without_a_name_are_evaluated_beside_a_failing_row(
    unit: str, key: str, rows: str
) -> None:
    """A column may be used under another name, or as a part of the whole row."""
    select = f"{key} || CAST(TIME_BUCKET(TO_MINUTES(x), ts) AS TEXT) AS key, COUNT(*) AS n"
    (sink,) = compile_script(
        "CREATE SOURCE s (unit TEXT, k TEXT, x BIGINT, ts TIMESTAMP); CREATE SINK o AS SELECT WITH"
        f" DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = {unit},"
        f" max_rows_contributed = 1) {select} FROM {rows} GROUP BY key {EVERY};"
    ).sinks
    found = []
    for widths in ([5, 5], [5, 5, 0]):
        given = pa.table(
            {
                "unit": [f"u{number}" for number in range(len(widths))],
                "k": ["a"] * len(widths),
                "x": pa.array(widths, pa.int64()),
                "ts": pa.array([0] * len(widths), pa.timestamp("us")),
            }
        )
        with RowQuery(sink.query, Given(sink.query, given), 1) as evaluating:  # type: ignore[arg-type]
            found.append(evaluating.run(None, None, lambda batches: list(batches)))
            assert evaluating.dropped == widths.count(0)
    alone, beside = (
        sorted(f"{row['unit_0']} {row['key_0']}" for batch in batches for row in batch.to_pylist())
        for batches in found
    )
    assert alone == beside
    assert len(alone) == 2


def test_a_row_with_a_large_result_is_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much to hold is evaluated again, not dropped."""
    monkeypatch.setattr(rows_module, "_HELD_BYTES", 10)
    kept, dropped = evaluated("x BIGINT", "TIME_BUCKET(TO_MINUTES(x), TIMESTAMP '2020-01-01')",
                              NUMBERS)  # fmt: skip
    assert sorted(kept) == [n for n in range(9) if n not in FAILING]
    assert dropped == len(FAILING)


LIST = "UNNEST(s.l) AS t(y)"
UNNESTING = [
    *(f"FROM s, {LIST}", f"FROM s LEFT JOIN {LIST} ON TRUE", f"FROM s JOIN {LIST} ON y >= 0"),
    *(f"FROM s, {LIST} WHERE LEN(l) + y > 0", f"FROM s, {LIST} JOIN p ON y = p.a"),
    *(f"FROM s, {LIST} LEFT JOIN p ON y = p.a", f"FROM s, {LIST} WHERE y IN (SELECT a FROM p)"),
    *(f"FROM s, {LIST} SEMI JOIN p ON y = p.a", f"FROM p JOIN s ON p.a = s.unit, {LIST}"),
    "FROM (SELECT *, UNNEST(l) AS y FROM s) LEFT JOIN p ON y = p.a",
]


@pytest.mark.parametrize("rows", UNNESTING)
def test_a_row_may_become_as_many_rows_as_documented(rows: str) -> None:
    """Alone and beside others, also if the query uses the list itself and a large table."""
    table = pa.table({"a": range(1, 100_001)})
    (sink,) = compile_script(
        "CREATE SOURCE s (unit BIGINT, l BIGINT[]); CREATE SINK o AS SELECT WITH"
        " DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = unit,"
        f" max_rows_contributed = 1) LEN(l) AS key, COUNT(*) AS n {rows} GROUP BY key {EVERY};",
        tables={"p": table},
    ).sinks
    longest = list(range(1, ROWS_MAX + 1))
    for lists in ([longest], [[*longest, 1], longest, [7]]):
        units = pa.array(range(1, len(lists) + 1), pa.int64())
        given = pa.table({"unit": units, "l": pa.array(lists, pa.list_(pa.int64()))})
        source = Given(sink.query, given)
        with RowQuery(sink.query, source, 1) as evaluating:  # type: ignore[arg-type]
            found = evaluating.run(None, None, lambda batches: sum(b.num_rows for b in batches))
        left_out = len(lists) - 1 if "LEFT JOIN UNNEST" in rows else len(lists) // 2
        assert (found, source.reads, evaluating.dropped) == (ROWS_MAX + left_out, 1, 0)
