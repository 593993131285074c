"""Run the sinks of one script in one process: each has a worker, and a thread that cuts.

Privacy contract: a sink's triggers follow public time alone. No sink waits for another, nor for
another's server. A sink that reads standard input is done when standard input has ended and its
last lines have run; the sender decides when that is.
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
# Only the main thread runs Python's signal handlers. If the system gives a signal to another
# thread, nothing wakes the main thread.
_SIGNAL_SECONDS = 0.5


def run_side_by_side(
    engines: Mapping[str, Engine],
    stop: threading.Event,
    report: Report,
    begin: Callable[[str], None] = lambda name: None,
) -> None:
    """Run the triggers of all engines until every engine is done, or until `stop` is set.

    A sink whose server is away is retried. Any other error of one sink stops all of them. `report`
    and `begin` are called by one thread at a time.
    """
    turn, failures = threading.Lock(), list[BaseException]()

    def report_alone(name: str, event: Progress | UnavailableError) -> None:
        with turn:
            report(name, event)

    def begin_alone(name: str) -> None:
        with turn:
            begin(name)

    def stop_all_on_error(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)
            stop.set()

    tasks: list[Callable[[], None]] = []
    for name, engine in engines.items():
        tasks.append(partial(_work, name, engine, stop, report_alone, begin_alone))
        if not engine.schedule.on_event_time:
            tasks.append(partial(engine.cuts.run, stop, partial(report_alone, name)))
    threads = [threading.Thread(target=stop_all_on_error, args=(task,)) for task in tasks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_SIGNAL_SECONDS)
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
    """Whether the last trigger has run: the grid's, or the one after the end of standard input."""
    return engine.finished or (engine.cuts.ended and not engine.ready)


def _work(
    name: str,
    engine: Engine,
    stop: threading.Event,
    report: Report,
    begin: Callable[[str], None],
) -> None:
    """Run an engine's triggers, each when its cut is decided."""
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
    if engine.finished and engine.plan.last_trigger and not engine.schedule.on_event_time:
        engine.check_unfinished()  # by the clock, nobody expects an end


def _wait_for_cut(engine: Engine, stop: threading.Event) -> None:
    """Return when another trigger is decided; raise the error that ended the cuts."""
    cuts = engine.cuts
    cuts.news.clear()  # what it told until now is looked at below
    if engine.ready or stop.is_set() or is_done(engine):
        return
    if cuts.failure is not None:
        raise cuts.failure
    engine.clock.wait(_NEVER, cuts.news)
