"""The command line."""

from __future__ import annotations

import signal


def main() -> None:
    """Run `dpsqlp`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's background job: Ctrl-C is meant for the script in front. Blocked, it cannot
        # reach a handler that a library installs.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from dpsqlp.cli.app import app

    app(prog_name="dpsqlp")
