"""The journal of a pipeline: what makes a trigger happen exactly once.

In this order, each step durable before the next, deltas and release at once:

    cut         the offset range that has arrived when a trigger is due; several may wait
    intent      the offset range that the next trigger reads; a retry reads exactly that
    deltas      the changes of each shard table (now and then a whole snapshot)
    release     the rows for the sinks
    manifest    one small file that commits all of it at once

A crash before the manifest leaves the old state and the intent; after it, the new state and the
release, which the sinks are given again. Names carry the trigger, so a retry overwrites.

Privacy contract: nothing reaches a sink before its manifest; a trigger that is run again reads the
same records; another plan, secret or instance is refused, since equal noise on other data would
show the difference.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsqlp.core import Core, Each, ShardId, State, TriggerResult
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from dpsqlp.plan import Plan
from dpsqlp.stages.combine import Groups
from dpsqlp.stages.diagnose import Tally, new_tally
from dpsqlp.state.arrays import digest
from dpsqlp.state.offsets import Offset, OffsetRange
from dpsqlp.state.sealed import SealedStorage, missing_or_damaged, read_public
from dpsqlp.state.shards import (
    File,
    Saving,
    Shards,
    TableLog,
    parse_name,
    selected_name,
    shard_name,
)
from dpsqlp.state.storage import Storage
from dpsqlp.tables.table import Table

MANIFEST = "manifest.json"
_PUBLIC = ("fingerprint", "instance", "trigger", "rows", "columns", "inputs_left_behind")
_CUT = re.compile(r"cuts/\d+\.json")
_SWEPT = ("units/", "keys/", "selected/", "releases/")
_ODD = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True, slots=True)
class Intent:
    """The offset range that the next trigger will read; None if it runs without records."""

    trigger: int
    offsets: OffsetRange | None
    left_behind: tuple[str, ...] = ()  # inputs that the operator has given up


@dataclass(frozen=True, slots=True)
class Cut:
    """The offset range that has arrived when a trigger is due. It names the cut before it: the
    trigger, and a digest of the offset at its end.
    """

    trigger: int
    offsets: OffsetRange
    previous: int
    begin: str

    @classmethod
    def following(cls, previous: int, offset: Offset, trigger: int, offsets: OffsetRange) -> Cut:
        """The cut of a trigger that begins where the cut of `previous` has ended."""
        return cls(trigger, offsets, previous, _offset_digest(offset))

    def follows(self, previous: int, offset: Offset) -> bool:
        """Whether it begins at this offset, after the cut of `previous` or an earlier one."""
        return self.previous <= previous and self.begin == _offset_digest(offset)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The committed state of a pipeline."""

    fingerprint: str
    instance: str
    shards: int
    trigger: int | None = None
    rows: int | None = None  # of the last release
    columns: tuple[str, ...] = ()  # of the last release
    inputs_left_behind: int = 0  # by the operator, over all triggers
    offset: Offset = None  # the source continues from here
    input_digest: str = ""
    release: File | None = None
    diagnostics: dict[int, list[int]] = field(default_factory=dict)  # true totals by window
    tables: dict[str, TableLog] = field(default_factory=dict)

    def files(self) -> set[str]:
        """The names of all files of the committed state."""
        release = [] if self.release is None else [self.release]
        tables = (file for log in self.tables.values() for file in log.files)
        return {file.name for file in (*tables, *release)}


@dataclass(frozen=True, slots=True)
class Changes:
    """The files that a trigger writes for its shards; threads may still be writing them."""

    trigger: int
    tables: Iterable[tuple[str, TableLog]]  # by name, all that stay open
    digests: Iterable[str]  # of the bounded input, by place
    diagnostics: dict[int, list[int]]  # true totals by window
    closed: Iterable[TableLog] = ()  # tables that close: their files are not needed any more


class Journal:
    """The journal in a storage, for one pipeline and its secret."""

    def __init__(self, storage: SealedStorage, core: Core) -> None:
        """Open the journal."""
        self.storage = storage
        self._shards, self._plan = Shards(storage, core), core.plan
        self.manifest = read_manifest(storage)
        if self.manifest.fingerprint != core.plan.fingerprint.hex():
            raise StateError(
                "manifest.json and pipeline.json are of two pipelines. Restore the whole folder"
                " from one copy, or begin a new pipeline, which spends its own budget."
            )

    def load(self, each: Each = map) -> State:
        """The committed state."""
        state = State(self.manifest.shards, self.manifest.trigger)
        for group, kind in ((state.units, "units"), (state.keys, "keys")):
            for (item, shard), table in self._load(kind, each):
                group.setdefault(item, []).insert(shard, table)
        state.selected = self.load_selected(each)
        state.tallies = self.load_tallies()
        return state

    def load_tallies(self) -> dict[int, Tally]:
        """The committed numbers of diagnostics, by window."""
        return {
            window: new_tally(self._plan, window, totals)
            for window, totals in self.manifest.diagnostics.items()
        }

    def load_selected(self, each: Each = map) -> dict[int, Table]:
        """The part of the state that is not in shards: the selected keys, by window."""
        return {window: table for (window, _), table in self._load("selected", each)}

    def _load(self, kind: str, each: Each) -> list[tuple[ShardId, Any]]:
        """The committed tables of a kind, in order."""
        found = ((parse_name(name), name) for name in self.manifest.tables)
        places = sorted((place, name) for (other, place), name in found if other == kind)

        def load(item: tuple[ShardId, str]) -> tuple[ShardId, Any]:
            place, name = item
            assert self.manifest.trigger is not None
            log = self.manifest.tables[name]
            return place, self._shards.load(name, log, self.manifest.trigger)

        return list(each(load, places))

    def save_selected(self, selected: dict[int, Table], trigger: int) -> dict[str, TableLog]:
        """Write the keys that a trigger selected."""
        logs = {}
        for window, table in selected.items():
            name = selected_name(window)
            log = self.manifest.tables.get(name, TableLog(0))
            logs[name] = self._shards.save(name, table, None, log, trigger)
        return logs

    def keep_cut(self, cut: Cut) -> None:
        """Make a cut durable."""
        self._put(_cut_name(cut.trigger), _by_name(cut))

    def cuts(self) -> list[Cut]:
        """The cuts that were kept and not dropped, in order."""
        names = [name for name in self.storage.list() if name.startswith("cuts/")]
        for name in names:
            if _CUT.fullmatch(name) is None:  # half-written when the process ended
                self.storage.delete(name)
        names = [name for name in names if _CUT.fullmatch(name)]
        bodies = [self._get(name) for name in names]
        found = [Cut(**body) for body in bodies if body is not None]
        return sorted(found, key=lambda cut: cut.trigger)

    def drop_cut(self, trigger: int) -> None:
        """The trigger of a cut is committed."""
        self.storage.delete(_cut_name(trigger))

    def _put(self, name: str, body: dict[str, Any]) -> None:
        """Store an object of this plan."""
        body = body | {"fingerprint": self.manifest.fingerprint}
        self.storage.put(name, [json.dumps(body, sort_keys=True).encode()])

    def _get(self, name: str) -> dict[str, Any] | None:
        """An object, if it is there; refused if it is another plan's."""
        data = self.storage.get(name)
        if data is None:
            return None
        body: dict[str, Any] = json.loads(data)
        if body.pop("fingerprint") != self.manifest.fingerprint:
            raise StateError(
                f"The state file {name} belongs to another pipeline. Two pipelines have used one"
                " folder: restore each to its own."
            )
        return body

    def intend(self, intent: Intent) -> None:
        """Make an intent durable, before its trigger reads."""
        self._put("intent.json", _by_name(intent))

    def pending(self) -> Intent | None:
        """The intent of a trigger that was not committed."""
        body = self._get("intent.json")
        if body is None:
            return None
        committed = self.manifest.trigger
        if committed is not None and body["trigger"] <= committed:
            return None
        return Intent(body["trigger"], body["offsets"], tuple(body["left_behind"]))

    def save(
        self, state: State, step: TriggerResult, each: Each = map, write: Each = map
    ) -> Changes:
        """Write the changes of a trigger. They are copied, by `each`, before this returns, so the
        state may change; the threads of `write` write on.
        """
        tables: dict[str, Any] = {
            shard_name(kind, (item, shard)): table
            for kind, group in (("units", state.units), ("keys", state.keys))
            for item, shards in group.items()
            for shard, table in enumerate(shards)
        }
        tables |= {selected_name(window): table for window, table in state.selected.items()}
        changed: dict[str, Any] = {shard_name("units", p): c for p, c in step.units.items()}
        changed |= {shard_name("keys", p): part.changed for p, part in step.keys.items()}

        def copy(name: str) -> Saving:
            log = self.manifest.tables.get(name, TableLog(0))
            return self._shards.copy(name, tables[name], changed.get(name), log, step.trigger)

        copies = list(each(copy, list(tables)))
        digests = write(input_digest, [groups for _, groups in sorted(step.groups.items())])
        return Changes(
            step.trigger,
            zip(tables, write(self._shards.store, copies), strict=True),
            chain(digests, [counted_digest(step.counted)]),
            totals(state.tallies),
        )

    def commit(
        self,
        changes: Changes,
        release: bytes,
        offset: Offset,
        each: Each = map,
        *,
        rows: int = 0,
        columns: Sequence[str] = (),
        left_behind: int = 0,
    ) -> None:
        """Commit a trigger: deltas and release, then the manifest. Nothing is published before.

        The number of rows, the columns, and the number of inputs left behind are public.
        """
        before = self.manifest.files()
        before |= {file.name for log in changes.closed for file in log.files}
        name = f"releases/{changes.trigger}.arrow"
        known = self.storage.get(name)  # of an attempt that may have been published
        if known not in (None, release):
            raise StateError(
                f"Trigger {changes.trigger} has run before, and its records have changed since."
                " Nothing was released: the same noise on other records would show the difference."
                " Restore the records, or the state with its manifest.json, as they were."
            )
        file = self._shards.write(name, [release])  # beside threads
        self.manifest = replace(
            self.manifest,
            trigger=changes.trigger,
            rows=rows,
            columns=tuple(columns),
            inputs_left_behind=self.manifest.inputs_left_behind + left_behind,
            offset=offset,
            tables=dict(changes.tables),
            input_digest=digest([text.encode() for text in changes.digests]),
            release=file,
            diagnostics=changes.diagnostics,
        )
        _write_manifest(self.storage, self.manifest)
        list(each(self.storage.delete, sorted(before - self.manifest.files())))

    def release(self) -> bytes | None:
        """The release of the last committed trigger, for the sinks."""
        file = self.manifest.release
        return None if file is None else self._shards.read(file)

    def sweep(self) -> None:
        """Delete files that the manifest does not name: leftovers of a crash, closed windows.

        Refused if a file that it names is missing: an old manifest would delete a newer state.
        """
        live = self.manifest.files()
        names = [n for n in self.storage.list() if n.startswith(_SWEPT)]
        if self.manifest.trigger is None:
            if names and self.storage.get("intent.json") is None:
                raise missing_or_damaged(MANIFEST, "older than others that are there")
            return  # the first trigger begins again and overwrites
        missing = sorted(live - set(names))
        if missing:
            raise missing_or_damaged(missing[0], "missing")
        for name in names:
            if name not in live:
                self.storage.delete(name)


def _cut_name(trigger: int) -> str:
    return f"cuts/{trigger}.json"


def _offset_digest(offset: Offset) -> str:
    return digest([json.dumps(offset, sort_keys=True).encode()])


def begin_journal(storage: SealedStorage, plan: Plan, secret: Secret, shards: int) -> None:
    """Store the manifest of a pipeline that has not run. A pipeline without one has lost it."""
    fresh = Manifest(plan.fingerprint.hex(), secret.instance.hex(), shards)
    _write_manifest(storage, fresh)


def has_run(storage: Storage) -> bool:
    """Whether the manifest has a trigger. It is not verified here."""
    public = read_public(storage, MANIFEST)
    return public is not None and public.get("trigger") is not None


def read_manifest(storage: SealedStorage) -> Manifest:
    """The committed manifest."""
    found = storage.get_public(MANIFEST)
    if found is None:
        raise missing_or_damaged(MANIFEST, "missing")
    public, body = found
    release = body.pop("release")
    diagnostics = {int(window): numbers for window, numbers in body.pop("diagnostics").items()}
    tables = {
        name: TableLog(rows, tuple(File(*file) for file in files))
        for name, (rows, files) in body.pop("tables").items()
    }
    return Manifest(
        **body,
        **public | {"columns": tuple(public["columns"])},
        release=None if release is None else File(**release),
        diagnostics=diagnostics,
        tables=tables,
    )


def _write_manifest(storage: SealedStorage, manifest: Manifest) -> None:
    body = _by_name(manifest)
    body["release"] = None if manifest.release is None else asdict(manifest.release)
    body["tables"] = {
        name: (log.rows, [(file.name, file.seal, file.bytes) for file in log.files])
        for name, log in manifest.tables.items()
    }
    public = {name: body.pop(name) for name in _PUBLIC}
    storage.put_public(MANIFEST, public, body)


def _by_name(record: Intent | Cut | Manifest) -> dict[str, Any]:
    """The fields of a record. `asdict` would copy an offset, which may name thousands of files."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


def secret_check(secret: Secret) -> str:
    """A value that shows whether a secret is the state's."""
    return hmac.new(secret.derive(b"check"), b"", hashlib.sha256).hexdigest()


def totals(tallies: Mapping[int, Tally]) -> dict[int, list[int]]:
    """The true numbers of diagnostics, by window."""
    return {window: tally.totals.tolist() for window, tally in tallies.items()}


def counted_digest(counted: NDArray[np.int64]) -> str:
    """The digest of what diagnostics have counted at a trigger."""
    return digest([counted.tobytes()])


def input_digest(groups: Groups) -> str:
    """128 bits of the bounded input, whatever order it came in: a sum over its groups.

    A record of what the trigger counted, durable before its release. Identifiers are keyed, so
    nobody without the secret can aim for a collision.
    """
    columns: list[NDArray[Any]] = [groups.key[:, 0], groups.key[:, 1]]
    columns += [groups.window, groups.last_vote_step, groups.votes, *groups.values.T]
    sums = np.zeros(2, np.uint64)
    for half, odd in enumerate(_ODD):
        mixed = np.full(len(groups), odd)
        for column in columns:
            mixed = (mixed ^ column.view(np.uint64)) * odd
            mixed ^= mixed >> np.uint64(29)
        sums[half] = mixed.sum(dtype=np.uint64)
    return sums.tobytes().hex()
