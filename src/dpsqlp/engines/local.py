"""The local engine: one process, shards in threads, no server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import duckdb

from dpsqlp.core import TriggerRelease
from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.micro_batch import admit_batches
from dpsqlp.engines.row_query import RowQuery
from dpsqlp.errors import SourceError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import Source
from dpsqlp.sql.query import Query
from dpsqlp.stages.batch import Records
from dpsqlp.state.journal import Changes, Intent
from dpsqlp.state.sealed import SealedStorage

_READ_AHEAD = 2


class LocalEngine(Engine):
    """Shards in threads; numba's kernels let go of the interpreter."""

    def __init__(
        self,
        query: Query,
        storage: SealedStorage,
        key: bytes,
        source: Source,
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
        # After the database, so that at the end a reading ahead is waited for first.
        self._threads = stack.enter_context(ThreadPoolExecutor(self._parallel))
        self._reader = stack.enter_context(ThreadPoolExecutor(1))
        self._each = self._threads.map
        self.state = self.journal.load(self._each)
        self.records: int = 0
        self._ahead: deque[tuple[Intent, Future[tuple[int, Records]]]] = deque()

    def _read(self, intent: Intent) -> Records:
        rows, records = self._reading_of(intent).result()
        self.records += rows
        self.dropped = self._rows.dropped
        return records

    def _compute(
        self, trigger: int, records: Any, position: Any
    ) -> tuple[Changes, Callable[[], TriggerRelease]]:
        step = self.core.compute(self.state, records, self._each)
        self._read_ahead(trigger, position)  # while the disk is waited for
        return self.journal.save(self.state, step, self._each), lambda: step.releases

    def _reading_of(self, intent: Intent) -> Future[tuple[int, Records]]:
        if self._ahead:
            expected, reading = self._ahead.popleft()
            if expected == intent:
                return reading
            self._ahead.clear()
        return self._reader.submit(self._run_row_query, intent)

    def _read_ahead(self, trigger: int, position: Any) -> None:
        """On event time what the next triggers read is known: keep the reading thread busy."""
        if not self.schedule.on_event_time:
            return
        assert self.schedule.last is not None
        for number in range(
            trigger + 1 + len(self._ahead), min(trigger + _READ_AHEAD, self.schedule.last) + 1
        ):
            span = self.schedule.span(number)
            following = Intent(number, self.source.complete(self.source.replay(position, span)))
            self._ahead.append((following, self._reader.submit(self._run_row_query, following)))

    def _run_row_query(self, intent: Intent) -> tuple[int, Records]:
        """Run the row query over what a trigger reads, in the reading thread: the number of rows,
        and the records that may count.
        """
        span = None
        if intent.records is not None and self.schedule.on_event_time:
            span = intent.records["span"]
        try:
            return self._rows.run(
                intent.records, span, lambda rows: admit_batches(self.core, rows, intent.trigger)
            )
        except (duckdb.BinderException, duckdb.IOException) as error:
            # These name columns and files. Other texts of the database may hold a record.
            raise SourceError(f"The records cannot be read: {error}") from None
        except duckdb.Error as error:
            named = self.source.named(intent.records)
            raise SourceError(
                f"The records{named and f' of {named}'} cannot be read ({type(error).__name__})."
                " Check that the source's columns and types are those of the data, and that no file"
                " is damaged: bring back a damaged one as it was, or give it up with"
                " --leave-behind-unprotected. The trigger has not run."
            ) from None
