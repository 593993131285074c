"""The power fails: the whole engine on a disk that forgets what was not synced, or is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.crashes import ALL
from dpsqlp.engines.local import LocalEngine
from dpsqlp.errors import StateError
from dpsqlp.sinks.files import FileSink
from dpsqlp.sources.files import FileSource
from dpsqlp.sql import compile_script
from dpsqlp.sql.query import Query
from dpsqlp.state import shards
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage
from state.disks import Crash, FakeDisk
from support.fake_clock import START, FakeClock
from support.pipelines import HOUR, SECRET, Record, replay, script, write

pytestmark = pytest.mark.slow

STATE, OUT = Path("/state"), Path("/out")


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots come often enough to be seen."""
    monkeypatch.setattr(shards, "_SNAPSHOT_FILES", 2)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    records: list[Record] = [
        (f"u{number % 50}", "abc"[number % 3], 1.0, START + number * HOUR // 300)
        for number in range(300)
    ]
    write(tmp_path / "in" / "1.parquet", records)
    sql = script(window="TUMBLE(ts, INTERVAL 30 MINUTES)", emit=replay(START, START + HOUR))
    return compile_script(sql).sinks[0].query


def run(query: Query, folder: Path, disk: FakeDisk, triggers: int = 100) -> None:
    """Open whatever the disk holds and run to the end; no thread outlives it."""
    sink = FileSink(OUT, "parquet")
    sink._storage = LocalStorage(OUT, disk)
    source = FileSource(query.source, query.event_column, folder)
    storage = SealedStorage(LocalStorage(STATE, disk))
    clock = FakeClock(START)
    engine = LocalEngine(query, storage, SECRET.key, source, sink, clock=clock, threads=1)
    try:
        while not engine.finished and triggers > 0:
            engine.step()
            triggers -= 1
    finally:
        engine.close()


def begun(query: Query, folder: Path) -> tuple[FakeDisk, FakeDisk]:
    """A disk with a created pipeline, and the same after an undisturbed run."""
    first = FakeDisk()
    run(query, folder, first, triggers=0)
    first.crash()
    whole = copied(first)
    run(query, folder, whole)
    return first, whole


def copied(disk: FakeDisk) -> FakeDisk:
    other = FakeDisk()
    other.contents, other.durable = dict(disk.contents), dict(disk.durable)
    other.synced = set(disk.synced)
    return other


def outputs(disk: FakeDisk) -> dict[Path, bytes]:
    """What is in the sink's folder when the power fails after the end."""
    disk.crash()
    return {path: data for path, data in disk.contents.items() if path.match(f"{OUT}/trigger-*")}


def test_power_that_fails_at_any_step_changes_nothing(query: Query, tmp_path: Path) -> None:
    """Whatever was not synced is lost; the run goes on to the same files."""
    first, whole = begun(query, tmp_path)
    expected = outputs(whole)
    assert len(expected) == 4
    for crash_at in range(1, whole.steps + 1, 1 if ALL else 19):
        disk = copied(first)
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            run(query, tmp_path, disk)
        disk.crash()
        run(query, tmp_path, disk)
        assert outputs(disk) == expected, f"step {crash_at}"


def test_power_that_fails_while_a_pipeline_is_created(query: Query, tmp_path: Path) -> None:
    """It is created again, or goes on: nothing has been released yet."""
    created = FakeDisk()
    run(query, tmp_path, created, triggers=0)
    assert created.steps == 8 + 4  # two files, and whose the sink's folder is
    for crash_at in range(1, created.steps + 1):
        disk = FakeDisk()
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            run(query, tmp_path, disk)
        disk.crash()
        run(query, tmp_path, disk)
        assert len(outputs(disk)) == 4, f"step {crash_at}"


def test_a_disk_that_fills_up_changes_nothing(query: Query, tmp_path: Path) -> None:
    """Wherever the room ends; the error says what to do."""
    first, whole = begun(query, tmp_path)
    expected = outputs(whole)
    for room in range(0, whole.written, 997 if ALL else whole.written // 8):
        disk = copied(first)
        disk.room = room
        with pytest.raises(StateError, match=r"No space left.*Make room .* then run again"):
            run(query, tmp_path, disk)
        disk.room = None
        run(query, tmp_path, disk)
        assert outputs(disk) == expected, f"{room} bytes"
