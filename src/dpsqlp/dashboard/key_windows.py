"""The values of one key over windows: in the newest release of each window."""

from __future__ import annotations

from collections.abc import Sequence

from dpsqlp.dashboard.cache import LruCache
from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import Key, as_number
from dpsqlp.dashboard.release_reader import Point

_KEYS = 64


class KeyWindows:
    """Cached values of the keys of one sink, window by window."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: LruCache[Key, dict[Window, Point | None]] = LruCache(_KEYS)

    def points(self, key: Key, windows: Sequence[Window]) -> list[Point | None]:
        """The values of a key in each window; None where it was not released.

        A window's release never changes, so only new ones are read.
        """
        known = self._known.get(key) or {}
        if new := [window for window in windows if window not in known]:
            starts, triggers = starts_and_triggers(new)
            points = self._history.points([key], starts, triggers)[key]
            found = {(point.window, point.trigger): point for point in points}
            known |= {w: found.get((as_number(w.start_us), w.trigger)) for w in new}
        self._known.put(key, {window: known[window] for window in windows})
        return [known[window] for window in windows]


def starts_and_triggers(windows: Sequence[Window]) -> tuple[list[int], list[int]]:
    """The starts of windows, and the triggers of their newest releases."""
    starts = [as_number(window.start_us) for window in windows]
    return starts, sorted({window.trigger for window in windows})
