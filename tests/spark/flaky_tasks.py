"""Tasks that go wrong the first time: before they begin, when all is written, or by being slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsqlp.engines.spark.tasks import AdvanceTask, BoundTask, Task, _partition

SLOW_SECONDS = 2.0


def _runs(
    task: Task, stage: Any, batches: Iterator[pa.RecordBatch], slow: bool
) -> Iterator[pa.RecordBatch]:
    shard = _partition()
    marks = Path(task.state).parent / "marks"
    mark = marks / f"{stage.__name__}-{task.trigger}-{shard}"
    marks.mkdir(exist_ok=True)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        mark.with_suffix(".again").touch()
        return iter(stage.__call__(task, batches))
    what = (task.trigger + shard + 3 * (stage is AdvanceTask)) % 9
    if what == 0:
        raise RuntimeError("It fails before it begins.")
    if what == 1:
        done = list(stage.__call__(task, batches))
        raise RuntimeError(f"It fails with {len(done)} payloads to hand on.")
    if what == 2 and slow:
        time.sleep(SLOW_SECONDS)
    return iter(stage.__call__(task, batches))


class FlakyBound(BoundTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _runs(self, BoundTask, batches, slow=False)


class FlakyAdvance(AdvanceTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _runs(self, AdvanceTask, batches, slow=False)


class SlowBound(BoundTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _runs(self, BoundTask, batches, slow=True)


class SlowAdvance(AdvanceTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _runs(self, AdvanceTask, batches, slow=True)


def install(module: Any, *, slow: bool) -> None:
    """Give the engine such tasks, on all the workers that Spark has."""
    pairs = (SlowBound, SlowAdvance) if slow else (FlakyBound, FlakyAdvance)
    module.BoundTask, module.AdvanceTask = pairs
