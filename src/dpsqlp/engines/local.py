"""The local engine: one process, shards in threads, no server.

On event time the ranges of the next triggers are known. While a trigger is written and published,
the next one is computed in memory, and the one after it is read. Nothing of a trigger is written
before its intent is durable, and what was computed for another range is refused.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import duckdb

from dpsqlp.core import TriggerRelease, TriggerResult
from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.micro_batch import admit_batches
from dpsqlp.engines.row_query import RowQuery
from dpsqlp.errors import SourceError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import AnySource
from dpsqlp.sql.query import Query
from dpsqlp.stages.admit import Records
from dpsqlp.state.journal import Changes, Intent
from dpsqlp.state.sealed import SealedStorage

_READ_AHEAD = 2  # triggers, of which the first is computed ahead
_WRITERS = 4  # threads, which mostly wait for the disk
Reading = Future[tuple[int, Records]]  # the number of rows, and the records that may count


class LocalEngine(Engine):
    """Shards in threads; numba's kernels release the interpreter lock."""

    def __init__(
        self,
        query: Query,
        storage: SealedStorage,
        key: bytes,
        source: AnySource,
        sink: Sink,
        *,
        clock: Clock | None = None,
        threads: int = 2,
    ) -> None:
        """Open the state, or begin one with a shard for each thread."""
        self._parallel = threads
        super().__init__(query, storage, key, source, sink, clock=clock, shards=threads)

    def _open(self, stack: ExitStack) -> None:
        self._rows = stack.enter_context(RowQuery(self.query, self.source, self._parallel))
        # Entered after the database, so that it is closed when no reading is under way.
        self._threads = stack.enter_context(ThreadPoolExecutor(self._parallel))
        writers = stack.enter_context(ThreadPoolExecutor(_WRITERS))
        self._reader = stack.enter_context(ThreadPoolExecutor(1))
        self._computer = stack.enter_context(ThreadPoolExecutor(1))
        self._each = writers.map
        self.state = self.journal.load(self._threads.map)
        self.records: int = 0
        self._ahead: deque[tuple[Intent, Reading]] = deque()
        # Of the first range read ahead. From then on `state` is a trigger ahead of the disk.
        self._computing: tuple[Reading, Future[TriggerResult]] | None = None

    def _read(self, intent: Intent) -> Reading:
        """Read a range in the reading thread, unless it has been read ahead."""
        if self._ahead:
            expected, reading = self._ahead.popleft()
            if expected == intent:
                return reading
            self._ahead.clear()
        if self._computing is not None:
            reading, _ = self._computing
            if reading.exception() is None:  # else nothing was computed
                raise self._ahead_of_disk()
            self._computing = None
        return self._start_reading(intent)

    def _admit(self, rows: Reading) -> Records:
        """Wait for the reading thread, which admits the rows that it has read."""
        count, records = rows.result()
        self.records += count
        self.dropped = self._rows.dropped
        return records

    def _compute(self, intent: Intent, records: Records) -> tuple[Changes, TriggerRelease]:
        """Run the core, unless it has run ahead; threads write the changes while the release is
        collected.
        """
        if self._computing is None:
            result = self.core.compute(self.state, records, self._threads.map)
        else:
            result = self._computing[1].result()
            self._computing = None
        changes = self.journal.save(self.state, result, self._threads.map, self._each)
        if self.schedule.on_event_time:
            self._go_ahead(intent)
        return changes, result.releases

    def _start_reading(self, intent: Intent) -> Reading:
        return self._reader.submit(self._read_and_admit, intent)

    def _read_and_admit(self, intent: Intent) -> tuple[int, Records]:
        """The number of rows that the row query yields, and the records that may count."""
        on_event_time = intent.offsets is not None and self.schedule.on_event_time
        span = self.schedule.span(intent.trigger) if on_event_time else None
        try:
            return self._rows.run(
                intent.offsets, span, lambda rows: admit_batches(self.core, rows, intent.trigger)
            )
        except (duckdb.BinderException, duckdb.IOException) as error:
            # These name columns and files. Other texts of the database may hold a record.
            raise SourceError(f"The records cannot be read: {error}") from None
        except duckdb.Error as error:
            inputs = self.source.describe(intent.offsets)
            raise SourceError(
                f"The records{inputs and f' of {inputs}'} cannot be read ({type(error).__name__})."
                " Check that the source declares the columns and types of the data, and that no"
                " file is damaged: restore a damaged file as it was, or leave it behind with"
                " --leave-behind-unprotected. The trigger has not run."
            ) from None

    def _go_ahead(self, intent: Intent) -> None:
        """Read the next ranges, and compute the next trigger."""
        assert self.schedule.last is not None
        offset = self.source.next_offset(self._offset, intent.offsets)
        first = intent.trigger + 1 + len(self._ahead)
        for trigger in range(first, min(intent.trigger + _READ_AHEAD, self.schedule.last) + 1):
            offsets = self.source.replay(offset, self.schedule.span(trigger))
            following = Intent(trigger, self.source.complete(offsets))
            self._ahead.append((following, self._start_reading(following)))
        if self._ahead:
            _, reading = self._ahead[0]
            self._computing = reading, self._computer.submit(self._compute_when_read, reading)

    def _compute_when_read(self, reading: Reading) -> TriggerResult:
        _, records = reading.result()
        return self.core.compute(self.state, records, self._threads.map)
