"""The command line."""

from __future__ import annotations


def main() -> None:
    """Run `dpsqlp`."""
    from dpsqlp.cli.app import app

    app(prog_name="dpsqlp")
