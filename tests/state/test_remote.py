"""State on an object store: whole objects, a lease, and the journal as on a disk."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pytest

from dpsqlp.errors import StateError
from dpsqlp.state import remote
from dpsqlp.state.remote import LeaseClock, ObjectStorage, below, storage_at
from dpsqlp.state.storage import LocalStorage
from state.test_journal import run_to_end
from support.plans import make_batch, make_plan
from support.processes import until

Make = Callable[[], ObjectStorage]


class Bucket(fs.FileSystemHandler):  # type: ignore[misc]
    """Objects by name, which appear when their stream is closed. No folders."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.broken = False

    def get_type_name(self) -> str:
        return "bucket"

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        bucket = self

        class Stream(io.BytesIO):
            def write(self, data: Any) -> int:
                if bucket.broken:
                    raise OSError("the store is away")
                return super().write(data)

            def close(self) -> None:
                if not self.closed:
                    bucket.objects[path] = self.getvalue()
                super().close()

        return pa.PythonFile(Stream(), mode="w")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.PythonFile(io.BytesIO(self.objects[path]), mode="r")

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return [
            fs.FileInfo(name, fs.FileType.File)
            for name in self.objects
            if name.startswith(selector.base_dir + "/")
        ]

    def delete_file(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError

    normalize_path = get_file_info = create_dir = delete_dir = delete_dir_contents = _unused
    delete_root_dir_contents = move = copy_file = open_input_file = open_append_stream = _unused


class FakeLeaseClock(LeaseClock):
    """It goes on when told, and by itself while a lease settles."""

    def __init__(self, settling: Callable[[], None] = lambda: None) -> None:
        self.now = 1e9
        self._settling = settling

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        due = self.now + seconds
        if seconds == remote._SETTLING_SECONDS:
            self._settling()
            self.now = due
        while self.now < due and not ended.wait(0.001):
            pass
        return ended.is_set()


@pytest.fixture
def clock() -> FakeLeaseClock:
    return FakeLeaseClock()


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def storage(bucket: Bucket, clock: FakeLeaseClock) -> Make:
    """A writer's storage; all of them have the same bucket and time."""
    return lambda: ObjectStorage(fs.PyFileSystem(bucket), "b/state/", clock)


def test_objects_come_and_go(bucket: Bucket, storage: Make) -> None:
    store = storage()
    store.put("a/x", [b"1", memoryview(b"23")])
    assert (store.get("a/x"), store.get("a/y"), store.list()) == (b"123", None, ["a/x"])
    bucket.broken = True
    with pytest.raises(StateError, match="could not be reached"):
        store.put("a/z", [b"4"])
    bucket.objects.pop("b/state/a/z", None)
    store.delete("a/x")
    store.delete("a/x")
    assert store.list() == []


def test_one_writer_at_a_time(bucket: Bucket, storage: Make) -> None:
    with storage().lock(), pytest.raises(StateError, match="Another process"):  # noqa: SIM117
        with storage().lock():
            pass
    with storage().lock():
        pass
    assert bucket.objects == {}


def test_a_lease_that_ran_out_can_be_taken(
    bucket: Bucket, storage: Make, clock: FakeLeaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that died is waited for; one that only slept can write no more."""
    slept = storage()
    held = slept.lock()
    monkeypatch.setattr(slept, "_renew_until", lambda ended: ended.wait())
    held.__enter__()
    slept.put("x", [b"1"])
    clock.now += remote._LEASE_SECONDS + 0.1
    with storage().lock():
        with pytest.raises(StateError, match="Another process"):
            slept.put("x", [b"2"])
        held.__exit__(None, None, None)
        assert "b/state/lease.json" in bucket.objects  # it was not its own to delete
    assert bucket.objects == {"b/state/x": b"1"}


def test_a_lease_is_renewed(bucket: Bucket, storage: Make, clock: FakeLeaseClock) -> None:
    def renewed(until: str) -> bool:
        return until in bucket.objects["b/state/lease.json"].decode()

    with storage().lock():
        for _ in range(2):
            clock.now += 0.7 * remote._LEASE_SECONDS
            until(partial(renewed, f"{clock.now + remote._LEASE_SECONDS}"))
        with pytest.raises(StateError, match="Another process"), storage().lock():
            pass


def test_one_that_slept_too_long_writes_no_more(
    bucket: Bucket, storage: Make, clock: FakeLeaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while nobody else has the lease: somebody may take it at any moment."""
    slept = storage()
    monkeypatch.setattr(slept, "_renew_until", lambda ended: ended.wait())
    with slept.lock():
        slept.put("x", [b"1"])
        clock.now += 0.75 * remote._LEASE_SECONDS + 0.1
        with pytest.raises(StateError, match="Another process"):
            slept.put("x", [b"2"])
    assert bucket.objects == {"b/state/x": b"1"}


def test_two_that_begin_at_once_both_notice(bucket: Bucket, storage: Make) -> None:
    """The later one has overwritten the lease before the first looks again."""
    second = storage()

    def meanwhile() -> None:
        second._owner = "second"
        second._renew()

    first = ObjectStorage(fs.PyFileSystem(bucket), "b/state/", FakeLeaseClock(meanwhile))
    with pytest.raises(StateError, match="Another process"), first.lock():
        pass


def test_the_journal_goes_on_from_an_object_store(clock: FakeLeaseClock) -> None:
    """A pipeline stopped after every trigger, each time from what the store has."""
    plan = make_plan(6)
    batches = [make_batch([(u, u % 3, 0, u) for u in range(9 * trigger)]) for trigger in range(6)]
    runs = []
    for stops in (range(1, 7), [6]):
        emitted: dict[int, bytes] = {}
        store = ObjectStorage(fs.PyFileSystem(Bucket()), "b", clock)
        for stop in stops:
            run_to_end(plan, batches[:stop], 1, store, emitted.__setitem__)
        runs.append(emitted)
    assert runs[0] == runs[1]
    assert len(runs[0]) == 6


def test_locations(tmp_path: Path) -> None:
    assert isinstance(storage_at(str(tmp_path)), LocalStorage)
    assert isinstance(storage_at(f"file://{tmp_path}"), LocalStorage)
    assert below("/a/b", "c") == "/a/b/c"
    assert below("/a?b", "c") == "/a?b/c"
    assert below("s3://b/a/?region=x", "c") == "s3://b/a/c?region=x"
    with pytest.raises(StateError, match="cannot be reached"):
        storage_at("nowhere://x")
