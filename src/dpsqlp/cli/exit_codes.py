"""Exit codes, and errors that end a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dpsqlp.cli.log import Log

REFUSED = 1
INTERRUPTED = 130


@contextmanager
def errors_as_exit_codes(log: Log | None = None) -> Iterator[None]:
    """Turn errors into a message and an exit code, without a traceback."""
    from dpsqlp.cli.log import TextLog
    from dpsqlp.errors import DpsqlpError

    log = log or TextLog()
    try:
        yield
    except DpsqlpError as error:
        log.say("refused", str(error))
        raise typer.Exit(REFUSED) from None
    except BrokenPipeError:
        log.say("refused", "Standard output was closed. Run the same command to resume.")
        raise typer.Exit(REFUSED) from None
    except OSError as error:
        log.say("refused", f"{error.filename or 'A file'}: {error.strerror or error}.")
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        log.say("interrupted", "Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
