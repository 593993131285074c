"""The Spark engine's driver: a trigger is one Spark job of two stages, or of four if it is the last
trigger of a window that ends with a closing.

    rows (Spark SQL) ──▶ by unit: bound ──▶ by key: advance ──▶ driver: commit, publish
                                                     │             ▲
                                                     ▼             │
                                               by unit: lay ──▶ by key: close

The journal is the local engine's, on storage that the driver and the executors share, so a pipeline
can move between the two engines. Triggers follow the clock's grid: this engine decides when a
trigger runs and which records it reads, without Spark's watermarks or batch sizes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.core import State, TriggerRelease, collect, sum_counted
from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.secret_file import load_secret
from dpsqlp.engines.spark.session import configure_session, new_session, redact_errors
from dpsqlp.engines.spark.tasks import (
    PAYLOADS,
    AdvanceTask,
    BoundTask,
    CloseTask,
    LayTask,
    Task,
    read_log,
    read_payloads,
    shards_went_wrong,
)
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Array128
from dpsqlp.entropy.secret import Secret
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import OffsetT, RangeT, Source
from dpsqlp.sql.query import Query
from dpsqlp.sql.spark import known_columns, spark_rows
from dpsqlp.sql.spark.cells import name_sql
from dpsqlp.stages.route import HASHED_KINDS, SEED
from dpsqlp.state.journal import Changes, Intent, counted_digest, secret_check, totals
from dpsqlp.state.remote import storage_at
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.shards import TableLog, open_tables, parse_name, shard_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkSource(Source[OffsetT, RangeT], Protocol[OffsetT, RangeT]):
    """A source that Spark can read."""

    def frame(self, offsets: RangeT | None, spark: SparkSession) -> DataFrame:
        """The range's records, with the columns and types that the source declares."""


AnySparkSource = SparkSource[Any, Any]


class SparkEngine(Engine):
    """Shards as Spark tasks."""

    source: AnySparkSource

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        state: Path | str,
        secret: Path,
        source: AnySparkSource,
        sink: Sink,
        *,
        clock: Clock | None = None,
        shards: int,
    ) -> None:
        """Open the state, or begin one with this number of shards.

        The state is a folder or the URI of an object store, which executors see too.
        """
        self._user_session = spark
        self._state = state if isinstance(state, str) else str(state.resolve())
        self._secret = secret.resolve()
        self._row_sql = spark_rows(query)
        storage = SealedStorage(storage_at(self._state))
        key = load_secret(self._secret, storage_is_new=not storage.list())
        super().__init__(query, storage, key, source, sink, clock=clock, shards=shards)
        instance = bytes.fromhex(self.journal.manifest.instance)
        self._secret_check = secret_check(Secret(key, instance))

    def _open(self, stack: ExitStack) -> None:
        self._adopt(new_session(self._user_session))
        self._load()

    def _load(self) -> None:
        """Load the driver's part of the state: the selected keys. Executors have the shards."""
        manifest = self.journal.manifest
        self.shards = manifest.shards
        self.state = State(
            manifest.shards,
            manifest.trigger,
            selected=self.journal.load_selected(),
            tallies=self.journal.load_tallies(),
        )

    @redact_errors("take over the public tables")
    def _adopt(self, spark: SparkSession) -> None:
        self._spark = spark
        for table in self.query.public_tables:
            rows = spark.createDataFrame(known_columns(table.rows))
            rows.createOrReplaceTempView(name_sql(table.name))

    @redact_errors("plan the trigger")
    def _read(self, intent: Intent) -> DataFrame:
        """The plan of the row query over a range. Spark runs it in `_compute`."""
        frame = self.source.frame(intent.offsets, self._spark)
        if frame.sparkSession is not self._spark:  # a stream has a session of its own
            configure_session(frame.sparkSession)
            self._adopt(frame.sparkSession)
        frame.createOrReplaceTempView(name_sql(self.query.source.name))
        rows = self._spark.sql(self._row_sql)
        if intent.offsets is not None and self.schedule.on_event_time:
            low, high = self.schedule.span(intent.trigger)
            rows = rows.where(f"timestamp_us >= {low} AND timestamp_us < {high}")
        return rows

    @redact_errors("plan the trigger")
    def _admit(self, rows: DataFrame) -> DataFrame:
        """The plan that sends each row to the shard of its unit, where `BoundTask` admits it."""
        # A record without a unit for each shard: Spark leaves out a plan that it sees to be empty.
        ids = self._spark.range(0, self.shards, 1, 1)
        wakes = ids.selectExpr("CAST(id AS INT) AS shard")
        return (
            rows.selectExpr("*", f"{self._unit_shard()} AS shard")
            .unionByName(wakes, allowMissingColumns=True)
            .repartitionById(self.shards, "shard")
            .drop("shard")
        )

    @redact_errors("run the trigger")
    def _compute(self, intent: Intent, records: DataFrame) -> tuple[Changes, TriggerRelease]:
        """Run the plan: executors admit, bound and combine by unit, then advance by key. If a
        window has its closing, then they lay by unit and close by key.
        """
        manifest = self.journal.manifest
        task = (
            self._state,
            str(self._secret),
            manifest.instance,
            self._secret_check,
            intent.trigger,
            manifest.trigger,
        )
        stages: list[Task] = [AdvanceTask(*task)]
        if self.plan.closes(intent.trigger) is not None:
            stages += [LayTask(*task), CloseTask(*task)]
        payloads = records.mapInArrow(BoundTask(*task), PAYLOADS)
        for stage in stages:
            payloads = payloads.repartitionById(self.shards, "shard").mapInArrow(stage, PAYLOADS)
        logs, parts, counted = self._parse_payloads(intent.trigger, payloads.toArrow())
        diagnostics = self.core.diagnose(self.state, counted, intent.trigger)
        selected = [(part.window, part.selected) for part in parts]
        self.core.close_trigger(self.state, intent.trigger, selected)
        stay_open = self._open_tables(intent.trigger + 1)
        tables = {name: log for name, log in logs.items() if name in stay_open}
        closed = [log for name, log in logs.items() if name not in stay_open]
        tables |= self.journal.save_selected(self.state.selected, intent.trigger)
        digests = [*(part.digest for part in parts), counted_digest(counted)]
        numbers = totals(self.state.tallies)
        changes = Changes(intent.trigger, tables.items(), digests, numbers, closed)
        return changes, self._collect(intent, parts, diagnostics)

    def _parse_payloads(
        self, trigger: int, payloads: pa.Table
    ) -> tuple[dict[str, TableLog], list[_KeyShard], NDArray[np.int64]]:
        """The files of the shards' tables, the releases of key shards in order, and what unit
        shards have counted. Refused unless every shard ran once in each stage: it passes on what
        the stages before said of their own.
        """
        logs: dict[str, TableLog] = {}
        parts: list[_KeyShard] = []
        counted: list[NDArray[np.int64]] = []
        for header, arrays in read_payloads(payloads.to_batches()):
            name = header["table"]
            if name in logs:
                raise shards_went_wrong(trigger)
            logs[name] = read_log(header["log"])
            if "counted" in header:
                counted.append(np.array(header["counted"], np.int64))
            if "digest" in header:
                _, (window, shard) = parse_name(name)
                data, offsets, values, selected = arrays
                texts = Encoded(data, offsets)
                parts.append(_KeyShard(window, shard, header["digest"], texts, values, selected))
        if set(logs) != self._open_tables(trigger):
            raise shards_went_wrong(trigger)
        return (
            logs,
            sorted(parts, key=lambda part: (part.window, part.shard)),
            sum_counted(counted),
        )

    def _open_tables(self, trigger: int) -> set[str]:
        """The names of the shards' tables that a trigger has open."""
        return {
            shard_name(kind, shard_id)
            for shard in range(self.shards)
            for kind, shard_id in open_tables(self.plan, trigger, shard)
        }

    def _unit_shard(self) -> str:
        """The number of a row's unit shard, as `stages.route` has it."""
        columns = [
            f"CAST(unit_{place} AS BIGINT)" if kind == "integer" else f"unit_{place}"
            for place, kind in enumerate(self.query.unit_kinds)
            if kind in HASHED_KINDS
        ]
        shard_hash = f"xxhash64({', '.join(columns)})" if columns else str(SEED)
        return f"CAST(pmod({shard_hash}, {self.shards}) AS INT)"

    def _collect(
        self, intent: Intent, parts: list[_KeyShard], diagnostics: NDArray[np.int64] | None
    ) -> TriggerRelease:
        windows = [np.full(len(part.key_text), part.window, np.int64) for part in parts]
        return collect(
            self.plan,
            intent.trigger,
            np.concatenate([np.empty(0, np.int64), *windows]),
            Encoded.concatenate([part.key_text for part in parts]),
            np.concatenate([part.values for part in parts]),
            diagnostics,
        )


@dataclass(frozen=True, slots=True)
class _KeyShard:
    """What the driver is sent about one shard of a window."""

    window: int
    shard: int
    digest: str  # of the bounded input
    key_text: Encoded
    values: NDArray[np.int64]
    selected: Array128
