"""What ends a command early, as a message and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

REFUSED = 1
INTERRUPTED = 130


@contextmanager
def refusals() -> Iterator[None]:
    """Refusals as a message and an exit code, not a traceback."""
    from dpsqlp.errors import DpsqlpError

    try:
        yield
    except DpsqlpError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    except OSError as error:
        print(f"{error.filename or 'A file'}: {error.strerror or error}.", file=sys.stderr)
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
