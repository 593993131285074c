"""Whole pipelines: processes and servers that are killed, and the output of an undisturbed run."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from crash.crashes import Worker, begun, copied, outputs
from dpsqlp.engines.engine import Progress
from dpsqlp.engines.local import LocalEngine
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SinkError, UnavailableError
from dpsqlp.sources.postgres import PostgresSource
from postgres.cluster import Cluster, bad_line, in_sql
from support.fake_clock import START, FakeClock
from support.pipelines import MINUTE, SECRET, Record, made, run_all, run_engines, script, step

QUARTER = 15 * MINUTE
TABLE = (
    "CREATE TABLE {} (id bigint GENERATED ALWAYS AS IDENTITY, unit text, k text, x float8,"
    " ts timestamptz)"
)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as process:
        yield process


def into(pipeline: Path, table: str, dsn: str) -> Path:
    """A copy of a pipeline that releases to a table."""
    folder = copied(pipeline, table)
    sql = (folder / "query.sql").read_text()
    sink = f"connector = 'postgres', dsn = {in_sql(dsn)}, table = '{table}'"
    (folder / "query.sql").write_text(sql.replace("connector = 'parquet', path = 'out'", sink))
    return folder


def rows_of(server: Cluster, table: str) -> list[tuple[Any, ...]]:
    return sorted(server.run(f"SELECT * FROM {table}"), key=repr)


def test_a_process_killed_at_random_moments(
    worker: Worker, server: Cluster, tmp_path: Path
) -> None:
    """Run, kill, run on, kill again: the table has the rows of a run that nobody killed."""
    pipeline = begun(tmp_path, 2)
    assert worker.run(into(pipeline, "warm", server.dsn)) == 0
    began = time.monotonic()
    assert worker.run(into(pipeline, "whole", server.dsn)) == 0
    seconds = time.monotonic() - began
    expected, current = rows_of(server, "whole"), rows_of(server, "whole_current")
    assert len(expected) > len(current) > 10
    dice, killed, number = random.Random(3), 0, 0
    while killed < 6:
        number += 1
        folder = into(pipeline, f"killed{number}", server.dsn)
        for begun_before in range(6):
            if worker.kill_after(dice.uniform(0.1, 0.8) * seconds, folder) == 0:
                if begun_before == 0:  # the run that was timed was a slow one
                    seconds *= 0.8
                break
            killed += 1
        assert worker.run(folder) == 0
        assert rows_of(server, folder.name) == expected
        assert rows_of(server, folder.name + "_current") == current


def test_a_line_that_breaks_at_every_other_commit(
    worker: Worker, server: Cluster, tmp_path: Path
) -> None:
    """The process waits and goes on; what it does not know to be there it replaces."""
    pipeline = begun(tmp_path, 1)
    assert worker.run(into(pipeline, "whole", server.dsn)) == 0
    with bad_line(server) as (line, dsn):
        line.breaks = cycle(("before", None, "after", None))
        assert worker.run(into(pipeline, "broken", dsn)) == 0
        assert line.broke >= 4
    assert rows_of(server, "broken") == rows_of(server, "whole")


def test_a_server_killed_at_random_moments(worker: Worker, server: Cluster, tmp_path: Path) -> None:
    """While a pipeline runs; it waits, and nothing is missing or there twice."""
    pipeline = begun(tmp_path, 4)
    assert worker.run(into(pipeline, "whole", server.dsn)) == 0
    expected = rows_of(server, "whole")
    dice, longest, kills = random.Random(5), 0.5, 0
    while not kills:  # a run may be over before
        folder, ended = into(pipeline, "killed", server.dsn), threading.Event()
        server.run("DROP TABLE IF EXISTS killed CASCADE")

        def kill(ended: threading.Event, longest: float) -> None:
            nonlocal kills
            while not ended.wait(dice.uniform(0.1, 1) * longest) and kills < 4:
                server.kill()
                kills += 1
                server.start()

        thread = threading.Thread(target=kill, args=(ended, longest))
        thread.start()
        try:
            assert worker.run(folder) == 0
        finally:
            ended.set()
            thread.join()
        assert rows_of(server, "killed") == expected
        longest /= 2


def fill(server: Cluster, table: str, part: int) -> None:
    """A micro-batch."""
    dice = random.Random(part)
    records: list[Record] = [
        (f"u{dice.randrange(60)}", dice.choice("aabc"), dice.uniform(-3, 9), START + part * QUARTER)
        for _ in range(80)
    ]
    with server.connect() as connection:
        connection.cursor().executemany(
            f"INSERT INTO {table} (unit, k, x, ts)"
            " VALUES (%s, %s, %s, to_timestamp(%s::float8 / 1000000))",
            records,
        )


def from_table(server: Cluster, table: str, sink: str = "connector = 'python'") -> str:
    source = f"connector = 'postgres', dsn = {in_sql(server.dsn)}, table = '{table}'"
    return script(source=f"{source}, column = 'id'", sink=sink)


@pytest.fixture
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def test_from_table_to_table_with_the_server_killed(
    server: Cluster, tmp_path: Path, same_secret: None
) -> None:
    """Before a take, between a take and its read, and before a release goes out."""
    tables = {}
    for name in ("whole", "killed"):
        server.run(TABLE.format(f"e_{name}"))
        server.run(f"INSERT INTO e_{name} (unit, k) VALUES (NULL, NULL), ('u', NULL)")
        sink = f"connector = 'postgres', dsn = {in_sql(server.dsn)}, table = '{name}'"
        happenings = [
            (START + part * QUARTER + MINUTE, lambda n=name, p=part: fill(server, f"e_{n}", p))
            for part in range(4)
        ]
        engine = made(
            tmp_path,
            from_table(server, f"e_{name}", sink),
            state=name,
            clock=FakeClock(START, happenings),
        )
        if name == "killed":
            _kill_at(engine, server)
        # Each kill breaks the connections of the cuts, of the reading and of the sink.
        assert (_run(engine, server, 4) >= 3) == (name == "killed")
        tables[name] = rows_of(server, name)
    assert tables["killed"] == tables["whole"]
    assert len({row[2] for row in tables["whole"]}) == 4


def _kill_at(engine: LocalEngine, server: Cluster) -> None:
    """Kill the server once in each of three places, at the first three triggers."""
    first = engine.next_trigger

    def dies(place: Any, name: str, trigger: int) -> None:
        original: Callable[..., Any] = getattr(place, name)
        waiting = [trigger]

        def wrapped(*given: Any) -> Any:
            if waiting and engine.next_trigger >= waiting[0]:
                waiting.clear()
                server.kill()
            return original(*given)

        setattr(place, name, wrapped)

    dies(engine.source, "cut", first)
    dies(engine.source, "read", first + 1)
    dies(engine.sink, "emit", first + 3)  # the next trigger's number is one on by then


def _run(engine: LocalEngine, server: Cluster, triggers: int) -> int:
    """Run triggers, starting the server whenever it is missed; how often it was."""
    stop, ran, away = threading.Event(), [], []

    def report(name: str, progress: Progress | UnavailableError) -> None:
        if isinstance(progress, UnavailableError):
            away.append(progress)
            server.start()
            return
        ran.append(progress.trigger)
        if len(ran) == triggers:
            stop.set()

    try:
        run_engines({"t": engine}, stop, report)
    finally:
        engine.close()
    return len(away)


def test_rows_equal_those_of_a_fed_pipeline(
    server: Cluster, tmp_path: Path, same_secret: None
) -> None:
    """The source hands out what was inserted, trigger by trigger."""
    server.run(TABLE.format("e"))
    parts = [(START + part * QUARTER + MINUTE, part) for part in range(3)]
    from_server = run_all(
        made(
            tmp_path,
            from_table(server, "e"),
            clock=FakeClock(START, [(at, partial(fill, server, "e", p)) for at, p in parts]),
        ),
        3,
    )
    fed = made(tmp_path, script(source="connector = 'python'"), state="fed", clock=FakeClock(START))

    def feed(part: int) -> None:
        rows = server.run("SELECT unit, k, x, ts AT TIME ZONE 'UTC' FROM e ORDER BY id")
        columns = list(zip(*rows[part * 80 : part * 80 + 80], strict=True))
        fed.source.push(dict(zip(("unit", "k", "x", "ts"), map(list, columns), strict=True)))  # type: ignore[attr-defined]

    fed.clock.happenings = [(at, lambda p=p: feed(p)) for at, p in parts]  # type: ignore[attr-defined]
    assert run_all(fed, 3) == from_server
    assert any(from_server.values())


def test_a_range_is_read_again_as_it_was(worker: Worker, server: Cluster, tmp_path: Path) -> None:
    """A process killed after its cut reads the same rows, though more have come."""
    server.run(TABLE.format("e"))
    fill(server, "e", 0)
    pipeline = tmp_path / "begun"
    pipeline.mkdir()
    sql = from_table(server, "e", "connector = 'parquet', path = 'out'")
    (pipeline / "query.sql").write_text(sql)
    made(pipeline, sql, clock=FakeClock(START)).close()
    at = {"now": START + QUARTER}
    few = copied(pipeline, "few")
    assert worker.run(few, **at) == 0
    steps = (few / "steps.txt").read_text().splitlines()
    first = next(n for n, step in enumerate(steps, 1) if "cuts/" in step)
    killed = {}
    for kill_at in (first, *range(first + 3, len(steps) + 1, 3)):
        killed[kill_at] = copied(pipeline, f"killed{kill_at}")
        assert worker.run(killed[kill_at], kill_at=kill_at, **at) == -signal.SIGKILL
    fill(server, "e", 0)
    many = copied(pipeline, "many")
    assert worker.run(many, **at) == 0
    assert outputs(many) != outputs(few)
    for kill_at, folder in killed.items():
        state = folder / "state/t"
        taken = any(state.glob("cuts/*.json")) or (state / "intent.json").exists()
        assert taken == (kill_at > first)
        assert worker.run(folder, **at) == 0
        assert outputs(folder) == outputs(few if taken else many), steps[kill_at - 1]


def test_a_release_that_is_refused_is_kept(
    server: Cluster, tmp_path: Path, same_secret: None
) -> None:
    """The state stays as it is, also over restarts; then the same rows come."""
    server.run(TABLE.format("e"))
    fill(server, "e", 0)
    server.run("CREATE TABLE t (x int)")
    sink = f"connector = 'postgres', dsn = {in_sql(server.dsn)}"
    sql = from_table(server, "e", sink)
    clock = FakeClock(START + QUARTER)
    engine = made(tmp_path, sql, clock=FakeClock(START))
    engine.clock = clock
    with pytest.raises(SinkError, match="not a table with this sink's columns"):
        step(engine)
    manifest = (tmp_path / "state/t/manifest.json").read_bytes()
    engine.close()
    with pytest.raises(SinkError):
        made(tmp_path, sql, clock=clock)
    assert (tmp_path / "state/t/manifest.json").read_bytes() == manifest
    server.run("DROP TABLE t")
    made(tmp_path, sql, clock=clock).close()
    there = server.run("SELECT k, n, total FROM t ORDER BY k")
    assert there
    other = made(tmp_path, from_table(server, "e"), state="other", clock=FakeClock(START))
    assert isinstance(other.source, PostgresSource)
    (rows,) = run_all(other, 1).values()
    assert sorted((row["k"], row["n"], row["total"]) for row in rows) == there
