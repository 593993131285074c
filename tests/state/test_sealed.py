"""A sealed state: what a thief finds in it, and what a writer without the secret can do."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsqlp.engines.local import LocalEngine
from dpsqlp.entropy.seal import SEAL_BYTES, Sealer
from dpsqlp.errors import StateError, UnavailableError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.python_frames import PythonSource
from dpsqlp.sql import compile_script
from dpsqlp.state import shards
from dpsqlp.state.sealed import SealedStorage, read_public
from dpsqlp.state.storage import LocalStorage
from state.disks import Crash, FakeDisk
from state.sealed_storages import unlocked
from support.fake_clock import START, FakeClock
from support.pipelines import MINUTE, SECRET, Record, made, script, step, table

ROOT = Path("/state")
RARE, UNIT, OFTEN, VALUE = "quagmire-4711", "zebedee-0815", "thoroughfare", 5.40625
SQL = script(source="connector = 'python'")


def closing_after(triggers: int) -> str:
    """A pipeline that ends with a closing."""
    emit = f"EMIT EVERY INTERVAL 15 MINUTES FOR {triggers} TRIGGERS"
    return script(source="connector = 'python'", window=None, emit=emit)


def arrivals() -> list[Record]:
    """A key that many have, and one that nobody else has."""
    rows: list[Record] = [(f"{UNIT}-{n}", OFTEN, VALUE, START + n) for n in range(40)]
    return [*rows, (UNIT, RARE, VALUE, START + 1)]


class Remembering(FakeDisk):
    """A disk that keeps whatever was ever written, under whatever name."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: list[bytes] = []

    def write(self, path: Path, parts: Any) -> None:
        data = b"".join(bytes(part) for part in parts)
        self.ever += [str(path).encode(), data]
        super().write(path, [data])


class Away(Sink):
    """A server that does not answer."""

    def emit(self, trigger: int, release: pa.Table) -> None:
        assert OFTEN in str(release.to_pylist())  # there is something to hide
        raise UnavailableError("away")


def engine_on(disk: FakeDisk, sql: str = SQL) -> tuple[LocalEngine, PythonSource]:
    query = compile_script(sql).sinks[0].query
    storage = SealedStorage(LocalStorage(ROOT, disk))
    source = PythonSource(query.source, storage)
    clock = FakeClock(START)
    return LocalEngine(query, storage, SECRET.key, source, Away(), clock=clock, threads=1), source


def run_once(disk: FakeDisk, sql: str = SQL) -> None:
    """Open what is there, feed, and run a trigger whose release nobody takes."""
    engine, source = engine_on(disk, sql)
    try:
        source.push(table(arrivals()))
        engine.clock.time = START + 16 * MINUTE  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError):
            step(engine)
    finally:
        engine.close()


def forms(text: str) -> Iterator[bytes]:
    """How a text may lie in a file."""
    for data in (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be")):
        yield from (data, data[::-1], data.hex().encode(), data.hex().upper().encode())
        for shift in range(3):  # whatever comes before it
            yield base64.b64encode(bytes(shift) + data)[4:-4]


def needles() -> list[bytes]:
    """Unit, keys, and a value as its bytes, either way round."""
    texts = [form for text in (RARE, UNIT, OFTEN) for form in forms(text)]
    return [*texts, struct.pack("<d", VALUE), struct.pack(">d", VALUE), str(VALUE).encode()]


def found(files: list[bytes]) -> set[bytes]:
    return {needle for needle in needles() for data in files if needle in data}


def without_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files as they would be without encryption."""
    monkeypatch.setattr(
        Sealer, "_encrypted", lambda self, seal, _, parts: iter([seal, *parts, bytes(16)])
    )
    monkeypatch.setattr(
        Sealer,
        "open",
        lambda self, name, data, public=b"": (data[:SEAL_BYTES], data[SEAL_BYTES:-16]),
    )


@pytest.mark.parametrize("sealing", [True, False])
@pytest.mark.parametrize(
    "sql", [SQL, closing_after(2), closing_after(1)], ids=["windows", "two triggers", "closes"]
)
def test_nothing_unreleased_is_ever_written(
    sealing: bool, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a trigger writes, half-written and deleted files included: spool, intent, tables,
    a release that no server took. Without seals the same search finds it."""
    if not sealing:
        without_seals(monkeypatch)
    disk = Remembering()
    run_once(disk, sql)
    names = {str(path.relative_to(ROOT)).split("/")[0] for path in disk.contents}
    assert names >= {"units", "releases", "manifest.json", "intent.json"}
    assert ("keys" in names) == (sql != closing_after(1))  # a window that has ended has none
    assert any(b"/spool/" in data for data in disk.ever)
    if sealing:
        assert not found(disk.ever)
    else:
        clear = found(disk.ever)
        assert {RARE.encode(), UNIT.encode(), OFTEN.encode(), struct.pack("<d", VALUE)} <= clear


@pytest.mark.slow
@pytest.mark.parametrize("sealing", [True, False])
def test_a_thief_finds_no_string_after_a_crash(
    sealing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails before every step, and the folder is stolen."""
    if not sealing:
        without_seals(monkeypatch)
    whole = FakeDisk()
    run_once(whole)
    seen = 0
    for crash_at in range(1, whole.steps + 1):
        disk = FakeDisk()
        disk.crash_at = crash_at
        with pytest.raises(Crash):
            run_once(disk)
        seen += bool(found([*disk.contents.values(), *disk.durable.values()]))
    assert seen == 0 if sealing else seen > whole.steps // 2


@pytest.mark.parametrize("sql", [SQL, closing_after(3)], ids=["windows", "closes"])
def test_a_thief_of_the_folder_finds_no_string(sql: str, tmp_path: Path) -> None:
    """On the real disk, whatever else may write there: before, between and after triggers."""
    searched = set[str]()

    def search() -> None:
        files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        assert not found([path.read_bytes() for path in files])
        assert not found([str(path).encode() for path in files])
        searched.update(path.name for path in files)

    class Searching(Sink):
        def emit(self, trigger: int, release: pa.Table) -> None:
            search()

    engine = made(tmp_path, sql, clock=FakeClock(START), output=Searching())
    assert isinstance(engine.source, PythonSource)
    read = engine.source.read

    def reading(records: Any, database: Any) -> None:
        search()
        read(records, database)

    engine.source.read = reading  # type: ignore[method-assign, assignment]
    for trigger in range(1, 4):
        engine.source.push(table(arrivals()))
        engine.clock.time = START + trigger * 15 * MINUTE  # type: ignore[attr-defined]
        step(engine)
        search()
    engine.close()
    assert {"pipeline.json", "manifest.json", "intent.json"} < searched
    assert {"arrow", "delta"} < {name.rpartition(".")[2] for name in searched}


def test_the_public_parts_are_public_numbers_alone() -> None:
    """The plan, the instance and the clock; trigger, fingerprint, rows and columns."""
    disk = FakeDisk()
    run_once(disk)
    plain = LocalStorage(ROOT, disk)
    pipeline, manifest = (read_public(plain, f"{n}.json") for n in ("pipeline", "manifest"))
    assert pipeline is not None
    assert manifest is not None
    public = {"plan", "instance", "secret_check", "created", "shards", "public"}
    assert set(pipeline) == public
    assert set(manifest) == {
        *("fingerprint", "instance", "trigger", "rows", "columns", "inputs_left_behind")
    }
    assert manifest["rows"] == 1
    assert "n" in manifest["columns"]


def test_a_retry_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the manifest: the trigger that runs again leaves the same files."""
    monkeypatch.setattr(shards, "_SNAPSHOT_FILES", 2)
    first = FakeDisk()
    engine_on(first)[0].close()
    first.crash()
    disks = list[FakeDisk]()
    for crash in (False, True):
        disk = FakeDisk()
        disk.contents, disk.durable = dict(first.contents), dict(first.durable)
        disk.synced = set(first.synced)
        if crash:
            whole = disks[0].steps
            disk.crash_at = whole - 4  # before the manifest is renamed
            with pytest.raises(Crash):
                run_once(disk)
            disk.crash()
            engine, _ = engine_on(disk)
            with pytest.raises(UnavailableError):
                step(engine)
            engine.close()
        else:
            run_once(disk)
        disks.append(disk)
    assert disks[0].contents == disks[1].contents


def test_a_name_may_be_written_again_with_other_contents() -> None:
    """As a spool is: nothing of the first is in the second, and both can be read."""
    storage = unlocked(LocalStorage(ROOT, disk := FakeDisk()), SECRET)
    files = []
    for text in (b"one" * 40, b"two" * 40):
        storage.put("spool/7", [text])
        assert storage.get("spool/7") == text
        files.append(disk.contents[ROOT / "spool/7"])
    difference = bytes(a ^ b for a, b in zip(*files, strict=True))[SEAL_BYTES:-16]
    assert difference != bytes(a ^ b for a, b in zip(b"one" * 40, b"two" * 40, strict=True))


def test_an_older_version_is_not_what_a_seal_vouches_for() -> None:
    """The manifest names the seal: a file that was put back is refused."""
    storage = unlocked(LocalStorage(ROOT, disk := FakeDisk()), SECRET)
    storage.put("x", [b"old"])
    old = disk.contents[ROOT / "x"]
    seal = storage.seal("x", [b"new"])
    assert storage.get("x", seal) == b"new"
    disk.contents[ROOT / "x"] = old
    assert storage.get("x") == b"old"
    with pytest.raises(StateError, match="damaged"):
        storage.get("x", seal)


def test_a_storage_that_is_not_unlocked_stores_nothing() -> None:
    """Also nothing in the clear."""
    disk = FakeDisk()
    storage = SealedStorage(LocalStorage(ROOT, disk))
    calls: list[Callable[[], Any]] = [
        lambda: storage.put("x", [b"1"]),
        lambda: storage.put_public("x", {}, {}),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="before the instance is known"):
            call()
    assert not disk.contents


def test_every_byte_of_a_public_file_counts() -> None:
    """Also those that mean the same in JSON and base64."""
    storage = unlocked(LocalStorage(ROOT, disk := FakeDisk()), SECRET)
    storage.put_public("p", {"a": 1}, {"b": 2})
    data = disk.contents[ROOT / "p"]
    assert storage.get_public("p") == ({"a": 1}, {"b": 2})
    for place in range(len(data)):
        for bit in (1, 4, 32):
            changed = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
            disk.contents[ROOT / "p"] = changed
            with pytest.raises(StateError, match=r"damaged|Use the version"):
                storage.get_public("p")
    body = json.loads(data)
    disk.contents[ROOT / "p"] = json.dumps(body, indent=1).encode()
    with pytest.raises(StateError, match="damaged"):
        storage.get_public("p")
