"""The command line."""

from __future__ import annotations

import signal


def main() -> None:
    """Run `dpsqlp`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell script: Ctrl-C is for the foreground. While SIGINT is blocked,
        # it cannot reach a handler that a library installs.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from dpsqlp.cli.app import app

    app(prog_name="dpsqlp")
