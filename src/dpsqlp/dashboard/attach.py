"""The dashboard of a running pipeline: archives its releases and serves them in a subprocess."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dpsqlp.dashboard.archive import ArchivingSink, OperatorLog
from dpsqlp.dashboard.server import TOKEN_VARIABLE, Settings, check_installed
from dpsqlp.dashboard.server_process import serve_in_subprocess
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.runner import is_done
from dpsqlp.errors import UnavailableError
from dpsqlp.sinks.base import Sink


class Dashboard:
    """The dashboard of `dpsqlp run --dashboard`. It listens on loopback only."""

    def __init__(self, state: Path, *, port: int | None = None, operator: bool = False) -> None:
        check_installed()
        token = os.environ.get(TOKEN_VARIABLE)
        self._settings = Settings(str(state), port=port, token=token, operator=operator)
        self._state = state
        self._archives: dict[str, ArchivingSink] = {}
        self._logs: dict[str, OperatorLog] = {}
        self._waiting: dict[str, bool] = {}

    def archive(self, name: str, sink: Sink) -> Sink:
        """Wrap a sink so that its releases are archived."""
        self._archives[name] = ArchivingSink(sink, self._state, name)
        return self._archives[name]

    @contextmanager
    def serve(self, engines: Mapping[str, Engine]) -> Iterator[str]:
        """Serve while the context lasts and yield the address. `end` says that the run is over."""
        for name, engine in engines.items():
            self._archives[name].write_metadata(engine)
            self._archives[name].write_status("running")
            if self._settings.operator:
                self._logs[name] = OperatorLog(self._state, name, engine)
        try:
            with serve_in_subprocess(self._settings) as address:
                yield address
        except BaseException:
            for archive in self._archives.values():
                archive.write_status("failed")
            raise

    def end(self, engines: Mapping[str, Engine]) -> None:
        """Write how the run ended."""
        for name, engine in engines.items():
            self._archives[name].write_status("finished" if is_done(engine) else "stopped")

    def begin(self, name: str) -> None:
        """A trigger of a sink starts."""
        if name in self._logs:
            self._logs[name].begin()

    def report(self, name: str, what: Progress | UnavailableError) -> None:
        """A trigger of a sink ended, or waits for a server."""
        waited = self._waiting.get(name, False)
        waiting = isinstance(what, UnavailableError) or (what.missed and waited)
        if waiting or waited:
            self._archives[name].write_status("waiting" if waiting else "running")
        self._waiting[name] = waiting
        if name in self._logs and not isinstance(what, UnavailableError):
            self._logs[name].report(what)
