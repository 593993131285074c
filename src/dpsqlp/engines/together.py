"""Several sinks of one script, run in one process, whichever trigger is due first.

Privacy contract: the order follows public time alone. A sink that reads standard input is done
once that has ended and its last lines were run; who closes standard input decides that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.sources.pushed import StandardInput

Report = Callable[[str, Progress], None]


def run_together(
    engines: Mapping[str, Engine], clock: Clock, stop: threading.Event, report: Report
) -> None:
    """Run the triggers of all engines until every one is done, or until told to stop."""
    while not stop.is_set():
        waiting = {name: engine for name, engine in engines.items() if not is_done(engine)}
        if not waiting:
            return
        name = _next(waiting, clock.now())
        engine = waiting[name]
        if not engine.schedule.on_event_time:
            clock.wait(engine.schedule.due(engine.next_trigger), stop)
            if stop.is_set():
                return
        report(name, engine.step())


def is_done(engine: Engine) -> bool:
    """Whether the last trigger has run: of the grid, or the one after standard input's end."""
    if engine.finished:
        return True
    ended = isinstance(engine.source, StandardInput) and engine.source.exhausted
    return ended and engine.journal.pending() is None


def _next(engines: Mapping[str, Engine], now: int) -> str:
    """What the clock has made due, else a replay, else what is due next."""

    def urgency(name: str) -> tuple[int, int]:
        schedule = engines[name].schedule
        due = schedule.due(engines[name].next_trigger)
        if schedule.on_event_time:
            return 1, due
        return (0 if due <= now else 2), due

    return min(engines, key=urgency)
