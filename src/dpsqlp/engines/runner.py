"""Several sinks of one script, run in one process: for each a worker, and a thread that cuts.

Privacy contract: a sink's triggers follow public time alone, and no sink waits for another, nor for
another's server. A sink that reads standard input is done once that has ended and its last lines
were run; who closes standard input decides that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.errors import UnavailableError

Report = Callable[[str, Progress | UnavailableError], None]
_PAUSE_US, _PAUSE_US_MAX = 250_000, 10_000_000
_NEVER = 1 << 62


def run_side_by_side(
    engines: Mapping[str, Engine],
    stop: threading.Event,
    report: Report,
    begin: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the triggers of all engines until every one is done, or until told to stop.

    While a server is away its sink is tried again and again. An error of one stops all.
    `report` and `begin` are called by one thread at a time.
    """
    turn, failures = threading.Lock(), list[BaseException]()

    def say(name: str, what: Progress | UnavailableError) -> None:
        with turn:
            report(name, what)

    def announce(name: str) -> None:
        with turn:
            begin(name)

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)
            stop.set()

    tasks: list[Callable[[], None]] = []
    for name, engine in engines.items():
        tasks.append(partial(_work, name, engine, stop, say, announce))
        if not engine.schedule.on_event_time:
            tasks.append(partial(engine.cuts.run, stop, partial(say, name)))
    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        for engine in engines.values():
            engine.cuts.news.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]


def is_done(engine: Engine) -> bool:
    """Whether the last trigger has run: of the grid, or the one after standard input's end."""
    return engine.finished or (engine.cuts.ended and not engine.ready)


def _work(
    name: str,
    engine: Engine,
    stop: threading.Event,
    report: Report,
    begin: Callable[[str], None],
) -> None:
    """Run an engine's triggers, each once its cut is decided."""
    pause = _PAUSE_US
    while not stop.is_set() and not is_done(engine):
        if not engine.ready:
            _wait_for_cut(engine, stop)
            continue
        begin(name)
        try:
            progress = engine.step()
        except UnavailableError as problem:
            report(name, problem)
            engine.clock.wait(engine.clock.now() + pause, stop)
            pause = min(2 * pause, _PAUSE_US_MAX)
        else:
            pause = _PAUSE_US
            report(name, progress)


def _wait_for_cut(engine: Engine, stop: threading.Event) -> None:
    """Return when another trigger is decided; raise what keeps the source from being cut."""
    cuts = engine.cuts
    cuts.news.clear()
    if engine.ready or stop.is_set():
        return
    if cuts.failure is not None:
        raise cuts.failure
    engine.clock.wait(_NEVER, cuts.news)
