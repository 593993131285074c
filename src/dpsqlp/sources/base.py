"""The contract between an engine and a source.

Privacy contract: a source hands out records by the clock alone. `cut` may not count records, look
at their timestamps, or stop early; it returns an exact range, which is made durable before the
trigger runs and gives the same records whenever it is read. A value that cannot be read as its
column's type is null, never an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import duckdb

from dpsqlp.errors import SourceError
from dpsqlp.state.offsets import Offset, OffsetRange

OffsetT = TypeVar("OffsetT", bound=Offset)
RangeT = TypeVar("RangeT", bound=OffsetRange)


@dataclass(frozen=True, slots=True)
class GridTime:
    """When a source is cut, and for which trigger."""

    trigger: int
    time: int  # microseconds: records that arrive later belong to later triggers
    seconds_left: float  # until the next trigger is due


class Source(Protocol[OffsetT, RangeT]):
    """Records of one CREATE SOURCE. Offsets and ranges are JSON.

    `cut` and `read` raise UnavailableError if a server is away, and can then be called again. They
    are called in two threads, so that neither waits for the other.
    """

    # Values so far that could not be decoded: for the operator alone, never published.
    undecodable: int = 0
    # Whether the source knows when each record arrived: then a late cut is as good as a timely one.
    keeps_arrival_times: bool = False
    # Whether a cut has taken the last records that there will be.
    exhausted: bool = False

    def folders(self) -> list[str]:
        """The folders that the database may read itself."""
        return []

    @abstractmethod
    def initial_offset(self) -> OffsetT:
        """The offset before the first trigger."""

    @abstractmethod
    def cut(self, offset: OffsetT, at: GridTime) -> RangeT:
        """The range from an offset to the records that have arrived by now."""

    def replay(self, offset: OffsetT, span: tuple[int, int]) -> RangeT:
        """The range of an event-time span; of finished history alone."""
        raise SourceError("Only files and frames from Python can be replayed on event time.")

    def complete(self, offsets: RangeT) -> RangeT:
        """A range with all that decides how it is read; called before the range is durable."""
        return offsets

    @abstractmethod
    def next_offset(self, offset: OffsetT, offsets: RangeT | None) -> OffsetT:
        """The offset after a range; the same offset if a trigger has none."""

    @abstractmethod
    def read(self, offsets: RangeT | None, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""

    def leave_behind(self, offsets: RangeT, names: Collection[str]) -> tuple[RangeT, list[str]]:
        """A range without the named inputs, which count as read; and the inputs that it had."""
        return offsets, []

    def describe(self, offsets: RangeT | None) -> str:
        """The inputs of a range, for a message; empty if they have no names."""
        return ""

    def acknowledge(self, offsets: RangeT | None) -> None:
        """The trigger is committed: copies kept to read its range again may be deleted."""
        return

    def close(self) -> None:
        """Close connections."""
        return


AnySource = Source[Any, Any]  # an engine passes offsets on, and never looks into them
