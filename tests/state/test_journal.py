"""The journal: a pipeline that restarts at every trigger, crashes anywhere, and finds damage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.accounting.model import Closing, ReleasePolicy
from dpsqlp.core import Core
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from dpsqlp.plan import Plan
from dpsqlp.state import shards as shards_module
from dpsqlp.state.journal import Intent
from dpsqlp.state.storage import LocalStorage, Storage
from reference.streams import Stream, micro_batch, rows_of, run_core, streams
from state.disks import Crash, FakeDisk
from state.sealed_storages import opened_journal
from support.plans import COUNT, SECRET, make_batch, make_plan, readable, run

ROOT = Path("/state")


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots come often enough to be seen."""
    monkeypatch.setattr(shards_module, "_SNAPSHOT_BYTES", 300)
    monkeypatch.setattr(shards_module, "_SNAPSHOT_FILES", 4)


def run_to_end(
    plan: Plan, batches: list[Any], first: int, storage: Storage, emit: Callable[..., None]
) -> None:
    """What an engine does, from whatever state it finds."""
    pipeline = Core(plan, SECRET)
    journal = opened_journal(storage, pipeline, SECRET, 2)
    state = journal.load()
    if journal.manifest.trigger is not None:
        emit(journal.manifest.trigger, journal.release())
    begin = first if state.trigger is None else state.trigger + 1
    for trigger in range(begin, first + len(batches)):
        intent = journal.pending()
        assert intent is None or intent.trigger == trigger
        journal.intend(Intent(trigger, {"batch": trigger - first}))
        step = pipeline.compute(state, pipeline.admit(batches[trigger - first], trigger))
        released = repr(rows_of(step.releases)).encode()
        journal.commit(journal.save(state, step), released, {"after": trigger})
        emit(trigger, journal.release())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(stream=streams(), shards=st.sampled_from([1, 3]))
def test_a_restart_at_every_trigger_changes_nothing(stream: Stream, shards: int) -> None:
    """State, noise and predictions continue from the journal as if nothing had happened."""
    storage = LocalStorage(ROOT, FakeDisk())
    released = []
    for trigger, rows in enumerate(stream.batches, stream.first):
        pipeline = Core(stream.plan, SECRET)
        journal = opened_journal(storage, pipeline, SECRET, shards)
        state = journal.load()
        step = pipeline.compute(state, pipeline.admit(micro_batch(stream.plan, rows), trigger))
        journal.commit(journal.save(state, step), b"", None)
        released.append(rows_of(step.releases))
    assert released == run_core(stream, shards)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(stream=streams(), shards=st.sampled_from([1, 3]))
def test_the_state_may_go_on_before_it_is_written(stream: Stream, shards: int) -> None:
    """What is written of a trigger is the state at its end, even if the next one has run."""
    storage = LocalStorage(ROOT, FakeDisk())
    ahead, released = None, list[Any]()
    for trigger, rows in enumerate(stream.batches, stream.first):
        pipeline = Core(stream.plan, SECRET)
        journal = opened_journal(storage, pipeline, SECRET, shards)
        state = journal.load()
        step = pipeline.compute(state, pipeline.admit(micro_batch(stream.plan, rows), trigger))
        assert ahead in (None, rows_of(step.releases))
        changes = journal.save(state, step)  # `map` writes at the commit
        if len(released) + 1 < len(stream.batches):
            following = micro_batch(stream.plan, stream.batches[len(released) + 1])
            after = pipeline.compute(state, pipeline.admit(following, trigger + 1))
            ahead = rows_of(after.releases)
        journal.commit(changes, b"", None)
        released.append(rows_of(step.releases))
    assert released == run_core(stream, shards)


def restarted(plan: Plan, batches: list[Any], shards: int = 2) -> list[Any]:
    """What a pipeline releases that restarts before every trigger."""
    storage = LocalStorage(ROOT, FakeDisk())
    released = []
    for trigger, batch in enumerate(batches, 1):
        pipeline = Core(plan, SECRET)
        journal = opened_journal(storage, pipeline, SECRET, shards)
        state = journal.load()
        step = pipeline.compute(state, pipeline.admit(batch, trigger))
        journal.commit(journal.save(state, step), b"", None)
        released.append(readable(step.releases))
    return released


@pytest.mark.parametrize("files", [2, 64])
def test_a_restart_remembers_the_norm(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From deltas and from snapshots. P = 13: two records of key 7 and two of key 8 cost 8; a third
    of either would cost 5, and a record of each of five other keys costs 5 too.
    """
    monkeypatch.setattr(shards_module, "_SNAPSHOT_FILES", files)
    monkeypatch.setattr(shards_module, "_SNAPSHOT_BYTES", 1 << 30)
    plan = make_plan(9, squared_norm=13)
    times = [[7], [7], [8], [8], [1, 2, 3, 4], [7], [5], [6], []]
    batches = [make_batch([(1, key, 0, time) for time, key in enumerate(keys)]) for keys in times]
    expected = [(0, key, (2 if key > 6 else 1,)) for key in (1, 2, 3, 4, 5, 7, 8)]
    assert run(plan, batches)[-1] == expected
    assert restarted(plan, batches)[-1] == expected


@pytest.mark.parametrize("files", [2, 64])
def test_a_restart_between_any_two_triggers_changes_no_closing(
    files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Votes, squares and keys of units come from deltas or from snapshots. A unit that met a key
    before the restart and after it has one key; the noise decides about half of them.
    """
    monkeypatch.setattr(shards_module, "_SNAPSHOT_FILES", files)
    monkeypatch.setattr(shards_module, "_SNAPSHOT_BYTES", 1 << 30)
    closing = Closing(1.0, 0.002, 0.01, 2.0**-10, (1000, 700, 570, 500), 1000, 0.01)
    plan = make_plan(6, stride=3, squared_norm=40, threshold=6, sigma=1.0, closing=closing)
    dice = np.random.default_rng(7)
    batches = []
    for trigger in range(1, 13):
        rows = dice.integers(0, [30, 60, 9], (60, 3)).tolist()
        window = trigger // 3 - 1
        given = [(unit, key, window, time) for unit, key, time in rows]
        batches.append(make_batch(given, periods=[window] * 60))
    expected = run(plan, batches, shards=2)
    assert restarted(plan, batches) == expected
    for trigger in (3, 6, 9, 12):
        assert len(expected[trigger - 1]) > len(expected[trigger - 2]) + 10


def test_a_restart_knows_what_was_selected() -> None:
    """Cs = 1, two are needed: unit 2 spares key 7 its vote, and key 8 comes out."""
    plan = make_plan(3, threshold=2, caps=(9, 9, 1))
    rows = [
        [(0, 7, 0, 0), (1, 7, 0, 0)],
        [],
        [(2, 7, 0, 0), (2, 8, 0, 1), (3, 8, 0, 1)],
    ]
    released = restarted(plan, [make_batch(part) for part in rows])
    assert [len(part) for part in released] == [1, 1, 2]


def example(release: ReleasePolicy, *, closes: bool = False) -> tuple[Plan, list[Any]]:
    """A plan and its batches. Window 0 ends at trigger 4: where it has a closing, that selects
    keys.
    """
    closing = Closing(1.0, 0.01, 0.01, 2.0**-10, (900, 600, 500), 2700, 0.01)
    plan = make_plan(
        4,
        release=release,
        stride=2,
        caps=(14, 2, 9),
        threshold=99 if closes else 2,
        sigma=0.8,
        processes=[COUNT],
        closing=closing if closes else None,
    )
    batches = []
    for trigger in range(5):
        window = trigger // 2
        rows = [(unit, key, window, unit) for unit in range(6) for key in range(3)]
        batches.append(make_batch(rows, periods=[window] * len(rows) if closes else None))
    return plan, batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "closes"), [("every_trigger", False), ("threshold", False), ("every_trigger", True)]
)
def test_a_crash_between_any_two_steps_changes_nothing(
    release: ReleasePolicy, closes: bool
) -> None:
    """Crash at every write, sync, rename and delete; restart; the sinks got the same bytes."""
    plan, batches = example(release, closes=closes)
    expected: dict[int, bytes] = {}
    whole = FakeDisk()
    run_to_end(plan, batches, 1, LocalStorage(ROOT, whole), expected.__setitem__)
    assert any(value != b"[]" for value in expected.values())
    assert whole.steps > 100
    for crash_at in range(1, whole.steps + 1):
        disk, published = FakeDisk(), dict[int, bytes]()

        def emit(trigger: int, data: bytes, published: dict[int, bytes] = published) -> None:
            assert published.setdefault(trigger, data) == data

        disk.crash_at = crash_at
        for _ in itertools.count():
            try:
                run_to_end(plan, batches, 1, LocalStorage(ROOT, disk), emit)
                break
            except Crash:
                disk.crash()
        assert published == expected, f"crash at step {crash_at}"


def test_a_full_disk_loses_nothing() -> None:
    """The run stops with an error that says so, and goes on when there is room."""
    plan, batches = example("every_trigger")
    expected: dict[int, bytes] = {}
    whole = FakeDisk()
    run_to_end(plan, batches, 1, LocalStorage(ROOT, whole), expected.__setitem__)
    for room in range(0, whole.written, 397):
        disk, published = FakeDisk(), dict[int, bytes]()
        disk.room = room
        storage = LocalStorage(ROOT, disk)
        with pytest.raises(StateError, match="No space left"):
            run_to_end(plan, batches, 1, storage, published.__setitem__)
        disk.room = None
        run_to_end(plan, batches, 1, storage, published.__setitem__)
        assert published == expected


def committed(batches: int = 3) -> FakeDisk:
    plan, arrived = example("every_trigger")
    disk = FakeDisk()
    run_to_end(plan, arrived[:batches], 1, LocalStorage(ROOT, disk), lambda *_: None)
    return disk


def reopen(disk: FakeDisk, plan: Plan | None = None, secret: Secret = SECRET) -> None:
    plan = plan or example("every_trigger")[0]
    journal = opened_journal(LocalStorage(ROOT, disk), Core(plan, secret), secret, 2)
    journal.load()
    journal.pending()
    journal.release()


def test_torn_flipped_and_missing_files_are_refused() -> None:
    """Whatever file of the state is damaged, opening it says which and what to do."""
    names = [path for path in committed().contents if path.name != "lock"]
    assert len(names) >= 6
    for path in names:
        for damage in ("flip", "tear", "remove"):
            disk = committed()
            data = disk.contents[path]
            if damage == "flip":
                middle = len(data) // 2
                flipped = data[middle] ^ 1
                disk.contents[path] = data[:middle] + bytes([flipped]) + data[middle + 1 :]
            elif damage == "tear":
                disk.contents[path] = data[: len(data) // 2]
            elif path.name in ("manifest.json", "intent.json"):
                continue
            else:
                del disk.contents[path]
            with pytest.raises(StateError, match=r"damaged|missing"):
                reopen(disk)


def test_another_secret_plan_or_instance_is_refused() -> None:
    """Equal noise on other data would show the difference, so nothing is run."""
    plan, _ = example("every_trigger")
    with pytest.raises(StateError, match="not written under this name by this pipeline"):
        reopen(committed(), secret=Secret(bytes(32), SECRET.instance))
    with pytest.raises(StateError, match="not written under this name by this pipeline"):
        reopen(committed(), secret=Secret(SECRET.key, bytes(16)))
    with pytest.raises(StateError, match="two pipelines"):
        reopen(committed(), replace(plan, query="other"))


def test_a_foreign_intent_stops_the_run() -> None:
    """Another pipeline that wrote its intent here would have used this one's noise."""
    disk, other = committed(2), committed(2)
    plan = replace(example("every_trigger")[0], query="other")
    storage = LocalStorage(ROOT, FakeDisk())
    opened_journal(storage, Core(plan, SECRET), SECRET, 2).intend(Intent(9, None))
    foreign = storage.get("intent.json")
    assert foreign is not None
    disk.contents[ROOT / "intent.json"] = foreign
    with pytest.raises(StateError, match="another pipeline"):
        reopen(disk)
    reopen(other)


def test_closed_windows_leave_nothing_behind() -> None:
    """Their files are deleted with the trigger that closes them."""
    disk = committed(5)
    kept = {path.parts[3] for path in disk.contents if path.parts[2] == "keys"}
    assert kept == {"1", "2"}


def test_unreleased_key_texts_are_not_readable_at_rest() -> None:
    """No file holds a key's bytes in the clear."""
    plan = replace(make_plan(4, threshold=100), key_kinds=("text",))
    batch = make_batch([(1, 1, 0, 0)])
    import pyarrow as pa

    batch = replace(batch, key=(pa.array(["a-very-private-key"]),))
    disk = FakeDisk()
    run_to_end(plan, [batch], 1, LocalStorage(ROOT, disk), lambda *_: None)
    assert not any(b"very-private" in data for data in disk.contents.values())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second process is kept out while the first holds the state."""
    storage = LocalStorage(tmp_path)
    with (
        storage.lock(),
        pytest.raises(StateError, match="This process has the state"),
        storage.lock(),
    ):
        pass


def test_a_local_folder_is_a_storage(tmp_path: Path) -> None:
    """Put, get, list and delete on the real disk."""
    storage = LocalStorage(tmp_path / "deep" / "folder")
    storage.put("a/b/c", [b"one", memoryview(b"two")])
    storage.put("a/b/c", [b"three"])
    storage.put("d", [b""])
    assert (storage.get("a/b/c"), storage.get("d"), storage.get("e")) == (b"three", b"", None)
    assert storage.list() == ["a/b/c", "d"]
    storage.delete("d")
    storage.delete("d")
    assert storage.list() == ["a/b/c"]


def test_a_trigger_that_was_out_is_not_computed_from_other_records() -> None:
    """The manifest is that of before the first trigger, which looks like a crash before it: a retry
    on what was changed since would show the difference."""
    plan, batches = example("every_trigger")
    disk, released = FakeDisk(), []

    def run(*first: Any) -> None:
        storage = LocalStorage(ROOT, disk)
        run_to_end(plan, list(first), 1, storage, lambda _, rows: released.append(rows))

    begun = FakeDisk()
    opened_journal(LocalStorage(ROOT, begun), Core(plan, SECRET), SECRET, 2)
    run(batches[0])
    disk.contents |= begun.contents
    with pytest.raises(StateError, match="its records have changed"):
        run(make_batch([(unit, 7, 0, 0) for unit in range(40, 80)]))
    assert len(released) == 1
    run(batches[0])
    assert released[1] == released[0]
