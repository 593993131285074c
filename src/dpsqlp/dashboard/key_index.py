"""Finds a key by its id.

The id is a hash of the key, short enough for an address. Only released keys are searched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpsqlp.dashboard.cache import LruCache
from dpsqlp.dashboard.history import History
from dpsqlp.dashboard.metadata import Window
from dpsqlp.dashboard.release import Key, id_prefix, key_id

_KEYS = 20_000  # cached keys
_RELEASES = 33  # releases whose ids are cached, 16 bytes per row
_ROWS_SEARCHED_MAX = 100_000  # in releases before the newest of a window
_MISSES = 10_000


class KeyIndex:
    """The ids of the released keys of one sink."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._keys: LruCache[str, Key] = LruCache(_KEYS)
        self._prefixes: LruCache[int, tuple[NDArray[np.uint64], NDArray[np.int64]]]
        self._prefixes = LruCache(_RELEASES)
        self._misses: LruCache[tuple[str, Window], bool] = LruCache(_MISSES)
        self._backfills = 0

    def id_of(self, key: Key) -> str:
        """The id of a key, which `find` then finds without reading a file."""
        name = key_id(key)
        self._keys.put(name, key)
        return name

    def find(self, name: str, window: Window) -> Key | None:
        """The key with an id, if a release of the window has it.

        HAVING and LIMIT may have dropped the key from the newest release, so earlier ones are
        searched too.
        """
        if self._backfills != self._history.backfills:
            self._misses.clear()
            self._backfills = self._history.backfills
        key = self._keys.get(name)
        if key is not None or self._misses.get((name, window)):
            return key
        searched = 0
        for trigger in self._newest_first(window):
            prefixes, rows = self._sorted_prefixes(trigger)
            prefix = id_prefix(name)
            low, high = (np.searchsorted(prefixes, prefix, side) for side in ("left", "right"))
            release = self._history.release(trigger) if low < high else None
            for key in release.keys_of(rows[low:high]) if release is not None else ():
                if key_id(key) == name:
                    return self._keys.put(name, key)
            searched += 0 if trigger == window.trigger else len(rows)
            if searched >= _ROWS_SEARCHED_MAX:
                break
        self._misses.put((name, window), True)
        return None

    def _newest_first(self, window: Window) -> list[int]:
        before = [t for t in self._history.triggers_of(window) if t < window.trigger]
        return [window.trigger, *before[:-_RELEASES:-1]]

    def _sorted_prefixes(self, trigger: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The id prefixes of a release in ascending order, and their rows."""
        known = self._prefixes.get(trigger)
        if known is None:
            prefixes = self._read_prefixes(trigger)
            order = np.argsort(prefixes, kind="stable")
            known = self._prefixes.put(trigger, (prefixes[order], order))
        return known

    def _read_prefixes(self, trigger: int) -> NDArray[np.uint64]:
        columns = self._history.columns()
        prefixes, uncertain = self._history.read(
            trigger, lambda file: self._history.reader.id_prefixes(file, columns)
        )
        if len(uncertain):
            keys = self._history.release(trigger).keys_of(uncertain)
            prefixes[uncertain] = [id_prefix(key_id(key)) for key in keys]
        return prefixes
