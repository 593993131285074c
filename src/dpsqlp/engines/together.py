"""Several sinks of one script, run in one process, whichever trigger is due first.

Privacy contract: the order follows public time alone. A sink that reads standard input is done
once that has ended and its last lines were run; who closes standard input decides that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsqlp.engines.clock import Clock
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.errors import UnavailableError
from dpsqlp.sources.pushed import StandardInput

Report = Callable[[str, Progress | UnavailableError], None]
_PAUSE_US, _PAUSE_US_MAX = 250_000, 10_000_000


@dataclass(frozen=True, slots=True)
class _Pause:
    """How long an engine is left alone, after its server did not answer."""

    until: int
    length: int


def run_together(
    engines: Mapping[str, Engine],
    clock: Clock,
    stop: threading.Event,
    report: Report,
    begin: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the triggers of all engines until every one is done, or until told to stop.

    While a server is away its sink is tried again and again; the others go on.
    """
    pauses: dict[str, _Pause] = {}
    while not stop.is_set():
        waiting = {name: engine for name, engine in engines.items() if not is_done(engine)}
        if not waiting:
            return
        name = _next(waiting, clock.now(), pauses)
        moment = _moment(waiting[name], pauses.get(name))
        if moment is not None:
            clock.wait(moment, stop)
            if stop.is_set():
                return
        begin(name)
        try:
            progress = waiting[name].step()
        except UnavailableError as problem:
            before = pauses.get(name)
            length = _PAUSE_US if before is None else min(2 * before.length, _PAUSE_US_MAX)
            pauses[name] = _Pause(clock.now() + length, length)
            report(name, problem)
        else:
            if not progress.missed:
                pauses.pop(name, None)
            report(name, progress)


def is_done(engine: Engine) -> bool:
    """Whether the last trigger has run: of the grid, or the one after standard input's end."""
    if engine.finished:
        return True
    ended = isinstance(engine.source, StandardInput) and engine.source.exhausted
    return ended and engine.published and engine.journal.pending() is None


def _moment(engine: Engine, pause: _Pause | None) -> int | None:
    """When an engine's next step is made; None: at once."""
    if pause is None:
        return engine.due
    return pause.until if engine.due is None else max(engine.due, pause.until)


def _next(engines: Mapping[str, Engine], now: int, pauses: Mapping[str, _Pause]) -> str:
    """What the clock has made due, else a replay, else what is due next."""

    def urgency(name: str) -> tuple[int, int]:
        moment = _moment(engines[name], pauses.get(name))
        if moment is None:
            return 1, engines[name].schedule.due(engines[name].next_trigger)
        return (0 if moment <= now else 2), moment

    return min(engines, key=urgency)
