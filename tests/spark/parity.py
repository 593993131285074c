"""A pipeline on the local engine and the same instance on Spark, trigger by trigger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.engines.engine import Engine
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.release_query import serialise
from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.engines.spark.files import SparkFiles
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.files import FileSource
from dpsqlp.sql import compile_script
from dpsqlp.sql.query import Query
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage
from spark.queries import Case
from support.fake_clock import START, FakeClock
from support.pipelines import SECRET

ALL = os.environ.get("DPSQLP_PARITY") == "all"


@dataclass
class Kept(Sink):
    """A sink of one file per trigger, which may be written twice but never changed."""

    folder: Path

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Write a release as bytes."""
        self.folder.mkdir(exist_ok=True)
        target, data = self.folder / f"{trigger:08d}.arrow", serialise(release)
        assert not target.exists() or target.read_bytes() == data, f"{target} was published"
        temporary = target.with_suffix(".writing")
        temporary.write_bytes(data)
        temporary.rename(target)

    def diagnostics(self) -> Kept:
        """A folder beside this one."""
        return Kept(self.folder.with_name(f"{self.folder.name}-diagnostics"))

    def releases(self) -> dict[int, bytes]:
        """What was published, by trigger."""
        return {int(path.stem): path.read_bytes() for path in sorted(self.folder.glob("*.arrow"))}


def make_query(folder: Path) -> Query:
    """The query of a folder's script."""
    (sink,) = compile_script((folder / "query.sql").read_text(), folder=str(folder)).sinks
    return sink.query


def local_engine(folder: Path, name: str, shards: int = 4, now: int = START) -> LocalEngine:
    """The local engine on the state and the output of that name."""
    query = make_query(folder)
    source = FileSource(query.source, query.event_column, folder)
    return LocalEngine(
        query,
        SealedStorage(LocalStorage(folder / name)),
        SECRET.key,
        source,
        Kept(folder / f"{name}-out"),
        clock=FakeClock(now),
        threads=shards,
    )


def spark_engine(spark: Any, folder: Path, name: str, now: int = START) -> SparkEngine:
    """The Spark engine on a state that is there."""
    query = make_query(folder)
    source = SparkFiles(query.source, query.event_column, folder)
    return SparkEngine(
        spark,
        query,
        folder / name,
        folder / "secret",
        source,
        Kept(folder / f"{name}-out"),
        clock=FakeClock(now),
        shards=4,
    )


def begin(folder: Path, sql: str, **shards: int) -> None:
    """A folder with a script, a secret, and for each name a state with so many shards."""
    folder.mkdir(exist_ok=True)
    (folder / "query.sql").write_text(sql)
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET.key.hex())
    for name, number in shards.items():
        local_engine(folder, name, number).close()


def write(folder: Path, number: int, rows: pa.Table) -> None:
    """A file that appears whole."""
    (folder / "in").mkdir(exist_ok=True)
    temporary = folder / "in" / f".{number}.parquet"
    pq.write_table(rows, temporary)
    temporary.rename(folder / "in" / f"{number}.parquet")


def moments(case: Case) -> Iterator[tuple[int, list[pa.Table], int | None]]:
    """When it is, what has arrived since, and how many triggers to run; None: all there are."""
    if not case.arrive:
        yield START, case.files(), None
        return
    waiting: list[pa.Table] = []
    for number, rows in enumerate(case.files(), 1):
        waiting.append(rows)
        if number not in case.missed:
            yield START + number * case.interval, waiting, len(waiting)
            waiting = []


def step(engine: Engine, now: int, triggers: int | None) -> None:
    """Run triggers at a moment."""
    assert isinstance(engine.clock, FakeClock)
    engine.clock.time = now
    while triggers is None or triggers > 0:
        if engine.finished:
            assert triggers is None
            return
        if not engine.ready:
            engine.cut(engine.schedule.current(now))
        engine.step()
        triggers = None if triggers is None else triggers - 1


def run(case: Case, folder: Path, *engines: Callable[[int, int | None], None]) -> None:
    """Let files arrive unless they are empty, and every engine run what is due."""
    arrived = 0
    for now, files, triggers in moments(case):
        for rows in files:
            if len(rows):
                write(folder, arrived, rows)
                arrived += 1
        for engine in engines:
            engine(now, triggers)


def published(folder: Path, name: str) -> dict[int, bytes]:
    """What the engine of that name published."""
    return Kept(folder / f"{name}-out").releases()


def tables(releases: dict[int, bytes]) -> list[pa.Table]:
    """Releases as tables."""
    return [pa.ipc.open_stream(data).read_all() for data in releases.values()]


def equal(case: Case, folder: Path, shards: int, other: Any) -> None:
    """Releases do not depend on where the shards run, nor on how many there are."""
    begin(folder, case.sql, local=2, spark=shards)
    local = local_engine(folder, "local")
    run(case, folder, lambda now, triggers: step(local, now, triggers), other)
    local.close()
    expected = published(folder, "local")
    assert published(folder, "spark") == expected
    assert sum(release.num_rows for release in tables(expected)) >= 3
