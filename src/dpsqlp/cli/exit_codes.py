"""What ends a command early, as a message and an exit code."""

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
def refusals(log: Log | None = None) -> Iterator[None]:
    """Refusals as a message and an exit code, not a traceback."""
    from dpsqlp.cli.log import Sentences
    from dpsqlp.errors import DpsqlpError

    log = log or Sentences()

    try:
        yield
    except DpsqlpError as error:
        log.say("refused", str(error))
        raise typer.Exit(REFUSED) from None
    except BrokenPipeError:
        log.say("refused", "Nobody reads standard output any more. The same command goes on.")
        raise typer.Exit(REFUSED) from None
    except OSError as error:
        log.say("refused", f"{error.filename or 'A file'}: {error.strerror or error}.")
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        log.say("interrupted", "Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
