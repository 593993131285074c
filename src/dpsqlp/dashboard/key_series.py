"""The values of one key over the triggers of a window."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from dpsqlp.dashboard.cache import LruCache
from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import Key, as_number
from dpsqlp.dashboard.release_reader import Point

POINTS_MAX = 1000  # newest triggers in one series
_SERIES = 256
_MISSES = 10_000


@dataclass(slots=True)
class _Series:
    """The points of a key up to a trigger, and whether it was requested since they were read."""

    points: list[Point]
    read_until: int
    requested: bool


class KeySeries:
    """Cached series of the keys of one sink."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._series: LruCache[tuple[Key, int], _Series] = LruCache(_SERIES)
        self._misses: LruCache[tuple[Key, Window], bool] = LruCache(_MISSES)
        self._backfills = 0

    def points(self, key: Key, window: Window) -> list[Point]:
        """The values of a key in a window, by trigger.

        Only new files are read, once for all keys that were requested since the last read.
        """
        if self._backfills != self._history.backfills:
            self._series.clear()
            self._misses.clear()
            self._backfills = self._history.backfills
        start = as_number(window.start_us)
        triggers = self._history.triggers_of(window)[-POINTS_MAX:]
        if not triggers or self._misses.get((key, window)):
            return []
        series = self._series.get((key, start))
        if series is None:
            points = self._history.points([key], [start], triggers)[key]
            if not points:
                self._misses.put((key, window), True)
                return []
            series = self._series.put((key, start), _Series(points, triggers[-1], True))
        elif series.read_until < triggers[-1]:
            self._extend(series, start, triggers)
        series.requested = True
        return series.points

    def _extend(self, series: _Series, start: int, triggers: Sequence[int]) -> None:
        """Read new points of a series, and of all requested series that end at the same trigger."""
        extended = {
            key: other
            for (key, begin), other in self._series.items()
            if (begin, other.read_until) == (start, series.read_until)
            and (other.requested or other is series)
        }
        new = triggers[bisect.bisect_right(triggers, series.read_until) :]
        found = self._history.points(list(extended), [start], new)
        for key, other in extended.items():
            still = [point for point in other.points if point.trigger >= triggers[0]]
            other.points, other.read_until, other.requested = [*still, *found[key]], new[-1], False
