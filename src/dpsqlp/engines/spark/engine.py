"""The Spark engine's driver: a trigger is one Spark job of two stages.

    rows (Spark SQL) ──▶ by unit: bound ──▶ by key: advance ──▶ driver: commit, publish

The journal is the local engine's, on storage that driver and executors share, so a pipeline can
move between the two. Triggers are the clock's grid: this engine decides when one runs and what it
reads; nothing of Spark's watermarks or batch sizes is used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsqlp.core import TriggerRelease, collect
from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.instance import load_secret
from dpsqlp.engines.spark.session import configure, prepared, spoken
from dpsqlp.engines.spark.tasks import PAYLOADS, AdvanceTask, BoundTask, read_payloads
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import Source
from dpsqlp.sql.query import Query
from dpsqlp.sql.spark import known_columns, spark_rows
from dpsqlp.sql.spark.cells import name_sql
from dpsqlp.stages.route import HASHED_KINDS, SEED
from dpsqlp.state.journal import Changes, Intent, secret_check
from dpsqlp.state.remote import storage_at
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.shards import File, TableLog, open_places, parse_name, shard_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkSource(Source, Protocol):
    """A source that Spark can read."""

    def frame(self, records: Any, spark: SparkSession) -> DataFrame:
        """The range's records, with the columns and types that the source declares."""


class SparkEngine(Engine):
    """Shards as Spark tasks."""

    source: SparkSource

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        state: Path | str,
        secret: Path,
        source: SparkSource,
        sink: Sink,
        *,
        clock: Clock | None = None,
        shards: int,
    ) -> None:
        """Open the state, or begin one with so many shards.

        The state is a folder or the URI of an object store, which executors see too.
        """
        self._given = spark
        self._state = state if isinstance(state, str) else str(state.resolve())
        self._secret = secret.resolve()
        self._row_sql = spark_rows(query)
        storage = SealedStorage(storage_at(self._state))
        key = load_secret(self._secret, storage_is_new=not storage.list())
        super().__init__(query, storage, key, source, sink, clock=clock, shards=shards)
        instance = bytes.fromhex(self.journal.manifest.instance)
        self._secret_check = secret_check(Secret(key, instance))

    def _open(self, stack: ExitStack) -> None:
        self._adopt(prepared(self._given))
        self._load()

    def _load(self) -> None:
        """What the driver keeps of the state: all but the shards."""
        self.shards = self.journal.manifest.shards
        self._selected = self.journal.load_selected()

    @spoken("take over the public tables")
    def _adopt(self, spark: SparkSession) -> None:
        self._spark = spark
        for table in self.query.public_tables:
            rows = spark.createDataFrame(known_columns(table.rows))
            rows.createOrReplaceTempView(name_sql(table.name))

    @spoken("plan the trigger")
    def _read(self, intent: Intent) -> DataFrame:
        frame = self.source.frame(intent.records, self._spark)
        if frame.sparkSession is not self._spark:  # a stream has a session of its own
            configure(frame.sparkSession)
            self._adopt(frame.sparkSession)
        frame.createOrReplaceTempView(name_sql(self.query.source.name))
        rows = self._spark.sql(self._row_sql)
        if intent.records is not None and self.schedule.on_event_time:
            low, high = intent.records["span"]
            rows = rows.where(f"timestamp_us >= {low} AND timestamp_us < {high}")
        return rows

    @spoken("run the trigger")
    def _compute(
        self, trigger: int, records: Any, position: Any
    ) -> tuple[Changes, Callable[[], TriggerRelease]]:
        manifest = self.journal.manifest
        task = (
            self._state,
            str(self._secret),
            manifest.instance,
            self._secret_check,
            trigger,
            manifest.trigger,
        )
        # A record without a unit for each shard: Spark leaves out a plan that it sees to be empty.
        ids = self._spark.range(0, self.shards, 1, 1)
        wakes = ids.selectExpr("CAST(id AS INT) AS shard")
        payloads = (
            records.selectExpr("*", f"{self._unit_shard()} AS shard")
            .unionByName(wakes, allowMissingColumns=True)
            .repartitionById(self.shards, "shard")
            .drop("shard")
            .mapInArrow(BoundTask(*task), PAYLOADS)
            .repartitionById(self.shards, "shard")
            .mapInArrow(AdvanceTask(*task), PAYLOADS)
            .toArrow()
        )
        logs: dict[str, TableLog | None] = {}
        digests: dict[tuple[int, int], str] = {}
        released: list[tuple[int, Encoded, Any]] = []
        selected: dict[tuple[int, int], Any] = {}
        for header, arrays in read_payloads(payloads.to_batches()):
            name = header["table"]
            if name in logs:
                raise _shards_went_wrong(trigger)
            logs[name] = _log(header["log"])
            if "digest" in header:
                _, place = parse_name(name)
                digests[place] = header["digest"]
                data, offsets, values, selected[place] = arrays
                released.append((place[0], Encoded(data, offsets), values))
        expected = {
            shard_name(kind, place)
            for shard in range(self.shards)
            for kind, place in open_places(self.plan, trigger, shard)
        }
        if set(logs) != expected:
            raise _shards_went_wrong(trigger)
        tables = {name: log for name, log in logs.items() if log is not None}
        for (window, _), ids in sorted(selected.items()):
            self.core.mark_selected(self._selected, window, ids)
        still_open = self.plan.windows.open(trigger + 1)
        self._selected = {w: keys for w, keys in self._selected.items() if w in still_open}
        tables |= self.journal.save_selected(self._selected, trigger)
        changes = Changes(trigger, tables.items(), [text for _, text in sorted(digests.items())])
        return changes, lambda: self._collected(trigger, released)

    def _unit_shard(self) -> str:
        """The number of a row's unit shard, as `stages.route` has it."""
        columns = [
            f"CAST(unit_{place} AS BIGINT)" if kind == "integer" else f"unit_{place}"
            for place, kind in enumerate(self.query.unit_kinds)
            if kind in HASHED_KINDS
        ]
        shard_hash = f"xxhash64({', '.join(columns)})" if columns else str(SEED)
        return f"CAST(pmod({shard_hash}, {self.shards}) AS INT)"

    def _collected(self, trigger: int, parts: list[tuple[int, Encoded, Any]]) -> TriggerRelease:
        windows = [np.full(len(texts), window, np.int64) for window, texts, _ in parts]
        return collect(
            self.plan,
            trigger,
            np.concatenate([np.empty(0, np.int64), *windows]),
            Encoded.concatenate([texts for _, texts, _ in parts]),
            np.concatenate([values for _, _, values in parts]),
        )


def _log(described: dict[str, Any] | None) -> TableLog | None:
    if described is None:
        return None
    return TableLog(described["rows"], tuple(File(**file) for file in described["files"]))


def _shards_went_wrong(trigger: int) -> StateError:
    return StateError(
        f"Spark did not run every shard of trigger {trigger} exactly once. Nothing was released;"
        " run again. If it stays so, this version of Spark is not one that dpsqlp knows."
    )
