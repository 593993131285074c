"""A streaming DataFrame's batches as a source, and a function of the user's as a sink.

Spark decides which records a batch has, and makes that durable in its checkpoint before the batch
runs; a batch that runs again has the same records.

Privacy contract: a checkpoint and a state that do not fit each other are refused, since records
would be counted twice or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, cast

import pyarrow as pa

from dpsqlp.engines.spark.files import no_records
from dpsqlp.errors import SourceError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import GridTime, Source
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[["DataFrame", int], None]


class BatchRange(TypedDict):
    """A batch of a checkpoint; as an offset, the last batch that was read."""

    batch: int
    checkpoint: str


class BatchSource(Source[BatchRange, BatchRange]):
    """The batch that Spark has planned."""

    def __init__(self, source: SourceDef, checkpoint: str) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._number = -1
        self._frame: DataFrame | None = None

    def offer(self, number: int, frame: DataFrame) -> None:
        """Make this the current batch."""
        self._number, self._frame = number, frame

    def initial_offset(self) -> BatchRange:
        """Before the checkpoint's first batch."""
        return {"batch": -1, "checkpoint": self._checkpoint}

    def cut(self, offset: BatchRange, at: GridTime) -> BatchRange:
        """The current batch, which must follow the last one."""
        self._check(offset, self._number - 1)
        return {"batch": self._number, "checkpoint": self._checkpoint}

    def next_offset(self, offset: BatchRange, offsets: BatchRange | None) -> BatchRange:
        """The offset after a batch."""
        return offset if offsets is None else offsets

    def frame(self, offsets: BatchRange | None, spark: SparkSession) -> DataFrame:
        """The batch's records."""
        if offsets is None:
            return no_records(self._source, spark)
        self._check(offsets, self._number)
        assert self._frame is not None
        return self._frame

    def read(self, offsets: BatchRange | None, database: object) -> None:
        """Only Spark reads batches."""
        raise NotImplementedError

    def is_committed(self, offset: Offset) -> bool:
        """Whether the state has read the current batch. A state that has read a later batch, or one
        of another checkpoint, is refused.
        """
        known = cast(BatchRange | None, offset)
        if known is None or self._number > known["batch"]:
            return False
        self._check(known, self._number)
        return True

    def _check(self, known: BatchRange, batch: int) -> None:
        if known != {"batch": batch, "checkpoint": self._checkpoint}:
            raise SourceError(
                f"Batch {self._number} of the checkpoint does not follow the last batch that the"
                " state has read. One of the two was replaced. Restore both as they were, or"
                " begin a new pipeline with a new checkpoint, which spends its own budget."
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
