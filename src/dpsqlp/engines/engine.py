"""What every engine does at a trigger: cut, intent, compute, commit, publish.

See `state.journal` for what is durable when. Kill it at any instruction and start it again: the
output is the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.core import Core, Each, TriggerRelease
from dpsqlp.engines.clock import Clock, SystemClock, TriggerGrid
from dpsqlp.engines.cuts import Cuts
from dpsqlp.engines.instance import open_instance
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.decode import decode
from dpsqlp.errors import StateError, UnavailableError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import GridTime, Source, sweep_spools
from dpsqlp.sql import connect, standard_deviations
from dpsqlp.sql.query import Query
from dpsqlp.state.journal import Changes, Intent, Journal
from dpsqlp.state.sealed import SealedStorage


@dataclass(frozen=True, slots=True)
class Progress:
    """What an operator may see of a trigger; it depends on released rows alone."""

    trigger: int
    last: int | None
    rows: int
    missed: bool = False  # it ran empty, and asked no server for records


class Engine(ABC):
    """One query, its state, its source and its sink."""

    _each: Each = map
    # Read so far, and dropped because the query failed on them, if known: for the operator alone,
    # never published.
    records: int | None = None
    dropped: int | None = None

    def __init__(
        self,
        query: Query,
        storage: SealedStorage,
        key: bytes,
        source: Source,
        sink: Sink,
        *,
        clock: Clock | None = None,
        shards: int,
    ) -> None:
        """Open the state, or begin one; give the sink the last release again."""
        with ExitStack() as stack:  # a state that cannot be opened is let go of
            stack.enter_context(storage.lock())
            self.query, self.source, self.sink = query, source, sink
            self.clock = clock or SystemClock()
            self._database = stack.enter_context(connect())
            created = open_instance(storage, query, key, self.clock.now(), shards)
            self.plan = created.plan
            self.schedule = TriggerGrid.of(query, created.plan.triggers, created.created)
            self.core = Core(created.plan, created.secret)
            self.journal = Journal(storage, self.core)
            stack.callback(source.close)
            stack.callback(sink.close)
            keys = [output.name for output in query.outputs if output.kind == "key"]
            sink.open(created.secret.instance.hex(), keys)
            self._open(stack)
            pending = self._pending()
            self._unpublished = self.journal.release()
            self.journal.sweep()
            self.cuts = Cuts(self.journal, source, self.schedule, self.clock, pending)
            waiting = [self.cuts.records(trigger) for trigger in self.cuts.waiting]
            sweep_spools(storage, [*waiting, pending and pending.records])
            self._deviations = standard_deviations(self.plan)
            self._key_types = arrow_types(query.key_types)
            self._unfinished = self._missed = False
            if self._unpublished is not None:
                with suppress(UnavailableError):  # then at the next step
                    self._publish()
            self._exit = stack.pop_all()

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Get what computing needs, and see that the files of the state are all there."""

    @abstractmethod
    def _read(self, intent: Intent) -> Any:
        """The records of an intent, in whatever form `_compute` takes them."""

    @abstractmethod
    def _compute(
        self, trigger: int, records: Any, position: Any
    ) -> tuple[Changes, Callable[[], TriggerRelease]]:
        """Run a trigger on its records: what it changed, and what it releases.

        `position` is the source's, after these records.
        """

    def close(self) -> None:
        """Let go of the state."""
        self._unfinished = True
        self._exit.close()

    @property
    def next_trigger(self) -> int:
        """The trigger that runs next."""
        committed = self.journal.manifest.trigger
        return self.schedule.first if committed is None else committed + 1

    @property
    def finished(self) -> bool:
        """Whether the last trigger has run, and its release is published."""
        ran = self.schedule.last is not None and self.next_trigger > self.schedule.last
        return ran and self.published

    @property
    def published(self) -> bool:
        """Whether the sink has the release of the last trigger."""
        return self._unpublished is None

    @property
    def ready(self) -> bool:
        """Whether there is a step to make now: a release to publish, or a trigger to run."""
        if self.schedule.on_event_time or not self.published:
            return True
        return self.cuts.decided >= self.next_trigger

    def cut(self, trigger: int) -> None:
        """Cut the source now for a trigger, unless that was done; any before it run empty."""
        if trigger > self.cuts.decided:
            self.cuts.take(GridTime(trigger, self.clock.now(), math.inf))

    def leave_behind(self, names: Collection[str]) -> list[str]:
        """Give up inputs of the next trigger, which cannot be read; returns those that it had. The
        decision is durable, and outside the promise.
        """
        intent = self._pending()
        if intent is None and not self.schedule.on_event_time and self.ready:
            intent = Intent(self.next_trigger, self.cuts.records(self.next_trigger))
        if intent is None or intent.records is None:
            return []
        records, left = self.source.leave_behind(intent.records, names)
        if left:
            completed = self.source.complete(records)
            self.journal.intend(Intent(intent.trigger, completed, (*intent.left_behind, *left)))
        return left

    def step(self) -> Progress:
        """Run the next trigger. If its server is away, the same step can be made again."""
        if self._unpublished is None:
            self._run_next()
        return self._publish()

    def _run_next(self) -> None:
        """Run the next trigger until it is committed."""
        if self._unfinished:
            raise StateError(
                "The trigger before did not finish. Open the pipeline again: it goes on from what"
                " is on disk, and nothing is lost."
            )
        trigger = self.next_trigger
        intent = self._pending()
        if intent is None:
            planned = self._plan(trigger)
            completed = None if planned is None else self.source.complete(planned)
            intent = Intent(trigger, completed)
            self.journal.intend(intent)
        records = self._read(intent)
        position = self.source.after(self._position, intent.records)
        self._unfinished = True  # what is in memory is ahead of the disk
        changes, releases = self._compute(trigger, records, position)
        table = self._release(releases())  # while threads write
        release = serialise(table)
        self.journal.commit(
            changes,
            release,
            position,
            self._each,
            rows=table.num_rows,
            columns=table.column_names,
            left_behind=len(intent.left_behind),
        )
        self._unpublished, self._unfinished = release, False
        self._missed = intent.records is None
        self.source.forget(intent.records)
        if not self.schedule.on_event_time:
            self.cuts.drop(trigger)

    def _pending(self) -> Intent | None:
        """The intent of the next trigger. One further on means that the state lost triggers."""
        intent = self.journal.pending()
        if intent is not None and intent.trigger != self.next_trigger:
            raise StateError(
                f"The state ends before trigger {self.next_trigger}, and trigger {intent.trigger}"
                " has begun: manifest.json is missing or older than what was published. Restore"
                " the whole folder from a copy made since the last trigger, or begin a new"
                " pipeline, which spends again."
            )
        return intent

    @property
    def _position(self) -> Any:
        manifest = self.journal.manifest
        return self.source.begin() if manifest.trigger is None else manifest.position

    def _plan(self, trigger: int) -> Any:
        """The range of a trigger; None if it has no cut."""
        if self.schedule.on_event_time:
            return self.source.replay(self._position, self.schedule.span(trigger))
        return self.cuts.records(trigger)

    def empty_release(self) -> pa.Table:
        """A release without rows."""
        none = np.empty(0, np.int64)
        values = np.empty((0, len(self.plan.calibration.processes)), np.int64)
        return self._release(TriggerRelease(0, none, none, Encoded.from_list(()), values))

    def _release(self, releases: TriggerRelease) -> pa.Table:
        """The released rows, after HAVING, ORDER BY and LIMIT."""
        table = self._released(releases)
        self._database.register("released", table)
        return self._database.sql(self.query.release_sql).to_arrow_table()

    def _released(self, releases: TriggerRelease) -> pa.Table:
        """What `release_sql` reads."""
        rows = len(releases)
        columns: dict[str, Any] = {"window_number": releases.window}
        if self.query.window is None:
            columns["window_start"] = columns["window_end"] = pa.nulls(rows, pa.timestamp("us"))
        else:
            start = releases.window * self.query.window.hop_us
            columns["window_start"] = pa.array(start, pa.timestamp("us"))
            columns["window_end"] = pa.array(start + self.query.window.size_us, pa.timestamp("us"))
        columns["trigger"] = pa.array(np.full(rows, releases.trigger))
        columns["final"] = pa.array(releases.step == self.plan.triggers)
        columns["position"] = np.arange(rows)
        keys = decode(releases.key_text, self._key_types)
        columns |= {f"key_{position}": array for position, array in enumerate(keys)}
        for position, calibrated in enumerate(self.plan.calibration.processes):
            columns[f"p{position}"] = releases.values[:, position] * calibrated.quantum
            columns[f"p{position}_sd"] = self._deviations[position][releases.step - 1]
        return pa.table(columns)

    def _publish(self) -> Progress:
        """Give the sink the release of the last trigger."""
        trigger = self.journal.manifest.trigger
        assert trigger is not None
        assert self._unpublished is not None
        release = pa.ipc.open_stream(self._unpublished).read_all()
        self.sink.emit(trigger, release)
        self._unpublished = None
        return Progress(trigger, self.schedule.last, int(release.num_rows), self._missed)


def arrow_types(types: Sequence[str]) -> list[pa.DataType]:
    """The Arrow types of DuckDB types."""
    if not types:
        return []
    columns = ", ".join(f"NULL::{name} AS c{number}" for number, name in enumerate(types))
    with duckdb.connect() as database:
        return list(database.sql(f"SELECT {columns}").to_arrow_table().schema.types)


def serialise(table: pa.Table) -> bytes:
    """A release as bytes."""
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(buffer.getvalue())
