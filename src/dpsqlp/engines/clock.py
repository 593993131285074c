"""The clock of an engine, and the grid of its triggers.

Privacy contract: triggers and windows follow this grid alone. Nothing here looks at a record.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from dpsqlp.sql.query import Query


class Clock(Protocol):
    """A clock in microseconds since the epoch."""

    def now(self) -> int:
        """The current time."""

    def wait(self, until: int, stop: threading.Event) -> None:
        """Return at a time, or when `stop` is set."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """The current time."""
        return time.time_ns() // 1000

    def wait(self, until: int, stop: threading.Event) -> None:
        """Return at a time, or when `stop` is set."""
        while (left := until - self.now()) > 0 and not stop.is_set():
            stop.wait(min(left / 1e6, 1.0))


@dataclass(frozen=True, slots=True)
class TriggerGrid:
    """The grid triggers of a query. Trigger g ends at origin + g * interval."""

    interval: int  # microseconds
    origin: int
    on_event_time: bool
    first: int
    last: int | None  # None if the pipeline has no end

    @classmethod
    def of(cls, query: Query, triggers: int, created: int) -> TriggerGrid:
        """The grid of a query, for a pipeline created at this time."""
        emit = query.emit
        interval = emit.interval_us
        if query.window is None:
            begin = created // interval * interval if emit.start_us is None else emit.start_us
            return cls(interval, begin, emit.on_event_time, 1, triggers)
        if not emit.on_event_time:
            return cls(interval, 0, False, created // interval + 1, None)
        assert emit.start_us is not None
        assert emit.stop_us is not None
        hop = query.window.hop_us
        last_window = (emit.stop_us - 1) // hop
        last = (last_window * hop + query.window.size_us + emit.lateness_us) // interval
        return cls(interval, 0, True, emit.start_us // interval + 1, last)

    def due(self, trigger: int) -> int:
        """The end of a trigger's interval: on processing time, the time at which it is cut."""
        return self.origin + trigger * self.interval

    def span(self, trigger: int) -> tuple[int, int]:
        """The begin and the end of a trigger's interval."""
        return self.due(trigger - 1), self.due(trigger)

    def current(self, now: int) -> int:
        """The last trigger that is due at a time."""
        return (now - self.origin) // self.interval
