"""The local engine: one process, shards in threads, no server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import duckdb
import pyarrow as pa

from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine, micro_batch
from dpsqlp.errors import SourceError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import Source, check_size
from dpsqlp.sql import connect
from dpsqlp.sql.query import Query
from dpsqlp.stages.batch import Records
from dpsqlp.state.journal import Changes, Intent
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.trigger import Releases

DATABASE_MEMORY = "2GB"
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
        tables = {table.name: table.rows for table in self.query.public_tables}
        config = {"threads": self._parallel, "memory_limit": DATABASE_MEMORY}
        # A database of its own: a cursor has neither the public tables nor the time zone.
        self._reading = stack.enter_context(connect(tables, config, self.source.folders()))
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
        return records

    def _compute(
        self, trigger: int, records: Any, position: Any
    ) -> tuple[Changes, Callable[[], Releases]]:
        step = self.core.step(self.state, records, self._each)
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
        query = self.query.row_sql
        if intent.records is not None and self.schedule.on_event_time:
            low, high = intent.records["span"]
            query = f"FROM ({query}) WHERE timestamp_us >= {low} AND timestamp_us < {high}"
        try:
            self.source.read(intent.records, self._reading)
            batch = micro_batch(bounded_table(self._reading.sql(query)))
        except (duckdb.BinderException, duckdb.IOException) as error:
            # These name columns and files. Other texts of the database may hold a record.
            raise SourceError(f"The records cannot be read: {error}") from None
        except duckdb.Error as error:
            named = self.source.named(intent.records)
            raise SourceError(
                f"The records{named and f' of {named}'} cannot be read ({type(error).__name__})."
                " Check that the source's columns and types are those of the data, and that no file"
                " is damaged. The trigger has not run."
            ) from None
        return len(batch.window), self.core.admit(batch, intent.trigger)


def bounded_table(result: duckdb.DuckDBPyRelation) -> pa.Table:
    """All rows of a result, unless they would not fit the memory."""
    batches, size = [], 0
    reader = result.to_arrow_reader(1 << 20)
    for batch in reader:
        batches.append(batch)
        size = check_size(size + batch.nbytes)
    return pa.Table.from_batches(batches, reader.schema)
