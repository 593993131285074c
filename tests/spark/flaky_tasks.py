"""Tasks that go wrong the first time: before they begin, when all is written, or by being slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsqlp.engines.spark.tasks import (
    AdvanceTask,
    BoundTask,
    CloseTask,
    LayTask,
    Task,
    _partition,
)

SLOW_SECONDS = 2.0
_STAGES: list[Any] = [BoundTask, AdvanceTask, LayTask, CloseTask]


class Flaky:
    """See `install`."""

    slow = False

    def runs(
        self, task: Task, stage: Any, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """What this attempt has to hand on."""
        shard = _partition()
        marks = Path(task.state).parent / "marks"
        mark = marks / f"{stage.__name__}-{task.trigger}-{shard}"
        marks.mkdir(exist_ok=True)
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            mark.with_suffix(".again").touch()
            return iter(stage.__call__(task, batches))
        what = (task.trigger + shard + 4 * _STAGES.index(stage)) % 9
        if what == 0:
            raise RuntimeError("It fails before it begins.")
        if what == 1:
            done = list(stage.__call__(task, batches))
            raise RuntimeError(f"It fails with {len(done)} payloads to hand on.")
        if what == 2 and self.slow:
            time.sleep(SLOW_SECONDS)
        return iter(stage.__call__(task, batches))


class FlakyBound(Flaky, BoundTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.runs(self, BoundTask, batches)


class FlakyAdvance(Flaky, AdvanceTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.runs(self, AdvanceTask, batches)


class FlakyLay(Flaky, LayTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.runs(self, LayTask, batches)


class FlakyClose(Flaky, CloseTask):
    """See `install`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.runs(self, CloseTask, batches)


class SlowBound(FlakyBound):
    """See `install`."""

    slow = True


class SlowAdvance(FlakyAdvance):
    """See `install`."""

    slow = True


class SlowLay(FlakyLay):
    """See `install`."""

    slow = True


class SlowClose(FlakyClose):
    """See `install`."""

    slow = True


def install(module: Any, *, slow: bool) -> None:
    """Give the engine such tasks, on all the workers that Spark has."""
    flaky = (FlakyBound, FlakyAdvance, FlakyLay, FlakyClose)
    dawdling = (SlowBound, SlowAdvance, SlowLay, SlowClose)
    for stage, task in zip(_STAGES, dawdling if slow else flaky, strict=True):
        setattr(module, stage.__name__, task)
