"""Cuts by the clock of a table: a unit whose records take long moves nobody else's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dpsqlp.entropy.secret import Secret
from dpsqlp.sources import postgres as module
from dpsqlp.sources.base import GridTime
from dpsqlp.sources.postgres import PostgresSource
from dpsqlp.sql.query import OptionValue, SourceDef
from postgres.cluster import Cluster, in_sql
from support import slow_unit
from support.pipelines import SECRET


class Table(slow_unit.Feed):
    """A table of its own for each pipeline, by its sequence or by the server's clock."""

    def __init__(self, server: Cluster, name: str) -> None:
        self._server, self._name = server, name
        self.clause = (
            f"connector = 'postgres', dsn = {in_sql(server.dsn)}, table = '{name}', column = 'id'"
        )
        server.run(
            f"CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY, unit text, k text,"
            " x text)"
        )

    def deliver(self, rows: list[slow_unit.Row]) -> None:
        with self._server.connect() as connection:
            connection.cursor().executemany(
                f"INSERT INTO {self._name} (unit, k, x) VALUES (%s, %s, %s)",
                [tuple(row.values()) for row in rows],
            )


@pytest.fixture(autouse=True)
def the_same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.mark.parametrize("killed", [False, True])
def test_a_slow_unit_moves_nobody(server: Cluster, killed: bool, tmp_path: Path) -> None:
    """Rows up to the sequence's value at its grid time are a trigger's, whenever it runs."""
    slow_unit.check_virtual(tmp_path, lambda f: Table(server, f"e_{f.name}"), killed=killed)


def test_a_slow_unit_moves_nobody_by_the_machines_clock(server: Cluster, tmp_path: Path) -> None:
    slow_unit.check_real(tmp_path, lambda f: Table(server, f"e_{f.parent.name}_{f.name}"))


class FakeTime:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.mark.parametrize(("left", "waits"), [(1.0, 0.5), (60.0, 3.0)])
def test_an_open_transaction_is_waited_for_half_the_time_that_is_left(
    left: float, waits: float, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for 3 seconds at most, so the next cut is not late for it."""
    Table(server, "e")
    options: dict[str, OptionValue] = {
        "connector": "postgres",
        "dsn": server.dsn,
        "table": "e",
        "column": "id",
    }
    time = FakeTime()
    monkeypatch.setattr(module, "time", time)
    with (
        closing(PostgresSource(SourceDef("s", (("unit", "TEXT"),), options))) as source,
        server.connect() as connection,
    ):
        connection.execute("INSERT INTO e (unit) VALUES ('slow')")
        assert source.cut(source.initial_offset(), GridTime(1, 0, left))["until"] is None
    assert time.slept == pytest.approx(waits, abs=0.05)
