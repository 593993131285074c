"""A streaming DataFrame, run at the triggers of the grid by `foreachBatch`.

Ticks beside the records make Spark plan a batch at every trigger, whether or not records have
arrived. The clock decides when a trigger runs. A batch that Spark has planned too early is held,
and its end is delayed until the next trigger is due, so that later batches have the records that
arrived up to their own triggers.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsqlp.engines.clock import Clock, SystemClock
from dpsqlp.engines.spark.batch_source import BatchSource, FrameSink
from dpsqlp.engines.spark.check_plan import check_plan
from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.engines.spark.files import as_declared
from dpsqlp.errors import SourceError
from dpsqlp.sinks.base import Sink
from dpsqlp.sql.query import Query
from dpsqlp.sql.spark import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICK = "dpsqlp_tick"


class StopEvent(threading.Event):
    """Whether a query was stopped; only the process that started the query knows."""

    def __init__(self) -> None:
        super().__init__()
        self.query: Any = None

    def is_set(self) -> bool:
        """As an event."""
        return super().is_set() or (self.query is not None and not self.query.isActive)

    def __reduce__(self) -> Any:
        return StopEvent, ()


@dataclass
class ForeachBatch:
    """The function that Spark calls for each batch. Spark may send it to another process, where it
    opens the state at the first batch.
    """

    query: Query
    sink: Sink
    state: str
    secret: Path
    checkpoint: str  # its token
    shards: int
    clock: Clock = field(default_factory=SystemClock)
    stopped: StopEvent = field(default_factory=lambda: StopEvent())
    _engine: SparkEngine | None = None
    _turn: Any = field(default_factory=threading.Lock)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Run the triggers that are due: missed ones empty, the last one on this batch."""
        with self._turn:
            try:
                self._run(batch, number)
            except BaseException:
                self._close()
                raise

    def _run(self, batch: DataFrame, number: int) -> None:
        if isinstance(self.sink, FrameSink):
            self.sink.spark = batch.sparkSession
        if self._engine is None:
            self._engine = self._open(batch.sparkSession)
        engine = self._engine
        source = engine.source
        assert isinstance(source, BatchSource)
        source.offer(number, batch.where(f"{_TICK} IS NULL").drop(_TICK))
        early = False
        while not source.is_committed(engine.journal.manifest.offset):
            engine.check_unfinished()
            due = engine.schedule.due(engine.next_trigger)
            early = self.clock.now() < due
            self.clock.wait(due, self.stopped)
            if self.stopped.is_set():
                raise SourceError("The query was stopped before its trigger was due.")
            if not engine.ready:
                engine.cut(engine.schedule.current(self.clock.now()))
            engine.step()
        if early and not engine.finished:  # Spark plans the next batch as soon as this returns
            self.clock.wait(engine.schedule.due(engine.next_trigger), self.stopped)

    def close(self) -> None:
        """Close the engine, once no batch is running."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _open(self, spark: SparkSession) -> SparkEngine:
        return SparkEngine(
            spark,
            self.query,
            self.state,
            self.secret,
            BatchSource(self.query.source, self.checkpoint),
            self.sink,
            clock=self.clock,
            shards=self.shards,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_engine": None, "_turn": None, "stopped": StopEvent()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_turn": threading.Lock()}


def with_ticks(frame: DataFrame, query: Query) -> DataFrame:
    """The records with their declared types, and ticks beside them."""
    check_plan(frame)
    records = as_declared(frame, query.source).selectExpr("*", f"CAST(NULL AS BIGINT) AS {_TICK}")
    rate = max(1, ceil(2_000_000 / query.emit.interval_us))
    nulls = [f"CAST(NULL AS {spark_type(kind)})" for _, kind in query.source.columns]
    ticks = (
        frame.sparkSession.readStream.format("rate")
        .option("rowsPerSecond", rate)
        .load()
        .selectExpr(*nulls, "value")
    )
    return records.unionAll(ticks)
