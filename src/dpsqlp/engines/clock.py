"""The clock of an engine, and the grid of its triggers.

Privacy contract: triggers and windows follow this grid alone. Nothing here looks at a record.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sql.query import Calendar, Query


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
    """The grid triggers of a query. Trigger g ends at origin + g * interval, or at times[g]."""

    interval: int  # microseconds
    origin: int
    on_event_time: bool
    first: int
    last: int | None  # None if the pipeline has no end
    times: Sequence[int] | None = None  # of the triggers 0, 1, ... where a calendar has them

    @classmethod
    def of(cls, query: Query, plan: Plan, created: int) -> TriggerGrid:
        """The grid of a query, for a pipeline created at this time."""
        emit, windows = query.emit, plan.windows
        interval = emit.interval_us
        if query.window is None:
            begin = created // interval * interval if emit.start_us is None else emit.start_us
            return cls(interval, begin, emit.on_event_time, 1, plan.triggers)
        start = created if emit.start_us is None or not emit.on_event_time else emit.start_us
        times = windows.times if isinstance(windows, CalendarSchedule) else None
        first = start // interval + 1 if times is None else bisect_right(times, start)
        if not emit.on_event_time or isinstance(query.window, Calendar):
            return cls(interval, 0, emit.on_event_time, first, plan.last_trigger, times)
        assert emit.stop_us is not None
        hop = query.window.hop_us
        last_window = (emit.stop_us - 1) // hop
        last = (last_window * hop + query.window.size_us + emit.lateness_us) // interval
        return cls(interval, 0, True, first, last)

    def due(self, trigger: int) -> int:
        """The end of a trigger's interval: on processing time, the time at which it is cut."""
        if self.times is not None:
            return self.times[trigger]
        return self.origin + trigger * self.interval

    def span(self, trigger: int) -> tuple[int, int]:
        """The begin and the end of a trigger's interval."""
        return self.due(trigger - 1), self.due(trigger)

    def current(self, now: int) -> int:
        """The last trigger that is due at a time."""
        if self.times is not None:
            return bisect_right(self.times, now) - 1
        return (now - self.origin) // self.interval
