"""`dpsqlp serve`: the dashboard of a state or a sink."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dpsqlp.dashboard.server import (
    TOKEN_VARIABLE,
    Settings,
    address,
    check_installed,
    listen,
    serve,
)


def serve_page(
    path: Path,
    host: str,
    port: int | None,
    token: str | None,
    names: tuple[str, ...],
    operator: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM; then temporary copies are removed."""
    check_installed()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if token is None:  # typer ignores a variable that is set but empty
        token = os.environ.get(TOKEN_VARIABLE)
    settings = Settings(str(path.resolve()), host, port, token, names, operator)
    with listen(settings) as bound:
        serve(
            settings, bound, ready=lambda: _say(f"Dashboard: {address(bound)}  (Ctrl-C stops it)")
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
