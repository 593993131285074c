"""The releases of one sink over time.

A release never changes, so its content is cached. The folder is listed again when its modification
time changes.
"""

from __future__ import annotations

import bisect
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.dashboard.cache import LruCache
from dpsqlp.dashboard.metadata import WINDOWS_MAX, Metadata, Window
from dpsqlp.dashboard.release import WHOLE_STREAM, Columns, Key, Release
from dpsqlp.dashboard.release_files import FileVersion, file_version, trigger_files
from dpsqlp.dashboard.release_reader import Point, ReleaseReader
from dpsqlp.dashboard.release_sources import ReleaseSource

_SCANNED_MAX = 500  # newest releases searched for windows if there is no metadata
_RELEASES = 8  # cached releases of one sink
_MTIME_RESOLUTION_NS = 50_000_000  # two changes within this time can share a modification time
T = TypeVar("T")


class UnreadableReleaseError(Exception):
    """A release file could not be read and is skipped from now on. Repeat the query."""


class History:
    """The releases of one sink. Not thread-safe."""

    def __init__(self, source: ReleaseSource, refresh_seconds: float) -> None:
        """The source is checked for new releases at most once in `refresh_seconds`."""
        self.name = source.name
        self.folder: Path | None = None
        self.metadata: Metadata | None = None
        self.triggers: list[int] = []  # ascending
        self.backfills = 0  # how often a release appeared after one of a later trigger
        self.reader = ReleaseReader()
        self._source = source
        self._refresh_seconds = refresh_seconds
        self._checked = -math.inf
        self._modified: int | None = None
        self._listed: int | None = None
        self._files: dict[int, Path] = {}
        self._columns: Columns | None = None
        self._releases: LruCache[int, Release] = LruCache(_RELEASES)
        self._windows: dict[int, list[tuple[int, int, bool]]] = {}
        self._unreadable: dict[int, FileVersion | None] = {}

    @property
    def unreadable(self) -> int:
        """The number of releases that are skipped because their files cannot be read."""
        return len(self._unreadable)

    def modified(self) -> int | None:
        """The source's modification time; None if it is so recent that more may follow."""
        now = time.monotonic()
        if self._modified is None or now - self._checked > self._refresh_seconds:
            modified = self._source.watched_path().stat().st_mtime_ns
            is_final = time.time_ns() - modified > _MTIME_RESOLUTION_NS
            self._modified, self._checked = modified if is_final else None, now
        return self._modified

    def refresh(self) -> None:
        """List the releases again if the source was modified."""
        modified = self.modified()
        if modified is not None and modified == self._listed:
            return
        folder = self.folder = self._source.folder()
        before = self.triggers
        self._files = trigger_files(folder, "parquet")
        for trigger, version in list(self._unreadable.items()):
            if trigger in self._files and file_version(self._files[trigger]) == version:
                del self._files[trigger]
            else:  # deleted or repaired
                del self._unreadable[trigger]
        self.triggers = sorted(self._files)
        if before and {t for t in self.triggers if t < before[-1]} - set(before):
            self.backfills += 1
        self.metadata = Metadata.read(folder)
        self.name = self._source.name if self.metadata is None else self.metadata.name
        self._listed = modified

    def windows(self) -> list[Window]:
        """The windows of the releases, newest first."""
        if self.metadata is not None:
            return self.metadata.windows(self.triggers)
        found: dict[int, Window] = {}
        for trigger in reversed(self.triggers[-_SCANNED_MAX:]):
            for start, end, final in self._windows_of(trigger):
                whole = start == WHOLE_STREAM
                window = Window(None if whole else start, None if whole else end, trigger, final)
                found.setdefault(start, window)
        newest = sorted(found.items(), key=lambda item: -item[0])
        return [window for _, window in newest[:WINDOWS_MAX]]

    def triggers_of(self, window: Window) -> list[int]:
        """The triggers that release a window, ascending."""
        first, last = self.triggers[0], window.trigger
        if self.metadata is not None:
            first, last = self.metadata.trigger_range(window.start_us)
        low, high = (bisect.bisect_left(self.triggers, at) for at in (first, last + 1))
        return self.triggers[low:high]

    def release(self, trigger: int) -> Release:
        """The release of a trigger."""
        release = self._releases.get(trigger)
        if release is None:
            columns = self.columns()
            release = self.read(trigger, lambda file: self.reader.release(trigger, file, columns))
            self._releases.put(trigger, release)
        return release

    def columns(self) -> Columns:
        """The released columns; before the first release, as the plan has them."""
        if self._columns is None and self.triggers:
            last = self.triggers[-1]
            self._columns = self.read(last, lambda file: self.reader.columns(file, self.metadata))
        return self._columns or _planned_columns(self.metadata)

    def points(
        self, keys: Sequence[Key], starts: Sequence[int], triggers: Sequence[int]
    ) -> dict[Key, list[Point]]:
        """The values of some keys in some windows at some triggers."""
        columns = self.columns()
        return self._read_all(
            triggers, lambda files: self.reader.points(keys, starts, files, columns)
        )

    def rows_of_key(self, key: Key, starts: Sequence[int], triggers: Sequence[int]) -> pa.Table:
        """The released rows of a key in some windows at some triggers."""
        columns = self.columns()
        return self._read_all(
            triggers, lambda files: self.reader.rows_of_key(key, starts, files, columns)
        )

    def rows_at(self, trigger: int, numbers: NDArray[np.int64]) -> pa.Table:
        """The released rows of some row numbers of a release, in this order."""
        return self.read(trigger, lambda file: self.reader.rows_at(file, numbers))

    def _read_all(self, triggers: Sequence[int], read: Callable[[list[Path]], T]) -> T:
        """Read several release files together."""
        try:
            return read([self._files[trigger] for trigger in triggers])
        except duckdb.Error:
            for trigger in triggers:  # read the files one by one to find the unreadable one
                self.read(trigger, lambda file: read([file]))
            raise

    def read(self, trigger: int, read: Callable[[Path], T]) -> T:
        """Read a release file. A file that cannot be read is skipped from then on."""
        try:
            return read(self._files[trigger])
        except duckdb.OutOfMemoryException:
            raise
        except (duckdb.Error, pa.ArrowException, KeyError) as error:
            path = self._files.pop(trigger)
            self.triggers.remove(trigger)
            self._unreadable[trigger] = file_version(path)
            # Only the error's type is logged: its text names the file and may repeat the query.
            text = f"The dashboard skips a release that it cannot read: {type(error).__name__}."
            print(text, file=sys.stderr)
            raise UnreadableReleaseError from error

    def _windows_of(self, trigger: int) -> list[tuple[int, int, bool]]:
        if trigger not in self._windows:
            self._windows[trigger] = self.read(trigger, self.reader.windows)
        return self._windows[trigger]


def _planned_columns(metadata: Metadata | None) -> Columns:
    keys, aggregates = ((), ()) if metadata is None else (metadata.keys, metadata.aggregates)
    return Columns(
        keys,
        tuple("VARCHAR" for _ in keys),
        aggregates,
        tuple(True for _ in aggregates),
        tuple(False for _ in aggregates),
    )
