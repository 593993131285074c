"""Tasks on Spark's executors: one shard of one stage, over Arrow.

A task knows where the state and the secret are, never the secret itself. It reads the committed
manifest and brings its shard's tables to that trigger: from the tables that this worker still
holds, plus the deltas it missed, or else from the files. It computes, and writes its deltas. Its
output is payloads, arrays packed into one value, so that Spark moves a few rows instead of one row
for each key.

At a window's last trigger the tables of that window are needed twice, maybe on another worker. So
they are written although they close, and payloads carry the names of their files.

The same records give the same bytes, whatever the order of rows within a partition. So a task that
is retried, or runs twice, does no harm.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.core import Core
from dpsqlp.engines.instance import read_instance
from dpsqlp.engines.micro_batch import admit_batches
from dpsqlp.engines.secret_file import load_secret
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SecretError, StateError
from dpsqlp.stages.advance import ShardRelease
from dpsqlp.stages.closing import Weights
from dpsqlp.stages.combine import Groups, merge
from dpsqlp.stages.route import key_shards
from dpsqlp.state.arrays import pack, unpack
from dpsqlp.state.journal import input_digest, read_manifest, secret_check
from dpsqlp.state.remote import storage_at
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.shards import (
    File,
    Held,
    Shard,
    Shards,
    TableLog,
    parse_name,
    selected_name,
    shard_name,
)
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable

PAYLOADS = "shard INT, payload BINARY"
_FORGET_AFTER = 8  # triggers that another worker has run a shard
_PAYLOAD_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Task(ABC):
    """One stage of a trigger, for the shard of the partition that it is given."""

    state: str
    secret: str
    instance: str
    secret_check: str
    trigger: int
    committed: int | None  # the trigger before; None at the first

    @abstractmethod
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shard of this partition."""

    def worker(self) -> Worker:
        """This process's tables of the pipeline, as of the trigger before."""
        name = (self.state, self.instance, self.secret_check)
        if name not in _WORKERS:
            _WORKERS[name] = Worker(self)
        worker = _WORKERS[name]
        worker.turn_to(self)
        return worker


class BoundTask(Task):
    """Rows of a unit shard in, groups by key shard out."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shard of this partition."""
        shard, worker = _partition(), self.worker()
        plan = worker.core.plan
        _, records = admit_batches(worker.core, batches, self.trigger)
        if (records.shard_hash % worker.shards != shard).any():
            raise StateError(
                f"Spark gave shard {shard} records of another. Nothing was released. dpsqlp does"
                " not support this version of Spark; please report it."
            )
        selected = worker.selected()
        by_id = np.lexsort(records.unit.T)  # an order that does not come from Spark
        for period in plan.open_periods(self.trigger):
            name = shard_name("units", (period, shard))
            table = worker.take(name)
            assert isinstance(table, UnitTable)
            members = by_id[records.period[by_id] == period]
            bounded, groups = worker.core.by_unit(table, records, members, selected)
            header = worker.save(name, table, bounded) | {"counted": bounded.counted.tolist()}
            yield _payload(shard, header)
            targets = key_shards(groups.key, worker.shards)
            for target in range(worker.shards):
                for part in _parts(np.flatnonzero(targets == target)):
                    yield _payload(target, {"groups": len(part)}, _groups_arrays(groups, part))


class AdvanceTask(Task):
    """Groups of a key shard in, releases out; and to all unit shards, which keys are out of the
    window that has its closing.
    """

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shard of this partition."""
        shard, worker = _partition(), self.worker()
        plan, parts = worker.core.plan, []
        for header, arrays in read_payloads(batches):
            if "groups" in header:
                parts.append(arrays)
            else:  # a message of the stage before
                yield _payload(shard, header)
        groups = _groups(parts, plan.width)
        for window in plan.windows.open(self.trigger):
            name = shard_name("keys", (window, shard))
            table = worker.take(name)
            assert isinstance(table, KeyTable)
            mine = merge([groups], window, shard, worker.shards)
            released = worker.core.by_key(table, mine, window, self.trigger)
            header = worker.save(name, table, released.changed) | {"digest": input_digest(mine)}
            yield _payload(shard, header, _release_arrays(released))
            if window == plan.closes(self.trigger):
                out = table.released_ids()
                for part in _parts(np.arange(len(out))):
                    for target in range(worker.shards):
                        yield _payload(target, {"out": len(part)}, [out[part]])


class LayTask(Task):
    """Which keys are out, for a unit shard; what its units lay on others out, by key shard."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shard of this partition."""
        shard, worker = _partition(), self.worker()
        # The period of a window that has its closing is the window.
        name = shard_name("units", (worker.closing_window(), shard))
        out, found = Table(), []
        for header, arrays in read_payloads(batches):
            if "out" in header:
                out.insert(*arrays)
                continue
            if header["table"] == name:
                found.append(header)
            yield _payload(shard, header, arrays)
        table = worker.take_saved(name, found)
        assert isinstance(table, UnitTable)
        weights = worker.core.lay(table, out)
        targets = key_shards(weights.key, worker.shards)
        for target in range(worker.shards):
            for part in _parts(np.flatnonzero(targets == target)):
                arrays = [weights.key[part], weights.units[part], weights.weight[part]]
                yield _payload(target, {"weights": len(part)}, arrays)


class CloseTask(Task):
    """The last release of a key shard and the weights on its keys in, the whole release out."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the shard of this partition."""
        shard, worker = _partition(), self.worker()
        window = worker.closing_window()
        name = shard_name("keys", (window, shard))
        parts, found, released = [], [], []
        for header, arrays in read_payloads(batches):
            if "weights" in header:
                parts.append(arrays)
            elif header["table"] == name:
                found.append(header)
                released = arrays
            else:
                yield _payload(shard, header, arrays)
        table = worker.take_saved(name, found)
        assert isinstance(table, KeyTable)
        release = worker.core.close(window, table, _release(released), [_weights(parts)])
        yield _payload(shard, found[0], _release_arrays(release))


class Worker:
    """A Python worker's tables of a pipeline, kept from one trigger to the next."""

    def __init__(self, task: Task) -> None:
        self._storage = SealedStorage(storage_at(task.state, shared=True))
        key = load_secret(Path(task.secret), storage_is_new=False)
        if secret_check(Secret(key, bytes.fromhex(task.instance))) != task.secret_check:
            raise SecretError(
                f"The secret that this worker finds in {task.secret} or in its environment is not"
                " the driver's. Nothing was released. Give all machines the same secret."
            )
        created = read_instance(self._storage, key)
        if created is None or created.secret.instance.hex() != task.instance:
            raise StateError(
                f"The state {task.state} of this worker is not the driver's. Put the state where"
                " the driver and all executors see the same folder."
            )
        self.shards = created.shards
        self.core = Core(created.plan, created.secret)
        self._files = Shards(self._storage, self.core)
        self._held: dict[str, tuple[int, Held]] = {}

    def turn_to(self, task: Task) -> None:
        """Load the manifest that a trigger continues from."""
        manifest = read_manifest(self._storage)
        if manifest.trigger != task.committed:
            raise StateError(
                f"Trigger {task.trigger} continues from {task.committed}; the state is at"
                f" {manifest.trigger}. The task came too late, and its result is not used."
            )
        self._trigger = task.trigger
        self._logs = manifest.tables
        oldest = task.trigger - _FORGET_AFTER
        self._held = {name: held for name, held in self._held.items() if held[0] >= oldest}

    def take(self, name: str) -> Shard:
        """A committed table. The worker no longer holds it, in case the task fails."""
        kind, (item, shard) = parse_name(name)
        at, held = self._held.pop(name, (0, None))
        if at >= self._trigger:  # from an earlier attempt, whose noise has advanced
            held = None
        if name not in self._logs:  # it opens now
            if kind == "units":
                return UnitTable()
            return self.core.new_key_table(item, shard, self.shards)
        return self._files.load(name, self._logs[name], self._trigger - 1, held)

    def closing_window(self) -> int:
        """The window that has its closing now."""
        window = self.core.plan.closes(self._trigger)
        assert window is not None
        return window

    def take_saved(self, name: str, found: Sequence[dict[str, Any]]) -> Shard:
        """A table as a stage of this trigger has saved it, which one message tells. The worker no
        longer holds it: its window is over.
        """
        if len(found) != 1:
            raise shards_went_wrong(self._trigger)
        _, held = self._held.pop(name, (0, None))
        return self._files.load(name, read_log(found[0]["log"]), self._trigger, held)

    def selected(self) -> dict[int, Table]:
        """The keys selected before, by window. Tasks only read them, so the worker keeps them."""
        found = {}
        for window in self.core.plan.windows.open(self._trigger):
            name = selected_name(window)
            if name in self._logs:
                found[window] = table = self.take(name)
                self._held[name] = (self._trigger - 1, Held(table, self._logs[name]))
        return found

    def save(self, name: str, table: Shard, change: Any) -> dict[str, Any]:
        """Write the changes and hold the table, if a later stage or trigger needs it; returns the
        message that says where it is.
        """
        kind, (item, _) = parse_name(name)
        plan = self.core.plan
        grid = plan.windows if kind == "keys" else plan.periods
        log = self._logs.get(name, TableLog(0))
        stays_open = grid is None or item in grid.open(self._trigger + 1)
        if stays_open or item == plan.closes(self._trigger):
            log = self._files.save(name, table, change, log, self._trigger)
            self._held[name] = (self._trigger, Held(table, log))
        return {"table": name, "log": asdict(log)}


_WORKERS: dict[tuple[str, str, str], Worker] = {}


def read_log(described: dict[str, Any]) -> TableLog:
    """A table's log as a message has it."""
    return TableLog(described["rows"], tuple(File(**file) for file in described["files"]))


def shards_went_wrong(trigger: int) -> StateError:
    """The error for a shard that did not run exactly once in each stage."""
    return StateError(
        f"Spark did not run every shard of trigger {trigger} exactly once. Nothing was released."
        " Run it again. If the error returns, dpsqlp does not support this version of Spark."
    )


def read_payloads(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[dict[str, Any], list[NDArray[Any]]]]:
    """The headers and arrays of payloads."""
    for batch in batches:
        for payload in batch.column("payload"):
            header, *arrays = unpack(payload.as_buffer().to_pybytes())
            yield json.loads(header.tobytes()), arrays


def _payload(
    shard: int, header: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()
) -> pa.RecordBatch:
    head = np.frombuffer(json.dumps(header).encode(), np.uint8)
    payload = b"".join(pack([head, *arrays]))
    return pa.RecordBatch.from_arrays(
        [pa.array([shard], pa.int32()), pa.array([payload], pa.binary())], ["shard", "payload"]
    )


def _parts(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows in parts, each for one payload."""
    for begin in range(0, len(rows), _PAYLOAD_ROWS):
        yield rows[begin : begin + _PAYLOAD_ROWS]


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _groups_arrays(groups: Groups, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    texts = groups.key_text.take(groups.text[rows])
    return [
        groups.key[rows],
        groups.window[rows],
        groups.last_vote_step[rows],
        groups.votes[rows],
        groups.values[rows],
        texts.data,
        texts.offsets,
    ]


def _groups(parts: list[list[NDArray[Any]]], totals: int) -> Groups:
    """The groups of all parts, in an order that does not come from Spark."""
    none = [np.empty((0, 2), np.uint64), *[np.empty(0, np.int64)] * 3]
    none += [np.empty((0, totals), np.int64), np.empty(0, np.uint8), np.zeros(1, np.int64)]
    columns = list(zip(none, *parts, strict=True))
    key, window, last_vote_step, votes, values = (np.concatenate(column) for column in columns[:5])
    texts = [Encoded(data, offsets) for data, offsets in zip(*columns[5:], strict=True)]
    order = np.lexsort((last_vote_step, window, *key.T))
    return Groups(
        key[order],
        Encoded.concatenate(texts),
        order,
        window[order],
        last_vote_step[order],
        votes[order],
        values[order],
    )


def _release_arrays(release: ShardRelease) -> list[NDArray[Any]]:
    texts = release.key_text
    return [texts.data, texts.offsets, release.values, release.selected]


def _release(arrays: list[NDArray[Any]]) -> ShardRelease:
    data, offsets, values, selected = arrays
    return ShardRelease(Encoded(data, offsets), values, np.empty(0, np.int64), selected)


def _weights(parts: list[list[NDArray[Any]]]) -> Weights:
    """The weights of all parts, in an order that does not come from Spark."""
    none = [np.empty((0, 2), np.uint64), *[np.empty(0, np.int64)] * 2]
    key, units, weight = map(np.concatenate, zip(none, *parts, strict=True))
    order = np.lexsort((weight, units, *key.T))
    return Weights(key[order], units[order], weight[order])
