"""A streaming DataFrame as a source: Spark's batches, run at the triggers of the grid.

Spark decides which records a batch has and makes that durable in its checkpoint before the batch
is run; a batch that is run again has the same. Ticks beside the records see to it that there is a
batch at every trigger, whether anything arrived or not. When a trigger runs is the clock's: a batch
that Spark has taken too early is held, and its end put off until the next trigger is due, so that
the batches after it have what arrived up to their own triggers.

Privacy contract: a batch is everything that has arrived. Limits on its size and watermarks would
let data decide about time; operators that look at several records, as Python functions may too,
would let one unit change another's. All are refused. A checkpoint and a state that do not fit each
other are refused, since records would be counted twice or not at all.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsqlp.engines.clock import Clock, SystemClock
from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.engines.spark.files import as_declared, no_records
from dpsqlp.engines.spark.session import WHOLE_FILES
from dpsqlp.errors import SourceError, TriggerError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import GridTime, Source
from dpsqlp.sql.query import Query, SourceDef
from dpsqlp.sql.spark import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICK = "dpsqlp_tick"
_ROW_BY_ROW = (
    *("StreamingRelation", "StreamingRelationV2", "Project", "Filter", "SubqueryAlias", "Union"),
    "View",
    *("Read", "DataSource", "WithColumns", "WithColumnsRenamed", "Drop", "ToDF"),  # Connect's names
)
_LIMITS = re.compile(
    r"(max|min)[\w-]*per|per-?(micro-?)?batch|maxtriggerdelay|maxcachedfiles|maxfileage|latestfirst"
)
_BY_ROWS = re.compile("kafka|rate|socket|csv|json|text|xml|avro", re.I)  # without statistics
_CHANGING = (
    *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"),
    *("monotonically_increasing_id", "spark_partition_id", "reflect", "java_method"),
)
_CALLED = r"\([^()]*#\d[^()]*\)+#\d"  # Python functions, in Spark's text of a plan
_NESTED = r"-subquery#\d|\b(exists|list)#\d+ \["  # subqueries there
Write = Callable[["DataFrame", int], None]


class BatchSource(Source):
    """The batch that Spark has at hand."""

    def __init__(self, source: SourceDef, checkpoint: str) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._number = -1
        self._frame: DataFrame | None = None

    def offer(self, number: int, frame: DataFrame) -> None:
        """The next batch."""
        self._number, self._frame = number, frame

    def begin(self) -> Any:
        """Before the checkpoint's first batch."""
        return {"batch": -1, "checkpoint": self._checkpoint}

    def cut(self, position: Any, at: GridTime) -> Any:
        """The batch at hand, which must follow the last one."""
        self._check(position, self._number - 1)
        return {"batch": self._number, "checkpoint": self._checkpoint}

    def after(self, position: Any, records: Any) -> Any:
        """The position after a batch."""
        return position if records is None else records

    def frame(self, records: Any, spark: SparkSession) -> DataFrame:
        """The batch's records."""
        if records is None:
            return no_records(self._source, spark)
        self._check(records, self._number)
        assert self._frame is not None
        return self._frame

    def read(self, records: Any, database: Any) -> None:
        """Only Spark reads batches."""
        raise NotImplementedError

    def belongs(self, position: Any) -> None:
        """Refuse a state that is further than the batch at hand, or of another checkpoint."""
        self._check(position, self._number)

    def _check(self, known: Any, batch: int) -> None:
        if known != {"batch": batch, "checkpoint": self._checkpoint}:
            raise SourceError(
                f"Batch {self._number} of the checkpoint does not follow what the state has read"
                " before. One of them was replaced. Bring back both as they were,"
                " or begin a new pipeline with a new checkpoint, which spends again."
            )


class FrameSink(Sink):
    """Hands releases to a function, as DataFrames."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.spark: SparkSession | None = None

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Write a release; after a crash the last one comes again, with the same trigger."""
        assert self.spark is not None
        self._write(self.spark.createDataFrame(release), trigger)


class Stopped(threading.Event):
    """Whether a query has been told to stop; known where it was started."""

    def __init__(self) -> None:
        super().__init__()
        self.query: Any = None

    def is_set(self) -> bool:
        """As an event."""
        return super().is_set() or (self.query is not None and not self.query.isActive)

    def __reduce__(self) -> Any:
        return Stopped, ()


@dataclass
class Batches:
    """What Spark calls for each batch. It may be sent to another process, where it opens the state
    at the first batch.
    """

    query: Query
    sink: Sink
    state: str
    secret: Path
    checkpoint: str  # a number of its own
    shards: int
    clock: Clock = field(default_factory=SystemClock)
    stopped: Stopped = field(default_factory=lambda: Stopped())
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
        assert isinstance(engine.source, BatchSource)
        engine.source.offer(number, batch.where(f"{_TICK} IS NULL").drop(_TICK))
        early = False
        while not self._is_committed(engine, number):
            if engine.finished:
                raise TriggerError(
                    f"The last of the {engine.plan.triggers} triggers that were paid for has run."
                    " Begin a new pipeline with a state of its own, which spends again."
                )
            due = engine.schedule.due(engine.next_trigger)
            early = self.clock.now() < due
            self.clock.wait(due, self.stopped)
            if self.stopped.is_set():
                raise SourceError("The query was stopped before its trigger was due.")
            if not engine.ready:
                engine.cut(engine.schedule.current(self.clock.now()))
            engine.step()
        if early and not engine.finished:  # Spark takes the next batch as soon as this returns
            self.clock.wait(engine.schedule.due(engine.next_trigger), self.stopped)

    def _is_committed(self, engine: SparkEngine, number: int) -> bool:
        """Whether the last batch that ran is this one."""
        assert isinstance(engine.source, BatchSource)
        position = engine.journal.manifest.position
        if position is None or number > position["batch"]:
            return False
        engine.source.belongs(position)
        return True

    def close(self) -> None:
        """Let go of the state, once no batch is under way."""
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
        return self.__dict__ | {"_engine": None, "_turn": None, "stopped": Stopped()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_turn": threading.Lock()}


def ticking(frame: DataFrame, query: Query) -> DataFrame:
    """The records with their declared types, and ticks beside them."""
    _check_plan(frame)
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


def _check_plan(frame: DataFrame) -> None:
    """Refuse a frame whose batches would depend on counts, or whose records on one another."""
    if not frame.isStreaming:
        raise SourceError(
            "The DataFrame is not a stream. Give one that spark.readStream made; to replay finished"
            " history, run a query over files with EMIT ... ON EVENT TIME."
        )
    nodes = list(_nodes(frame))
    for name, options in nodes:
        if name not in _ROW_BY_ROW:
            raise SourceError(
                f"The DataFrame has the operation {name}, which may let one record decide about"
                " another. Give the stream as it is read, with selected columns and filters at"
                " most, and write the rest as SQL in the query."
            )
        limits = [option for option in options if _LIMITS.search(option.lower())]
        if limits:
            raise SourceError(
                f"The stream is read with {limits[0]}, so that the number of records would decide"
                " about time. Leave the option out: a trigger takes all that has arrived."
            )
        said = {option.lower(): str(value).lower() for option, value in options.items()}
        if said.get("failondataloss") == "false":
            raise SourceError(
                "The stream is read with failOnDataLoss = false: records that are deleted before"
                " they are read would be passed over, and which ones depends on how many there"
                " were. Leave the option out."
            )
        if said.get("mode") == "failfast":
            raise SourceError(
                "The stream is read with mode = FAILFAST: one record would stop it for good. Leave"
                " the option out, and such a record has nulls."
            )
    conf = frame.sparkSession.conf
    pushed = [name for name in WHOLE_FILES if conf.get(name) != WHOLE_FILES[name]]
    formats = [options["format"] for _, options in nodes if "format" in options]
    skipping = any(_BY_ROWS.search(kind) is None for kind in formats)
    if pushed and skipping and any(name == "Filter" for name, _ in nodes):
        raise SourceError(
            "The DataFrame filters files, and Spark would skip rows by a file's statistics, which"
            " come from other records. Write the filter as WHERE in the query, or set"
            f" {' and '.join(pushed)} to false."
        )


def _nodes(frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The operations of a frame's plan, and the options and the format of those that read."""
    connect = not hasattr(frame, "_jdf")
    plans = [frame._plan if connect else frame._jdf.queryExecution().analyzed()]
    if connect:  # expressions are known to the server alone
        text = frame._explain_string(extended=True)
        changing = any(re.search(rf"\b{name}\(", text) for name in _CHANGING)
        python = "python_udf" in str(plans[0].to_proto(frame.sparkSession.client))
        python = python or bool(re.search(_CALLED, text))
        nested = bool(re.search(_NESTED, text))
    else:
        changing = not plans[0].deterministic()
        pattern = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        python = plans[0].containsPattern(pattern.PYTHON_UDF())
        nested = plans[0].containsPattern(pattern.PLAN_EXPRESSION())
    if changing:
        yield "that is not deterministic", {}
    if python:
        yield "of a Python function", {}
    if nested:
        yield "of a subquery", {}
    while plans:
        plan = plans.pop()
        if connect:
            options = dict(getattr(plan, "_options", None) or {})
            if hasattr(plan, "_format"):
                options["format"] = plan._format or "parquet"
            yield type(plan).__name__, options
            plans += [part for part in vars(plan).values() if hasattr(type(part), "to_proto")]
            continue
        name = plan.nodeName()
        options = {}
        if name == "StreamingRelation":
            java = frame.sparkSession._jvm.scala.jdk.javaapi.CollectionConverters
            options = dict(java.asJava(plan.dataSource().options()))
            options["format"] = plan.dataSource().className()
        elif name == "StreamingRelationV2":
            options = dict(plan.extraOptions().asCaseSensitiveMap())
        yield name, options
        children = plan.children()
        plans += [children.apply(place) for place in range(children.size())]
