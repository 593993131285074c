"""The journal of a pipeline: what makes a trigger happen exactly once.

In this order, each step durable before the next, deltas and release at once:

    intent      which records the next trigger reads; a retry reads exactly those
    deltas      what the trigger changed in each shard table (now and then a whole snapshot)
    release     what the sinks will get
    manifest    one small file that makes all of it true at once

A crash before the manifest leaves the old state and the intent; after it, the new state and the
release, which the sinks are given again. Names carry the trigger, so a retry overwrites.

Privacy contract: nothing reaches a sink before its manifest; a trigger that is run again reads the
same records; another plan, secret or instance is refused, since equal noise on other data would
show the difference.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.conceal import Concealer
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from dpsqlp.stages.bound import contents
from dpsqlp.stages.combine import Groups
from dpsqlp.state.arrays import digest, pack, unpack
from dpsqlp.state.sealed import seal, unseal
from dpsqlp.state.storage import Storage
from dpsqlp.state.tables import Arrays, key_delta, restore_keys, restore_units, unit_delta
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.units import UnitTable
from dpsqlp.trigger import Each, Pipeline, Place, State, Step

FORMAT = 2
_SNAPSHOT_BYTES = 1 << 28  # deltas are gathered up to this, or to the size of the snapshot
_SNAPSHOT_FILES = 64
_ODD = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True, slots=True)
class File:
    """A file that a manifest vouches for."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TableLog:
    """A shard table at rest: perhaps a snapshot, then deltas."""

    rows: int
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class Intent:
    """What the next trigger will read."""

    trigger: int
    records: Any  # the source's own description of an exact range, as JSON


@dataclass(frozen=True, slots=True)
class Manifest:
    """The committed state of a pipeline."""

    fingerprint: str
    instance: str
    secret_check: str
    shards: int
    trigger: int | None = None
    position: Any = None  # where the source goes on
    input_digest: str = ""
    release: File | None = None
    tables: dict[str, TableLog] = field(default_factory=dict)

    def files(self) -> set[str]:
        """The names of all files it vouches for."""
        release = [] if self.release is None else [self.release]
        tables = (file for log in self.tables.values() for file in log.files)
        return {file.name for file in (*tables, *release)}


class Journal:
    """The journal in a storage, for one pipeline and its secret."""

    def __init__(self, storage: Storage, pipeline: Pipeline, secret: Secret, shards: int) -> None:
        """Open the journal, or begin one."""
        self.storage = storage
        self._pipeline = pipeline
        self._concealer = Concealer(secret)
        fresh = Manifest(
            fingerprint=pipeline.plan.fingerprint.hex(),
            instance=secret.instance.hex(),
            secret_check=hmac.new(secret.derive(b"check"), b"", hashlib.sha256).hexdigest(),
            shards=shards,
        )
        self.manifest = read_manifest(storage) or fresh
        _check_identity(self.manifest, fresh)

    def load(self, each: Each = map) -> State:
        """The committed state."""
        manifest, plan = self.manifest, self._pipeline.plan
        state = State(manifest.shards, manifest.trigger)

        def load(item: tuple[str, TableLog]) -> tuple[str, Place, Any]:
            kind, place = _parse(item[0])
            files = [(file.name, unpack(self._read(file))) for file in item[1].files]
            if kind == "units":
                snapshot = files.pop(0)[1] if files and files[0][0].endswith("snapshot") else None
                return kind, place, restore_units(snapshot, [arrays for _, arrays in files])
            assert manifest.trigger is not None
            index = manifest.trigger - plan.windows.first(place[0])
            table = self._pipeline.empty_key_table()
            restore_keys(table, [arrays for _, arrays in files], index, self._concealer)
            return kind, place, table

        in_order = sorted(manifest.tables.items(), key=lambda item: _parse(item[0]))
        for kind, (item, shard), table in each(load, in_order):
            tables: dict[int, list[Any]] = state.units if kind == "units" else state.keys
            tables.setdefault(item, []).insert(shard, table)
        return state

    def intend(self, intent: Intent) -> None:
        """Say what the next trigger will read, before it reads."""
        body = {
            "trigger": intent.trigger,
            "records": intent.records,
            "fingerprint": self.manifest.fingerprint,
            "instance": self.manifest.instance,
        }
        self.storage.put("intent.json", [seal(body)])

    def pending(self) -> Intent | None:
        """The intent of a trigger that was not committed."""
        body = unseal(self.storage.get("intent.json"), "intent.json")
        if body is None:
            return None
        expected = (self.manifest.fingerprint, self.manifest.instance)
        if (body["fingerprint"], body["instance"]) != expected:
            raise StateError(
                "The intent in this state belongs to another pipeline. Two pipelines have used one"
                " folder: restore each to its own."
            )
        committed = self.manifest.trigger
        if committed is not None and body["trigger"] <= committed:
            return None
        return Intent(body["trigger"], body["records"])

    def commit(
        self,
        state: State,
        step: Step,
        release: Callable[[], bytes],
        position: Any,
        each: Each = map,
    ) -> bytes:
        """Make a trigger true: deltas and release, then the manifest. Nothing is sent before.

        The release, which is returned, is made and written while threads write the deltas.
        """
        trigger = step.trigger
        open_tables: dict[str, Any] = {
            f"{kind}/{item}/{shard}": table
            for kind, tables in (("units", state.units), ("keys", state.keys))
            for item, shards in tables.items()
            for shard, table in enumerate(shards)
        }
        changes: dict[str, Any] = {
            f"units/{i}/{s}": change for (i, s), change in step.units.items()
        }
        changes |= {f"keys/{i}/{s}": part.changed for (i, s), part in step.keys.items()}
        digests = each(input_digest, [groups for _, groups in sorted(step.groups.items())])

        def write(name: str) -> tuple[str, TableLog]:
            log = self.manifest.tables.get(name, TableLog(0))
            if _is_due(log):
                arrays, suffix = self._snapshot(open_tables[name]), "snapshot"
            else:
                arrays, suffix = self._delta(open_tables[name], changes[name], log), "delta"
            if all(array.size == 0 for array in arrays):
                return name, log
            file = self._write(f"{name}/{trigger}.{suffix}", pack(arrays))
            kept = log.files if suffix == "delta" else ()
            return name, TableLog(len(open_tables[name]), (*kept, file))

        writing = each(write, list(open_tables))
        released = release()
        release_file = self._write(f"releases/{trigger}.arrow", [released])
        logs = dict(writing)
        before = self.manifest.files()
        self.manifest = replace(
            self.manifest,
            trigger=trigger,
            position=position,
            input_digest=digest([text.encode() for text in digests]),
            release=release_file,
            tables=logs,
        )
        self.storage.put("manifest.json", [seal(asdict(self.manifest) | {"format": FORMAT})])
        list(each(self.storage.delete, sorted(before - self.manifest.files())))
        return released

    def release(self) -> bytes | None:
        """The release of the last committed trigger, for the sinks."""
        file = self.manifest.release
        return None if file is None else self._read(file)

    def _snapshot(self, table: UnitTable | KeyTable) -> Arrays:
        if isinstance(table, UnitTable):
            return contents(table)
        return key_delta(table, np.empty(0, np.int64), 0, self._concealer)

    def _delta(self, table: UnitTable | KeyTable, change: Any, log: TableLog) -> Arrays:
        if isinstance(table, UnitTable):
            return unit_delta(change)
        return key_delta(table, change, log.rows, self._concealer)

    def _write(self, name: str, parts: Iterable[bytes | memoryview]) -> File:
        parts = list(parts)
        self.storage.put(name, parts)
        return File(name, digest(parts), sum(len(part) for part in parts))

    def _read(self, file: File) -> bytes:
        data = self.storage.get(file.name)
        if data is None or len(data) != file.bytes or digest([data]) != file.sha256:
            raise StateError(
                f"The state file {file.name} is {'missing' if data is None else 'damaged'}. Nothing"
                " was released or changed. Restore the whole folder from a copy made since the"
                " last trigger, or begin a new pipeline, which spends again."
            )
        return data

    def sweep(self) -> None:
        """Delete what the manifest does not name: leftovers of a crash, closed windows. Only once
        everything that it names was found in order: an old manifest would delete a newer state.
        """
        live = self.manifest.files()
        names = [n for n in self.storage.list() if n.startswith(("units/", "keys/", "releases/"))]
        if self.manifest.trigger is None:
            if names and self.storage.get("intent.json") is None:
                raise StateError(
                    "The state file manifest.json is missing, and others are there. Nothing was"
                    " released or changed. Restore the whole folder from a copy made since the"
                    " last trigger, or begin a new pipeline, which spends again."
                )
            return  # the first trigger begins again and overwrites
        for name in names:
            if name not in live:
                self.storage.delete(name)


def read_manifest(storage: Storage) -> Manifest | None:
    """The committed manifest, if there is one."""
    body = unseal(storage.get("manifest.json"), "manifest.json")
    if body is None:
        return None
    if body.pop("format") != FORMAT:
        raise StateError(
            f"The state has another format than {FORMAT}. Use the version of dpsqlp that wrote it."
        )
    release = body.pop("release")
    tables = {
        name: TableLog(log["rows"], tuple(File(**file) for file in log["files"]))
        for name, log in body.pop("tables").items()
    }
    return Manifest(**body, release=None if release is None else File(**release), tables=tables)


def input_digest(groups: Groups) -> str:
    """128 bits of the bounded input, whatever order it came in: a sum over its groups.

    It tells a retry on other records from one on the same. Identifiers are keyed, so nobody
    without the secret can aim for a collision.
    """
    columns: list[NDArray[Any]] = [groups.key[:, 0], groups.key[:, 1]]
    columns += [groups.window, groups.prev, groups.votes, *groups.values.T]
    sums = np.zeros(2, np.uint64)
    for half, odd in enumerate(_ODD):
        mixed = np.full(len(groups), odd)
        for column in columns:
            mixed = (mixed ^ column.view(np.uint64)) * odd
            mixed ^= mixed >> np.uint64(29)
        sums[half] = mixed.sum(dtype=np.uint64)
    return sums.tobytes().hex()


def _is_due(log: TableLog) -> bool:
    """Whether a snapshot should take the place of the deltas."""
    if not log.files:
        return False
    base = log.files[0].bytes if log.files[0].name.endswith("snapshot") else 0
    deltas = sum(file.bytes for file in log.files) - base
    return deltas > max(_SNAPSHOT_BYTES, base) or len(log.files) > _SNAPSHOT_FILES


def _parse(name: str) -> tuple[str, Place]:
    kind, item, shard = name.split("/")
    return kind, (int(item), int(shard))


def _check_identity(found: Manifest, expected: Manifest) -> None:
    if (found.instance, found.secret_check) != (expected.instance, expected.secret_check):
        raise StateError(
            "The secret is not the one this state was made with. Bring back the original secret; a"
            " lost one cannot be replaced inside open windows: begin a new pipeline, which spends"
            " again."
        )
    if found.fingerprint != expected.fingerprint:
        raise StateError(
            "The query or its parameters are not those this state was made with. Run the original"
            " query, or begin a new pipeline with a state of its own, which spends again."
        )
