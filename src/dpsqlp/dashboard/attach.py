"""A run that is watched: its releases are kept, and a server stands beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dpsqlp.dashboard.archive import Kept, OperatorLog
from dpsqlp.dashboard.process import TOKEN_VARIABLE, Settings, beside, check_installed
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.runner import is_done
from dpsqlp.errors import UnavailableError
from dpsqlp.sinks.base import Sink


class Watching:
    """What `dpsqlp run --dashboard` does besides running. On loopback alone."""

    def __init__(self, state: Path, *, port: int | None = None, operator: bool = False) -> None:
        check_installed()
        token = os.environ.get(TOKEN_VARIABLE)
        self._settings = Settings(str(state), port=port, token=token, operator=operator)
        self._state = state
        self._kept: dict[str, Kept] = {}
        self._logs: dict[str, OperatorLog] = {}
        self._waiting: dict[str, bool] = {}

    def kept(self, name: str, sink: Sink) -> Sink:
        """A sink whose releases are kept."""
        self._kept[name] = Kept(sink, self._state, name)
        return self._kept[name]

    @contextmanager
    def opened(self, engines: Mapping[str, Engine]) -> Iterator[str]:
        """Serve while the run lasts; the address. Afterwards the folders say how it ended."""
        for name, engine in engines.items():
            self._kept[name].describe(engine)
            self._kept[name].say("running")
            if self._settings.operator:
                self._logs[name] = OperatorLog(self._state, name, engine)
        try:
            with beside(self._settings) as address:
                yield address
        except BaseException:
            for kept in self._kept.values():
                kept.say("failed")
            raise
        for name, engine in engines.items():
            self._kept[name].say("finished" if is_done(engine) else "stopped")

    def begin(self, name: str) -> None:
        """A trigger of a sink is about to run."""
        if name in self._logs:
            self._logs[name].begin()

    def report(self, name: str, what: Progress | UnavailableError) -> None:
        """A trigger of a sink has run, or waits for a server."""
        waited = self._waiting.get(name, False)
        waiting = isinstance(what, UnavailableError) or (what.missed and waited)
        if waiting or waited:
            self._kept[name].say("waiting" if waiting else "running")
        self._waiting[name] = waiting
        if name in self._logs and not isinstance(what, UnavailableError):
            self._logs[name].report(what)
