"""What can be asked of one sink: its windows, the rows of a page, the values of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.key_index import KeyIndex
from dpsqlp.dashboard.key_series import KeySeries
from dpsqlp.dashboard.key_windows import KeyWindows, starts_and_triggers
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import WHOLE_STREAM, Key, Release, Selection, as_number
from dpsqlp.dashboard.release_reader import Point
from dpsqlp.dashboard.release_sources import ReleaseSource


class NotFoundError(Exception):
    """The requested resource does not exist."""


@dataclass(frozen=True, slots=True)
class KeysQuery:
    """A request for a page of keys."""

    window: int | None = None  # start in microseconds; None: the newest
    search: str = ""
    order: str | None = None  # None: the first aggregate
    descending: bool = True
    page: int = 1
    size: int = 50


@dataclass(frozen=True, slots=True)
class Page:
    """A page of keys: rows of a window's newest release."""

    window: Window
    release: Release
    total: int  # rows on all pages
    rows: NDArray[np.int64]
    keys: list[Key]


class SinkView:
    """The releases of one sink, with an index of its keys and caches. Not thread-safe."""

    def __init__(self, source: ReleaseSource, refresh_seconds: float) -> None:
        self.history = History(source, refresh_seconds)
        self.index = KeyIndex(self.history)
        self._series = KeySeries(self.history)
        self._windows = KeyWindows(self.history)

    def choose(self, start_us: int | None) -> Window | None:
        """The requested window, or the newest one that has rows in the last release."""
        windows = self.history.windows()
        if start_us is not None:
            for window in windows:
                if window.start_us == start_us:
                    return window
            raise NotFoundError("No window starts at this time.")
        if not windows:
            return None
        newest = self.history.release(windows[0].trigger).window
        starts = set(np.unique(newest).tolist()) if len(windows) > 1 else set()
        return next((w for w in windows if as_number(w.start_us) in starts), windows[0])

    def page(self, query: KeysQuery) -> Page | None:
        """The page that is asked for; None before the first release."""
        window = self.choose(query.window)
        if window is None:
            return None
        columns = self.history.columns()
        order = query.order or next(iter(columns.aggregates), "key")
        if order != "key" and order not in columns.aggregates:
            raise NotFoundError("`order` does not name an aggregate of this sink.")
        release = self.history.release(window.trigger)
        start = as_number(window.start_us)
        rows = release.select(Selection(start, query.search, order, query.descending))
        first = (query.page - 1) * query.size
        shown = rows[first : first + query.size]
        return Page(window, release, len(rows), shown, release.keys_of(shown))

    def windows_until(self, window: Window, count: int) -> list[Window]:
        """A window and the ones before it, newest first."""
        windows = self.history.windows()
        first = windows.index(window)
        return windows[first : first + count]

    def find(self, identity: str, start_us: int | None) -> tuple[Key, Window]:
        """A key by its id, and the window."""
        window = self.choose(start_us)
        key = None if window is None else self.index.find(identity, window)
        if key is None or window is None:
            raise NotFoundError("No key with this id was released in this window.")
        return key, window

    def points_in(self, key: Key, window: Window) -> list[Point]:
        """The values of a key over the triggers of a window."""
        points = self._series.points(key, window)
        if not points:
            raise NotFoundError("No key with this id was released in this window.")
        return points

    def points_over(self, key: Key, windows: Sequence[Window]) -> list[Point | None]:
        """The values of a key in the newest release of each window."""
        return self._windows.points(key, windows)

    def rows_of_page(self, query: KeysQuery, count: int) -> pa.Table:
        """The released rows of a page of keys in its window and the ones before, `count` in all."""
        page = self.page(query)
        if page is None:
            raise NotFoundError("Nothing has been released yet.")
        tables = [self.history.rows_at(page.window.trigger, page.rows)]
        for window in self.windows_until(page.window, count)[1:]:
            release = self.history.release(window.trigger)
            found = release.find(page.keys, as_number(window.start_us))
            numbers = np.fromiter(found.values(), np.int64, len(found))
            tables.append(self.history.rows_at(window.trigger, numbers))
        return pa.concat_tables(tables)

    def rows_in(self, key: Key, window: Window) -> pa.Table:
        """The released rows of a key at the triggers of `points_in`."""
        triggers = [point.trigger for point in self.points_in(key, window)]
        return self.history.rows_of_key(key, [as_number(window.start_us)], triggers)

    def rows_over(self, key: Key, windows: Sequence[Window]) -> pa.Table:
        """The released rows of a key in the newest release of each window."""
        rows = self.history.rows_of_key(key, *starts_and_triggers(windows))
        starts = pc.fill_null(rows["window_start"].cast(pa.int64()), WHOLE_STREAM).to_pylist()
        released = zip(starts, rows["trigger"].to_pylist(), strict=True)
        newest = {(as_number(window.start_us), window.trigger) for window in windows}
        return rows.filter(pa.array([one in newest for one in released], pa.bool_()))
