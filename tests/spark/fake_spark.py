"""Spark's part of the Spark engine without Spark: partitions, workers and attempts, all chosen."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsqlp.engines.spark import tasks
from dpsqlp.engines.spark.engine import SparkEngine
from dpsqlp.engines.spark.files import SparkFiles
from dpsqlp.sql import connect
from dpsqlp.stages.route import unit_shard_hashes
from dpsqlp.state.journal import Intent
from spark.parity import Kept, make_query
from support.fake_clock import START, FakeClock

Batches = list[pa.RecordBatch]


class Executors:
    """Worker processes: each has its own tables. What is chosen here, a test may choose otherwise.

    `dice`: workers, and the order of whatever Spark gives no order to, are left to chance.
    """

    def __init__(self, workers: int = 1, dice: random.Random | None = None) -> None:
        self.workers: list[dict[Any, Any]] = [{} for _ in range(workers)]
        self.dice = dice

    def run(self, task: tasks.Task, shard: int, batches: Batches) -> Batches:
        """A task, on some worker."""
        worker = self.dice.choice(self.workers) if self.dice else self.workers[0]
        return self.attempt(worker, task, shard, batches)

    def attempt(
        self, worker: dict[Any, Any], task: tasks.Task, shard: int, batches: Batches
    ) -> Batches:
        """A task, on this worker."""
        tasks._WORKERS, tasks._partition = worker, lambda: shard
        return list(task(iter(batches)))

    def home(self, unit: int, shards: int) -> int:
        """The shard that Spark finds for a unit's hash."""
        return unit % shards

    def shuffled(self, rows: pa.Table) -> pa.Table:
        """Rows in some order."""
        if self.dice is None:
            return rows
        return rows.take(pa.array(self.dice.sample(range(len(rows)), len(rows)), pa.int64()))

    def cut(self, rows: pa.Table) -> Batches:
        """Rows in some batches."""
        size = self.dice.randint(1, 50) if self.dice else max(1, len(rows))
        return list(rows.combine_chunks().to_batches(size))


@dataclass(frozen=True)
class Frame:
    """As much of a DataFrame as the engine uses."""

    executors: Executors
    rows: pa.Table
    shards: int = 0
    partitions: list[Batches] = field(default_factory=list)

    def selectExpr(self, *_: str) -> Frame:  # noqa: N802
        """With the column `shard`, of a unit that is a text."""
        unit = self.rows.column("unit_0").combine_chunks().fill_null("")
        homes = unit_shard_hashes([unit], len(self.rows)).tolist()
        found = [self.executors.home(home, self.shards) for home in homes]
        return replace(self, rows=self.rows.append_column("shard", pa.array(found, pa.int32())))

    def unionByName(self, *_: Any, **__: Any) -> Frame:  # noqa: N802
        """Nothing has to be woken."""
        return self

    def repartitionById(self, shards: int, _: str) -> Frame:  # noqa: N802
        """One partition for each shard."""
        rows = self.executors.shuffled(self.rows)
        home = rows.column("shard")
        parts = [rows.filter(pc.equal(home, shard)) for shard in range(shards)]
        return replace(self, partitions=[self.executors.cut(part) for part in parts])

    def drop(self, name: str) -> Frame:
        """Without a column."""
        parts = [[batch.drop_columns([name]) for batch in part] for part in self.partitions]
        return replace(self, partitions=parts)

    def mapInArrow(self, task: tasks.Task, _: str) -> Frame:  # noqa: N802
        """Run a stage."""
        done = [self.executors.run(task, n, part) for n, part in enumerate(self.partitions)]
        rows = pa.Table.from_batches([batch for part in done for batch in part])
        return replace(self, rows=rows)

    def toArrow(self) -> pa.Table:  # noqa: N802
        """The rows."""
        return self.executors.shuffled(self.rows)


class FramesEngine(SparkEngine):
    """The Spark engine on such frames; the row query is DuckDB's."""

    executors: Executors

    def _open(self, stack: ExitStack) -> None:
        tables = {table.name: table.rows for table in self.query.public_tables}
        self._reading = stack.enter_context(connect(tables, {}, self.source.folders()))
        self._load()
        self._spark: Any = SimpleNamespace(
            range=lambda *_: SimpleNamespace(selectExpr=lambda _: None)
        )

    def _read(self, intent: Intent) -> Any:
        self.source.read(intent.offsets, self._reading)
        query = self.query.row_sql
        offsets: Any = intent.offsets
        if offsets is not None and self.schedule.on_event_time:
            low, high = offsets["span"]
            query = f"FROM ({query}) WHERE timestamp_us >= {low} AND timestamp_us < {high}"
        return Frame(self.executors, self._reading.sql(query).to_arrow_table(), self.shards)


def frames_engine(folder: Path, name: str, executors: Executors) -> FramesEngine:
    """The engine on a state that is there."""
    query = make_query(folder)
    source = SparkFiles(query.source, query.event_column, folder)
    engine = FramesEngine(
        SimpleNamespace(),  # type: ignore[arg-type]
        query,
        folder / name,
        folder / "secret",
        source,
        Kept(folder / f"{name}-out"),
        clock=FakeClock(START),
        shards=4,
    )
    engine.executors = executors
    return engine
