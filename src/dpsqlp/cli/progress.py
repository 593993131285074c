"""Progress of a run on standard error: triggers and released rows.

Records per second depend on unreleased data. They are shown only with --metrics.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol, Self

from dpsqlp.cli.log import JsonLog, Log
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.errors import UnavailableError

_LINE_SECONDS = 1.0


class Display(AbstractContextManager["Display"], Protocol):
    """Shows progress while its context lasts."""

    def report(self, name: str, progress: Progress | UnavailableError) -> None:
        """A trigger of a sink has run, or a server is away."""

    def summary(self) -> list[str]:
        """One line per sink: triggers and released rows."""


def make_progress(
    engines: Mapping[str, Engine], log: Log, *, metrics: bool, printing: bool
) -> Display:
    """Bars on a terminal; lines otherwise, or if releases are printed to the terminal too."""
    if isinstance(log, JsonLog):
        return Lines(engines, log, metrics, seconds=0)
    terminal = sys.stderr.isatty() and not (printing and sys.stdout.isatty())
    return Bars(engines, log, metrics) if terminal else Lines(engines, log, metrics)


class Lines:
    """A line per trigger, at most one per second."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        log: Log,
        metrics: bool,
        seconds: float = _LINE_SECONDS,
    ) -> None:
        self._engines = engines
        self._log = log
        self._metrics = metrics
        self._began = time.monotonic()
        self._seconds = seconds
        self._last_line = -seconds
        self._away: dict[str, str] = {}  # the problem reported last, by sink
        self._rows = dict.fromkeys(engines, 0)
        self._triggers = dict.fromkeys(engines, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def report(self, name: str, progress: Progress | UnavailableError) -> None:
        """A trigger of a sink has run, or a server is away."""
        if isinstance(progress, UnavailableError):
            self._wait(name, str(progress))
            return
        if not progress.missed and self._away.pop(name, None) is not None:
            self._log.say("back", f"{name}: resumed", sink=name)
        self._rows[name] += progress.rows
        self._triggers[name] += 1
        self._show(name, progress)

    def summary(self) -> list[str]:
        """One line per sink: triggers and released rows."""
        return [
            f"{name}: ran {count(self._triggers[name], 'trigger')}, released"
            f" {count(self._rows[name], 'row')}"
            + (f", {self._records(name)}" if self._metrics else "")
            for name in self._engines
        ]

    def _wait(self, name: str, problem: str) -> None:
        """Log once that a server is away."""
        if self._away.get(name) != problem:
            self._away[name] = problem
            self._log.say("waiting", f"{name}: waiting. {problem}", sink=name)

    def _show(self, name: str, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last_line < self._seconds:
            return
        self._last_line = now
        self._log.say(
            "trigger",
            f"{name}: {self._note(name, progress)}",
            sink=name,
            trigger=progress.trigger,
            rows=progress.rows,
        )

    def _note(self, name: str, progress: Progress) -> str:
        note = f"{self._position(name, progress)}, {count(progress.rows, 'row')} released"
        return note + (f", {self._records(name)}" if self._metrics else "")

    def _position(self, name: str, progress: Progress) -> str:
        """The trigger's number of how many, or its time on the clock."""
        schedule = self._engines[name].schedule
        if schedule.last is None:
            return f"trigger of {moment(schedule.due(progress.trigger))}"
        number = progress.trigger - schedule.first + 1
        return f"trigger {number} of {schedule.last - schedule.first + 1}"

    def _records(self, name: str) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        engine = self._engines[name]
        assert engine.records is not None, "--metrics is refused on Spark"
        text = f"{engine.records / seconds:,.0f} records/s"
        if letters := engine.source.undecodable:
            text += f", {count(letters, 'dead letter')}"
        if engine.dropped:
            text += f", {count(engine.dropped, 'dropped row')}"
        return text


class Bars(Lines):
    """A bar for each sink."""

    def __init__(self, engines: Mapping[str, Engine], log: Log, metrics: bool) -> None:
        from rich import progress as bars
        from rich.console import Console

        super().__init__(engines, log, metrics)
        # Standard output is for releases: it is not redirected through the bars.
        self._bars = bars.Progress(
            bars.TextColumn("[bold]{task.description}"),
            bars.BarColumn(),
            bars.TextColumn("{task.fields[note]}"),
            bars.TimeElapsedColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks = {}
        for name, engine in engines.items():
            schedule = engine.schedule
            total = None if schedule.last is None else schedule.last - schedule.first + 1
            note = "waiting for the next trigger" if not schedule.on_event_time else ""
            done = engine.next_trigger - schedule.first
            self._tasks[name] = self._bars.add_task(name, total=total, completed=done, note=note)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def _wait(self, name: str, problem: str) -> None:
        self._away[name] = problem
        self._bars.update(self._tasks[name], note=f"waiting. {problem}")

    def _show(self, name: str, progress: Progress) -> None:
        done = progress.trigger - self._engines[name].schedule.first + 1
        self._bars.update(self._tasks[name], completed=done, note=self._note(name, progress))


def count(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def moment(time_us: int) -> str:
    """A time on the public clock."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
