"""A clock that is told the time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

START = 20_000 * 24 * 3_600_000_000  # 2024-10-04, midnight


class FakeClock:
    """Virtual time: it moves on when every thread that waits by it waits, to the first moment that
    one of them waits for, and lets things happen on the way.
    """

    def __init__(
        self, time: int = START, happenings: Sequence[tuple[int, Callable[[], None]]] = ()
    ) -> None:
        self.time = time
        self.happenings = happenings
        self._expected = 1
        self._seen: set[threading.Thread] = set()
        self._waits: dict[threading.Thread, tuple[int, threading.Event]] = {}
        self._changed = threading.Condition(threading.RLock())

    def expect(self, threads: int) -> None:
        """So many threads will wait by it; it stands still until all of them have begun to."""
        self._expected, self._seen = threads, set()

    def now(self) -> int:
        return self.time

    def wait(self, until: int, stop: threading.Event) -> None:
        me = threading.current_thread()
        with self._changed:
            self._seen.add(me)
            self._waits[me] = (until, stop)
            try:
                while self.time < until and not stop.is_set():
                    if not self._moved_on():
                        self._changed.wait(0.001)
            finally:
                del self._waits[me]
                self._changed.notify_all()

    def _moved_on(self) -> bool:
        busy = any(thread.is_alive() and thread not in self._waits for thread in self._seen)
        woken = any(stop.is_set() or until <= self.time for until, stop in self._waits.values())
        if busy or woken or len(self._seen) < self._expected:
            return False
        target = min(until for until, _ in self._waits.values())
        for at, happens in sorted(self.happenings, key=lambda item: item[0]):
            if self.time < at <= target:
                self.time = at
                happens()
        self.time = max(self.time, target)
        self._changed.notify_all()
        return True
