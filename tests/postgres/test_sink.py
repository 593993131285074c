"""The sink: rows come back equal, triggers are there once, errors say what to do."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from dpsqlp.clients import postgres
from dpsqlp.errors import DpsqlpError, PlanError, SinkError, UnavailableError
from dpsqlp.sinks import postgres as sink_module
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sinks.postgres import PostgresSink
from dpsqlp.sql.options import from_environment
from postgres.cluster import PASSWORD, Cluster, bad_line
from support.processes import WAIT_SECONDS, started, until

KEYS = ["it's", 'a "b"', "ünï", "", None, "\\.", "\\N", "a\nb\r\n", "NULL", ",", " x ", "😀"]


def release(
    trigger: int, keys: list[Any] | None = None, value: float = 0.5, **columns: Any
) -> pa.Table:
    keys = KEYS if keys is None else keys
    rows = len(keys)
    return pa.table(
        {
            "window_start": pa.array([datetime(2024, 1, 1)] * rows, pa.timestamp("us")),
            "window_end": pa.array([datetime(2024, 1, 2)] * rows, pa.timestamp("us")),
            "trigger": pa.array([trigger] * rows, pa.int64()),
            "released_at": pa.array([datetime(2024, 1, 1)] * rows, pa.timestamp("us")),
            "window_trigger": pa.array([trigger] * rows, pa.int64()),
            "final": pa.array([False] * rows, pa.bool_()),
            "k": pa.array(keys, pa.string()),
            **columns,
            "n": pa.array(range(rows), pa.int64()),
            "n_sd": pa.array([value] * rows, pa.float64()),
        }
    )


@pytest.fixture
def sink(server: Cluster) -> Iterator[PostgresSink]:
    made = PostgresSink(server.dsn, "t")
    made.open("", ["k"])
    yield made
    made.close()


def opened(server: Cluster, pipeline: str) -> PostgresSink:
    sink = PostgresSink(server.dsn, "t")
    sink.open(pipeline, ["k"])
    return sink


def rows_of(server: Cluster, table: str = "t") -> list[tuple[Any, ...]]:
    return sorted(server.run(f"SELECT * FROM {table}"), key=repr)


def test_rows_come_back_as_they_were_released(server: Cluster, sink: PostgresSink) -> None:
    """Texts of all kinds, whatever the server's settings are; null and empty apart."""
    sink.emit(3, release(3))
    expected = [tuple(row.values()) for row in release(3).to_pylist()]
    assert rows_of(server) == sorted(expected, key=repr)


EVERY_TYPE: dict[str, tuple[Any, str, list[Any]]] = {
    "BOOLEAN": (["true", "false"], "boolean", [True, False]),
    "TINYINT": (["-128", "127"], "smallint", [-128, 127]),
    "UTINYINT": (["255"], "smallint", [255]),
    "SMALLINT": (["-32768"], "smallint", [-32768]),
    "USMALLINT": (["65535"], "integer", [65535]),
    "INTEGER": (["-2147483648"], "integer", [-(2**31)]),
    "UINTEGER": (["4294967295"], "bigint", [2**32 - 1]),
    "BIGINT": (["-9223372036854775808", "9223372036854775807"], "bigint", [-(2**63), 2**63 - 1]),
    "UBIGINT": (["18446744073709551615"], "numeric(20,0)", [Decimal(2**64 - 1)]),
    "HUGEINT": ([str(10**37)], "numeric(38,0)", [Decimal(10**37)]),
    "FLOAT": (["0.1", "nan", "inf", "-inf"], "real", [0.1, "nan", "inf", "-inf"]),
    "DOUBLE": (
        ["0.1", "-1e-320", "1.7976931348623157e308", "nan", "inf", "-inf"],
        "double precision",
        [0.1, -1e-320, 1.7976931348623157e308, "nan", "inf", "-inf"],
    ),
    "DECIMAL(38,10)": (
        ["1234567890123456789012345678.0123456789"],
        "numeric(38,10)",
        [Decimal("1234567890123456789012345678.0123456789")],
    ),
    "TEXT": (["x"], "text", ["x"]),
    "BLOB": (["\\x00\\xFFab"], "bytea", [b"\x00\xffab"]),
    "DATE": (
        ["2024-02-29", "0001-01-01"],
        "date",
        [date(2024, 2, 29), date(1, 1, 1)],
    ),
    "TIME": (["23:59:59.999999"], "time without time zone", [time_of_day(23, 59, 59, 999999)]),
    "TIMESTAMP": (
        ["2024-03-31 02:30:00.000001", "9999-12-31 23:59:59.999999"],
        "timestamp without time zone",
        [datetime(2024, 3, 31, 2, 30, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "TIMESTAMP_S": (
        ["2024-03-31 02:30:00"],
        "timestamp without time zone",
        [datetime(2024, 3, 31, 2, 30)],
    ),
    "TIMESTAMP_MS": (
        ["2024-03-31 02:30:00.001"],
        "timestamp without time zone",
        [datetime(2024, 3, 31, 2, 30, 0, 1000)],
    ),
    "TIMESTAMP_NS": (
        ["2024-03-31 02:30:00.000000001"],
        "text",
        ["2024-03-31 02:30:00.000000001"],
    ),
    "TIMESTAMPTZ": (
        ["2024-03-31 02:30:00+02"],
        "timestamp with time zone",
        [datetime(2024, 3, 31, 0, 30, tzinfo=UTC)],
    ),
    "UUID": (
        ["8ec6f2e0-23e5-4970-aba9-132ec6470a1d"],
        "text",
        ["8ec6f2e0-23e5-4970-aba9-132ec6470a1d"],
    ),
    "JSON": (['{"a" : [1, "\\u0000"]}'], "text", ['{"a" : [1, "\\u0000"]}']),
    "ENUM('it''s', 'b')": (["it's"], "text", ["it's"]),
}


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_every_type_of_key(kind: str, server: Cluster, sink: PostgresSink) -> None:
    """Each comes back equal, and so does null."""
    texts, wanted, values = EVERY_TYPE[kind]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        listed = ", ".join(f"({text})" for text in [*map(_literal, texts), "NULL"])
        query = f"SELECT CAST(text AS {kind}) AS key FROM (VALUES {listed}) AS v(text)"
        keys = database.sql(query).to_arrow_table().column("key")
    sink.open("", ["key"])
    sink.emit(1, release(1, ["x"] * len(keys), key=keys))
    assert server.run(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'key'"
        " AND attrelid = 't'::regclass"
    ) == [(wanted,)]
    found = [row[0] for row in server.run("SELECT key FROM t ORDER BY n")]
    expected = [float(v) if kind in ("FLOAT", "DOUBLE") else v for v in values]
    assert [repr(v) for v in found] == [repr(v) for v in [*expected, None]]
    assert len(server.run("SELECT * FROM t_current")) == len(keys)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def test_what_postgresql_cannot_hold_stops_nothing(server: Cluster, sink: PostgresSink) -> None:
    """U+0000 is shown as its symbol, times before 4713 BC and after its last year as infinite."""
    with duckdb.connect() as database:
        keys = database.sql(
            "SELECT * FROM (VALUES"
            " ('-290000-01-01'::TIMESTAMP, '5881580-07-10'::DATE),"
            " (make_timestamp(-9000000000000000000), '-5877641-06-25'::DATE),"
            " ('infinity', 'infinity'), ('-infinity', '-infinity'),"
            " ('0044-03-15 (BC) 12:00:00', '0044-03-15 (BC)'))"
        ).to_arrow_table()
    times, dates = keys.columns
    sink.emit(1, release(1, ["a\0b"] * 5, time=times, day=dates))
    with server.connect() as connection:
        connection.execute("SET datestyle = 'ISO'")
        found = connection.execute("SELECT k, time::text, day::text FROM t ORDER BY n").fetchall()
    assert {row[0] for row in found} == {"a\u2400b"}
    assert [row[1:] for row in found[1:]] == [
        ("-infinity", "-infinity"),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("0044-03-15 12:00:00 BC", "0044-03-15 BC"),
    ]
    assert found[0][2] == "infinity"


def test_a_trigger_is_there_once_and_is_not_replaced(server: Cluster, sink: PostgresSink) -> None:
    """Emitted again it changes nothing, also by another process; other rows are refused, and so
    are rows for a trigger that had none.
    """
    for trigger in (7, 8, 9):
        sink.emit(trigger, release(trigger))
    ids = "SELECT ctid::text, xmin::text, trigger FROM t ORDER BY 1"
    before = server.run(ids)
    other = PostgresSink(server.dsn, "t")
    other.emit(9, release(9))
    assert server.run(ids) == before
    for changed in (release(9, ["x"], 2.0), release(9, []), release(9, [*KEYS, "x"])):
        with pytest.raises(SinkError, match=r"different rows.*was replaced.*own budget"):
            other.emit(9, changed)
    for earlier in (release(8), release(6), release(6, [])):
        with pytest.raises(SinkError, match="the state is an old copy"):
            other.emit(earlier["trigger"][0].as_py() if earlier.num_rows else 6, earlier)
    other.emit(10, release(10, []))
    other.emit(10, release(10, []))
    with pytest.raises(SinkError, match=r"Trigger 10 .*different rows"):
        sink.emit(10, release(10))
    other.close()
    assert server.run(ids) == before
    indexed = server.run("SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY 1")
    assert [row[0].rpartition("(")[2] for row in indexed] == ["trigger)", "window_start)"]


def test_a_first_release_without_rows_is_not_replaced(server: Cluster, sink: PostgresSink) -> None:
    """The tables are created for it, and its digest is stored."""
    sink.emit(1, release(1, []))
    with pytest.raises(SinkError, match="different rows"):
        sink.emit(1, release(1))
    assert rows_of(server) == []


def test_rows_without_a_digest_are_not_replaced(server: Cluster, sink: PostgresSink) -> None:
    """The table of digests was lost: a published trigger cannot be compared, and is refused."""
    sink.emit(7, release(7))
    server.run("DROP TABLE t_triggers")
    for trigger in (6, 7):
        with pytest.raises(SinkError, match="the state is an old copy"):
            sink.emit(trigger, release(trigger))
    sink.emit(8, release(8))
    assert len(rows_of(server)) == 2 * len(KEYS)


def test_the_view_has_the_last_release_of_each_key_in_each_window(
    server: Cluster, sink: PostgresSink
) -> None:
    """Null is a key, keys are told apart by their bytes, windows by their start."""
    sink.emit(1, release(1, ["a", None, "gone", "A"], 1.0))
    sink.emit(2, release(2, ["a", "gone"], 2.0))
    sink.emit(3, release(3, ["a", None, "A"], 3.0))
    other = release(4, ["a"], 4.0)
    moved = pa.array([datetime(2024, 1, 2)], pa.timestamp("us"))
    sink.emit(4, other.set_column(0, "window_start", moved))
    found = server.run("SELECT window_start, trigger, k, n_sd FROM t_current")
    assert sorted(found, key=repr) == sorted(
        [
            (datetime(2024, 1, 1), 3, "a", 3.0),
            (datetime(2024, 1, 1), 3, "A", 3.0),
            (datetime(2024, 1, 1), 3, None, 3.0),
            (datetime(2024, 1, 1), 2, "gone", 2.0),
            (datetime(2024, 1, 2), 4, "a", 4.0),
        ],
        key=repr,
    )


def test_the_view_without_keys_and_without_a_window(server: Cluster, sink: PostgresSink) -> None:
    """One row: the last."""
    sink.open("", [])
    for trigger in (1, 2):
        rows = release(trigger, ["x"]).drop_columns(["k"])
        rows = rows.set_column(0, "window_start", pa.nulls(1, pa.timestamp("us")))
        sink.emit(trigger, rows)
    assert server.run("SELECT trigger FROM t_current") == [(2,)]


@pytest.mark.parametrize(
    "table", ['my "table', "T", "select", "it's", "100%s", "a; DROP TABLE x", "s p.my table", "ü\\"]
)
def test_names_are_taken_as_they_are(table: str, server: Cluster) -> None:
    """Of tables, schemas and columns, hostile ones too."""
    server.run('CREATE SCHEMA IF NOT EXISTS "s p"')
    names = ['a "b', "x'); DROP TABLE t; --", "%s %(x)s", "SELECT", "{}", "\\"]
    columns = {name: pa.array(["x"]) for name in names}
    for trigger in (1, 1, 2):
        made = PostgresSink(server.dsn, table)  # it finds the table that is there
        made.open("", ["k", *names])
        made.emit(trigger, release(trigger, ["x"], **columns))
        made.close()
    name = postgres.quoted(*postgres.split_name(table, 63))
    with server.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {name}")
        assert [column.name for column in cursor.description or ()] == release(
            1, **{name: pa.array(["x"] * len(KEYS)) for name in names}
        ).column_names
        assert len(cursor.fetchall()) == 2
        view = postgres.quoted(*postgres.split_name(table + "_current", 63))
        assert len(connection.execute(f"SELECT * FROM {view}").fetchall()) == 1
    server.run('DROP SCHEMA "s p" CASCADE')


@pytest.mark.parametrize("table", ["", ".", "a.b.c", ".t", "t.", "x" * 55, "s" * 64 + ".t", "a\0"])
def test_names_that_are_none_are_refused(table: str) -> None:
    """Before anything runs; `_triggers` has to fit too."""
    with pytest.raises(PlanError, match=r"table = "):
        PostgresSink("", table)


def test_a_column_name_that_is_too_long_is_refused(server: Cluster, sink: PostgresSink) -> None:
    """The server would cut it, and two columns could become one."""
    with pytest.raises(SinkError, match=r"has 64 bytes.*at most 63"):
        sink.emit(1, release(1, **{"ü" * 32: pa.array(KEYS)}))
    sink.emit(1, release(1, **{"x" * 63: pa.array(KEYS)}))


def test_a_database_without_all_characters_is_refused(server: Cluster) -> None:
    """A key could stop the pipeline at any later time."""
    with server.connect() as connection:
        connection.autocommit = True
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        made = PostgresSink(server.dsn + " dbname=latin", "t")
        with pytest.raises(SinkError, match=r"LATIN1.*UTF8"):
            made.emit(1, release(1))
        connection.execute("DROP DATABASE latin")


def test_a_table_of_other_columns_is_refused(server: Cluster, sink: PostgresSink) -> None:
    """It stays as it is; the error says what differs and what to do."""
    server.run("CREATE TABLE t (trigger int, k text, other text)")
    with pytest.raises(SinkError, match=r"final, n, n_sd, other, released_at, trigger.*or drop"):
        sink.emit(1, release(1))
    server.run("DROP TABLE t; CREATE VIEW t AS SELECT 1 AS x")
    with pytest.raises(SinkError, match="not a table with this sink's columns"):
        sink.emit(1, release(1))
    server.run("DROP VIEW t")
    sink.emit(1, release(1))
    assert len(rows_of(server)) == len(KEYS)


def test_the_table_of_another_pipeline_is_refused(server: Cluster) -> None:
    """Their triggers have the same numbers, and would replace each other."""
    for pipeline, fine in (("aa", True), ("aa", True), ("bb", False)):
        made = PostgresSink(server.dsn, "t")
        made.open(pipeline, ["k"])
        if fine:
            made.emit(1, release(1))
        else:
            with pytest.raises(SinkError, match=r"another pipeline.*to another value"):
                made.emit(1, release(1, []))
        made.close()
    assert len(rows_of(server)) == len(KEYS)


def test_a_user_with_few_rights_can_write_a_table_made_for_it(server: Cluster) -> None:
    """SELECT and INSERT on the table are enough, and UPDATE on the digests, once all exist."""
    owner = PostgresSink(server.dsn, "t")
    owner.emit(1, release(1))
    owner.close()
    server.run(
        "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN PASSWORD 'x';"
        " REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO clerk"
    )
    dsn = f"host=127.0.0.1 port={server.port} user=clerk password=x dbname=postgres"
    clerk = PostgresSink(dsn, "t")
    with pytest.raises(SinkError, match=r"permission denied.*42501.*Grant the permission"):
        clerk.emit(2, release(2))
    server.run("GRANT SELECT, INSERT ON t TO clerk")
    server.run("GRANT SELECT, INSERT, UPDATE ON t_triggers TO clerk")
    clerk.emit(2, release(2))
    with pytest.raises(SinkError, match=r"permission denied for schema"):
        PostgresSink(dsn, "new").emit(2, release(2))
    clerk.close()
    assert len(rows_of(server)) == 2 * len(KEYS)
    server.run("DROP OWNED BY clerk; DROP ROLE clerk")


def test_it_can_be_sent_to_another_process_before_it_is_used(server: Cluster) -> None:
    """Nothing is connected before the first release."""
    nowhere = make_sink("t", {"connector": "postgres", "dsn": "host=127.0.0.1 port=1"}, Path())
    nowhere.open("aa", ["k"])
    made = pickle.loads(pickle.dumps(PostgresSink(server.dsn, "t")))
    made.emit(1, release(1))
    made.close()
    assert len(rows_of(server)) == len(KEYS)


def test_a_password_in_a_dsn_stays_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "it's my host=elsewhere \\ @x")
    for dsn, rest in (
        ("user=u password=${P} host=h", {}),
        ("user=u password='${P}' host=h", {}),
        ("postgresql://u:${P}@h/d", {"dbname": "d"}),
    ):
        filled = str(from_environment({"dsn": dsn})["dsn"])
        wanted = {"user": "u", "password": "it's my host=elsewhere \\ @x", "host": "h"}
        assert psycopg.conninfo.conninfo_to_dict(filled) == wanted | rest


def test_a_table_made_beforehand_belongs_to_the_first(server: Cluster) -> None:
    """And to no other, whose triggers have the same numbers; not even under a running sink."""
    first, second = opened(server, "aaa"), opened(server, "bbb")
    first.emit(1, release(1))
    server.run("COMMENT ON TABLE t IS NULL")
    first.emit(2, release(2))
    with pytest.raises(SinkError, match="another pipeline"):
        second.emit(1, release(1))
    server.run("ALTER TABLE t RENAME TO old; DROP VIEW t_current")
    second.emit(1, release(1))
    with pytest.raises(SinkError, match="another pipeline"):
        first.emit(3, release(3))
    server.run("ALTER TABLE t SET UNLOGGED")
    with pytest.raises(SinkError, match="survive a crash"):
        second.emit(2, release(2))
    server.run("ALTER TABLE t SET LOGGED; ALTER TABLE t_triggers SET UNLOGGED")
    with pytest.raises(SinkError, match=r"t_triggers.*survive a crash"):
        second.emit(2, release(2))
    for sink in (first, second):
        sink.close()


def test_a_view_of_something_else_is_left_alone(server: Cluster) -> None:
    server.run("CREATE VIEW t_current AS SELECT 1 AS x")
    sink = opened(server, "aaa")
    with pytest.raises(SinkError, match="t_current"):
        sink.emit(1, release(1))
    server.run("DROP VIEW t_current")
    sink.emit(1, release(1))
    server.run("ALTER TABLE t RENAME TO old")
    with pytest.raises(SinkError, match="t_current"):
        sink.emit(2, release(2))
    sink.close()


def test_the_dsn_may_come_from_the_environment(
    server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq's variables, or ${NAME} in the option; the table is called as the sink."""
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(server.port))
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")
    monkeypatch.setenv("WHERE", server.dsn)
    for number, options in enumerate(({}, {"dsn": "${WHERE}"}, {"table": "public.t2"})):
        made: Sink = make_sink(f"t{number}", {"connector": "postgres", **options}, Path())
        made.emit(1, release(1))
        made.close()
        assert len(rows_of(server, f"t{number}")) == len(KEYS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("password=wrong", r"password authentication failed.*kept.*Correct the dsn"),
        ("dbname=nowhere", r'"nowhere" does not exist.*kept.*Correct the dsn'),
        ("user=nobody", r"authentication failed.*Correct the dsn"),
        ("sslmode=require", r"does not support SSL"),
    ],
)
def test_what_waiting_does_not_mend_is_refused(change: str, message: str, server: Cluster) -> None:
    """With what to do, and without the password."""
    made = PostgresSink(f"{server.dsn} {change}", "t")
    with pytest.raises(SinkError, match=message) as refused:
        made.emit(1, release(1))
    assert PASSWORD not in str(refused.value)


def test_a_dsn_that_is_none_is_refused() -> None:
    """It may hold a password, so it is not shown."""
    with pytest.raises(PlanError, match="not a PostgreSQL connection string") as refused:
        PostgresSink("hunter2 is my password", "t").emit(1, release(1))
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_without_the_library_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DpsqlpError, match=r"pip install 'dpsqlp\[postgres\]'"):
        PostgresSink("", "t").emit(1, release(1))


def test_a_server_without_writes_is_refused(server: Cluster, sink: PostgresSink) -> None:
    """A standby, for one."""
    sink.emit(1, release(1))
    with pytest.MonkeyPatch.context() as patch:
        always = "; SET TRANSACTION READ ONLY"
        patch.setattr(postgres, "_SETTINGS", postgres._SETTINGS + always)
        with pytest.raises(SinkError, match=r"read-only.*25006.*Name the primary"):
            sink.emit(2, release(2))
    sink.emit(2, release(2))


@contextmanager
def full_disk(server: Cluster) -> Iterator[None]:
    """The table `t` is on a disk of a megabyte; without the right to mount one, it says so."""
    folder = server.folder / "tiny"
    folder.mkdir(exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        server.run(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE"
            " 'could not extend file' USING ERRCODE = '53100'; END$$;"
            "CREATE TRIGGER full_disk BEFORE INSERT ON t EXECUTE FUNCTION full_disk()"
        )
        yield
        server.run("DROP TRIGGER full_disk ON t")
        return
    try:
        shutil.chown(folder, "postgres", "postgres")
        with server.connect() as connection:
            connection.autocommit = True
            connection.execute(f"CREATE TABLESPACE tiny LOCATION '{folder}'")
            try:
                connection.execute("ALTER TABLE t SET TABLESPACE tiny")
                yield
            finally:
                connection.execute("ALTER TABLE t SET TABLESPACE pg_default")
                connection.execute("DROP TABLESPACE tiny")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_nothing_is_lost(server: Cluster, sink: PostgresSink) -> None:
    """The trigger before stays, and the same release goes through once there is room."""
    sink.emit(1, release(1))
    before = rows_of(server)
    many = release(2, [f"key {number} " + "x" * 99 for number in range(20_000)])
    with full_disk(server):
        for _ in range(2):
            with pytest.raises(SinkError, match=r"53100.*release is kept.*Make room.*run again"):
                sink.emit(2, many)
        assert rows_of(server) == before
    sink.emit(2, many)
    assert len(rows_of(server)) == len(before) + many.num_rows


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_line_breaks_at_commit(when: str, server: Cluster) -> None:
    """Whether the server committed is not known; given again, the trigger is there once."""
    with bad_line(server) as (line, dsn):
        made = PostgresSink(dsn, "t")
        made.emit(1, release(1))
        line.breaks = iter([when])
        with pytest.raises(UnavailableError):
            made.emit(2, release(2))
        assert line.broke == 1
        there = {"before": 0, "after": len(KEYS)}[when]
        # What was sent is being committed.
        until(lambda: server.run("SELECT count(*) FROM t WHERE trigger = 2") == [(there,)])
        made.emit(2, release(2))
        made.close()
    assert server.run("SELECT trigger, count(*) FROM t GROUP BY 1 ORDER BY 1") == [
        (1, len(KEYS)),
        (2, len(KEYS)),
    ]


def test_an_earlier_attempt_that_still_commits_is_waited_for(
    server: Cluster, sink: PostgresSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows cannot be deleted before they are there; both would stay."""
    sink.emit(1, release(1))
    monkeypatch.setattr(
        postgres,
        "_SETTINGS",
        postgres._SETTINGS.replace("lock_timeout = '10s'", "lock_timeout = '3s'"),
    )
    stuck = PostgresSink(server.dsn, "t")
    arrived, commits = threading.Event(), threading.Event()
    csv = sink_module._csv

    def slow(rows: pa.RecordBatch) -> bytes:
        if threading.current_thread() is attempt:
            arrived.set()
            commits.wait()
        return csv(rows)

    monkeypatch.setattr(sink_module, "_csv", slow)
    attempt = threading.Thread(target=stuck.emit, args=(2, release(2)))
    attempt.start()
    again = threading.Thread(target=sink.emit, args=(2, release(2)))
    try:
        assert arrived.wait(WAIT_SECONDS)
        with pytest.raises(UnavailableError, match="lock timeout"):
            sink.emit(2, release(2))
        monkeypatch.setattr(
            postgres,
            "_SETTINGS",
            postgres._SETTINGS.replace("lock_timeout = '3s'", "lock_timeout = '300s'"),
        )
        again.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: server.run(waits) == [(1,)])
    finally:
        commits.set()
        attempt.join()
    again.join()
    stuck.close()
    assert server.run("SELECT count(*) FROM t WHERE trigger = 2") == [(len(KEYS),)]


def test_a_server_that_is_away_is_unavailable(server: Cluster, sink: PostgresSink) -> None:
    """Killed, starting up, told to stop, or too busy; back again, the kept sink connects anew."""
    sink.emit(1, release(1))
    server.kill()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"does not answer.*release is kept"):
            sink.emit(2, release(2))
    server.start()
    sink.emit(2, release(2))
    server.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    with pytest.raises(UnavailableError):
        sink.emit(3, release(3))
    taken = []
    with suppress(psycopg.OperationalError):
        while True:
            taken.append(psycopg.connect(server.dsn))
    with pytest.raises(UnavailableError, match=r"too many|slots"):
        sink.emit(3, release(3))
    for connection in taken:
        connection.close()
    server.start()  # until there is room
    sink.emit(3, release(3))
    assert len(rows_of(server)) == 3 * len(KEYS)


def test_a_server_that_stands_still_is_given_up(
    server: Cluster, sink: PostgresSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine answers, it does not."""
    sink.emit(1, release(1))
    monkeypatch.setattr(sink_module, "_SECONDS", 0.5)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnavailableError):
            sink.emit(2, release(2))
    finally:
        server.signal(signal.SIGCONT)
    monkeypatch.setattr(sink_module, "_SECONDS", WAIT_SECONDS)
    sink.emit(2, release(2))
    assert len(rows_of(server)) == 2 * len(KEYS)


def test_one_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to connect is limited unless the dsn says otherwise."""
    monkeypatch.setitem(postgres._PATIENCE, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UnavailableError):
            PostgresSink(f"host=127.0.0.1 port={port}", "t").emit(1, release(1))


def test_a_signal_interrupts_waiting(server: Cluster) -> None:
    """Ctrl-C is not held up by a server that does not answer."""
    program = (
        "import sys, pyarrow as pa; from dpsqlp.sinks.postgres import PostgresSink;"
        "print('begins', flush=True);"
        "PostgresSink(sys.argv[1], 't').emit(1, pa.table({'trigger': pa.array([1])}))"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dsn = f"host=127.0.0.1 port={listening.getsockname()[1]}"
        with started(
            [sys.executable, "-c", program, dsn],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with listening.accept()[0] as asked:
                assert asked.recv(1)  # it has asked, and waits for the answer
                child.send_signal(signal.SIGINT)
                said = child.communicate(timeout=WAIT_SECONDS)[1]
    assert b"KeyboardInterrupt" in said


def test_diagnostics_have_a_table_of_their_own(server: Cluster, sink: PostgresSink) -> None:
    """Beside the released rows, each trigger once; its view has the latest numbers of a window."""
    sink.emit(1, release(1))
    second = PostgresSink(server.dsn, "public.t").diagnostics()
    second.open("", ())
    for trigger in (1, 1, 2):
        second.emit(trigger, release(trigger, ["x"]).drop(["k"]))
    second.close()
    assert [row[2] for row in rows_of(server, "t_diagnostics")] == [1, 2]
    assert [row[2] for row in rows_of(server, "t_diagnostics_current")] == [2]
    assert len(rows_of(server)) == len(KEYS)
