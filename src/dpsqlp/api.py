"""The Python interface: open a query, feed it, read its releases.

    with dpsqlp.open("views.sql") as stream:
        stream.feed(frame)  # Arrow, pandas, Polars, or a dictionary of columns
        print(stream.trigger().table)

Privacy contract: releases are protected as `Stream.explain` says, whatever is fed. The times at
which `Stream.trigger` is called are not: choose them by the clock, never by looking at the records.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsqlp.engines.engine import Progress
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import (
    PlanError,
    SourceError,
    StateError,
    TriggerError,
    UnavailableError,
)
from dpsqlp.releases import ARCHIVE, History, Release, read
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sinks.files import FileSink
from dpsqlp.sinks.published import other_release, release_digest
from dpsqlp.sources.python_frames import PythonSource, arrow_table, history_is_fixed
from dpsqlp.sql import SinkDef, compile_script, explain_text, read_file
from dpsqlp.tuning.figures import Goal
from dpsqlp.tuning.preview import Preview, preview_query
from dpsqlp.tuning.script import Script
from dpsqlp.tuning.tune import Tuning, check_goal, default_goal, tune_query


def open(  # noqa: A001  read as dpsqlp.open
    sql: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    sink: str | None = None,
    tables: Mapping[str, Any] | None = None,
    threads: int = 2,
) -> Stream:
    """Open a query, given as text or as the path of an .sql file. An existing state is continued.

    The state is a folder; the secret is a file outside it, made if it does not exist. By default
    they lie beside the .sql file as `<stem>.state` and `<stem>.secret`; text needs `state`. `sink`
    names the sink if the script has several. `tables` are public tables by name.
    """
    text, file = read_script(sql)
    if state is None:
        if file is None:
            raise StateError(
                "The privacy budget that was spent must outlive the program, so the state needs a"
                " folder. Give it: open(sql, state='views.state')."
            )
        state = file.with_suffix(".state")
    state = Path(state)
    folder = Path() if file is None else file.parent
    public = {name: arrow_table(frame) for name, frame in (tables or {}).items()}
    program = compile_script(text, tables=public, folder=str(folder))
    chosen = choose(program.sinks, sink)
    session = _Session(_target(chosen, folder), state / f"{chosen.name}{ARCHIVE}")
    engine = open_engine(
        chosen,
        state=state,
        secret=state.with_suffix(".secret") if secret is None else Path(secret),
        folder=folder,
        output=session,
        threads=threads,
    )
    return Stream(chosen.name, engine, session)


def tune(
    sql: str | os.PathLike[str],
    sample: str | os.PathLike[str],
    *,
    sink: str | None = None,
    units: int | None = None,
    goal: Goal | None = None,
    candidates: int = 40,
    epsilons: Sequence[float] = (),
    intervals: Sequence[str] = (),
    tables: Mapping[str, Any] | None = None,
    seed: int = 1,
    threads: int = 2,
) -> Tuning:
    """Search the norm, the votes and the share of selection that suit a sample.

    `sample` names files that one may look at, with the columns of the source; `units` is the number
    of units of the real stream, drawn from the sample's. Options chosen by looking at the private
    stream itself are outside the promise.
    """
    script = _script(sql, tables, sink)
    wanted = goal or default_goal(script.sink.query)
    check_goal(script.sink.query, wanted)
    rows = script.sample_rows(os.fspath(sample), units=units, seed=seed, threads=threads)
    return tune_query(
        script.text,
        script.compiled,
        script.sink,
        rows,
        wanted,
        candidates=candidates,
        seed=seed,
        threads=threads,
        epsilons=epsilons,
        intervals=intervals,
        report=lambda *_: None,
    )


def preview(
    sql: str | os.PathLike[str],
    sample: str | os.PathLike[str],
    *,
    sink: str | None = None,
    units: int | None = None,
    tables: Mapping[str, Any] | None = None,
    seed: int = 1,
    threads: int = 2,
) -> Preview:
    """The table that a query would give on a sample, beside the truth: noise and cap bias apart."""
    script = _script(sql, tables, sink)
    rows = script.sample_rows(os.fspath(sample), units=units, seed=seed, threads=threads)
    return preview_query(script.sink, rows)


class Stream:
    """A running query. One process at a time holds its state: close it, or use `with`."""

    def __init__(self, name: str, engine: LocalEngine, session: _Session) -> None:
        """Take over an engine; a trigger that was cut off is finished first."""
        self.name = name
        self._engine = engine
        self._session = session
        self._closed: str | None = None
        self._stepping = threading.Lock()
        try:
            while engine.journal.pending() is not None or engine.cuts.waiting:
                self._step()
        except UnavailableError:
            engine.close()
            raise

    def feed(self, frame: Any) -> None:
        """Hand over records for the next trigger. Keep your copy until it has run.

        On event time, hand over all records before the first trigger.
        """
        engine = self._check_open()
        source = engine.source
        if not isinstance(source, PythonSource):
            raise SourceError(
                f"The source of {self.name} reads its records itself. To feed it, declare it with"
                " connector = 'python'."
            )
        if engine.schedule.on_event_time and engine.next_trigger > engine.schedule.first:
            raise history_is_fixed()
        source.push(frame)

    def trigger(self) -> Release:
        """Run the triggers that are due, and return the rows they released.

        Without a window, and on event time, the next trigger runs at once. With a window and the
        clock, every trigger that is due runs: missed triggers run empty, the last one reads the fed
        records; if none is due, TriggerError says when the next one is. An unpublished release is
        sent first.
        """
        engine = self._check_open()
        engine.check_unfinished()
        schedule = engine.schedule
        if schedule.on_event_time or engine.query.window is None:
            return self._session.last(self._step(engine.next_trigger))
        ran, last = [], schedule.current(engine.clock.now())
        last = last if schedule.last is None else min(last, schedule.last)
        while not engine.published or engine.next_trigger <= last:
            ran.append(self._session.last(self._step(last)))
        if not ran:
            raise TriggerError(
                f"No trigger is due. The next one is at {self.next_trigger_at:%Y-%m-%d %H:%M:%S}"
                " UTC (next_trigger_at): call trigger() then. Fed records wait for it."
            )
        told = [release.diagnostics for release in ran if release.diagnostics is not None]
        return Release(
            pa.concat_tables([release.table for release in ran]),
            ran[-1].trigger,
            pa.concat_tables(told) if told else None,
        )

    def run(self, frames: Iterable[Any] | None = None) -> list[Release]:
        """On event time, feed all frames and replay to the end; else trigger after each frame."""
        on_event_time = self._check_open().schedule.on_event_time
        if frames is None and not on_event_time:
            raise TriggerError(
                f"{self.name} runs by the clock, so run() would never end. Call trigger(), or"
                " replay files or frames: EMIT ... ON EVENT TIME."
            )
        releases = []
        for frame in frames or ():
            self.feed(frame)
            if not on_event_time:
                releases.append(self.trigger())
        while on_event_time and not self.finished:
            releases.append(self.trigger())
        return releases

    def releases(self) -> list[Release]:
        """All releases of this session; after a restart, also the last release before it."""
        return self._session.releases()

    def history(self) -> History:
        """All releases that Python has published of this state, as one table."""
        assert self._session.archive is not None
        return read(self._session.archive)

    def explain(self) -> str:
        """The privacy guarantee, in words."""
        return explain_text(self.name, self._engine.query, self._engine.plan)

    @property
    def next_trigger(self) -> int:
        """The trigger that runs next."""
        return self._engine.next_trigger

    @property
    def next_trigger_at(self) -> datetime:
        """The time on the grid of the trigger that runs next (UTC)."""
        due = self._engine.schedule.due(self.next_trigger)
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=due)

    @property
    def finished(self) -> bool:
        """Whether the last trigger has run."""
        return self._engine.finished

    def close(self) -> None:
        """Close the stream. Records fed since the last trigger are not kept."""
        self._close("The stream is closed. Open it again: it resumes where it stopped.")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "closed" if self._closed else f"next_trigger={self.next_trigger}"
        return f"Stream({self.name!r}, {closed}, finished={self.finished})"

    def _step(self, cut: int | None = None) -> Progress:
        """Run one trigger; if none is decided, cut the source for the trigger `cut` first.

        A failure may leave memory ahead of the disk, so the stream is closed then.
        """
        engine = self._engine
        if not self._stepping.acquire(blocking=False):
            raise TriggerError("Another thread is running a trigger of this stream. Wait for it.")
        try:
            if cut is not None and not engine.ready:
                engine.cut(cut)
            return engine.step()
        except UnavailableError:
            raise
        except BaseException:
            self._close(
                "A trigger failed. Open the stream again: a trigger that had begun runs first, with"
                " the records it had. Feed the records of later triggers again."
            )
            raise
        finally:
            self._stepping.release()

    def _close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
            self._engine.close()

    def _check_open(self) -> LocalEngine:
        if self._closed is not None:
            raise StateError(self._closed)
        return self._engine


class _Session(Sink):
    """A sink that passes releases on, and keeps them: the session's in memory, all in a folder."""

    def __init__(self, target: Sink | None, archive: Path | None) -> None:
        self.archive = archive
        self._target = target
        self._sinks: list[Sink] = [] if target is None else [target]
        if archive is not None:
            self._sinks.append(FileSink(archive, "parquet"))
        self._tables: dict[int, pa.Table] = {}
        self._second: _Session | None = None

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        for sink in self._sinks:
            sink.open(pipeline, keys)

    def diagnostics(self) -> _Session:
        """The second table: in memory and in the script's sink."""
        target = self._target
        self._second = _Session(None if target is None else target.diagnostics(), None)
        return self._second

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Keep a release, and pass it on."""
        known = self._tables.setdefault(trigger, release)
        if release_digest(known) != release_digest(release):
            raise other_release(trigger, "this session")
        for sink in self._sinks:
            sink.emit(trigger, release)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def last(self, progress: Progress) -> Release:
        """The release of a trigger that ran."""
        return self._release(progress.trigger)

    def releases(self) -> list[Release]:
        """All releases that were kept."""
        return [self._release(trigger) for trigger in self._tables]

    def _release(self, trigger: int) -> Release:
        second = None if self._second is None else self._second._tables.get(trigger)
        return Release(self._tables[trigger], trigger, second)


def read_script(sql: str | os.PathLike[str]) -> tuple[str, Path | None]:
    """The text, and the file that it is from, if any."""
    if isinstance(sql, str) and ("\n" in sql or not sql.strip().lower().endswith(".sql")):
        return sql, None
    file = Path(sql)
    return read_file(file), file


def _script(
    sql: str | os.PathLike[str], tables: Mapping[str, Any] | None, sink: str | None
) -> Script:
    """A script with the sink of this name, or the only one."""
    text, file = read_script(sql)
    folder = Path() if file is None else file.parent
    public = {name: arrow_table(frame) for name, frame in (tables or {}).items()}
    compiled = partial(compile_script, tables=public, folder=str(folder))
    program = compiled(text)
    return Script(text, compiled, program, choose(program.sinks, sink), folder)


def choose(sinks: tuple[SinkDef, ...], name: str | None, given: str = "as sink='...'") -> SinkDef:
    """The sink of this name, or the only one. `given` says how a name is."""
    known = {sink.name.lower(): sink for sink in sinks}
    if name is None and len(sinks) == 1:
        return sinks[0]
    if name is None or name.lower() not in known:
        got = "none was named" if name is None else f"got {name!r}"
        names = ", ".join(sink.name for sink in sinks)
        raise PlanError(f"The script has the sinks {names}; {got}. Give one {given}.")
    return known[name.lower()]


def _target(sink: SinkDef, folder: Path) -> Sink | None:
    """The sink for releases besides memory, if the script names one."""
    if sink.options.get("connector", "python") == "python":
        return None
    return make_sink(sink.name, sink.options, folder)
