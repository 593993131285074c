"""Run work in a new process, to measure its memory. Ctrl-C ends it with its parent."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from dpsqlp.errors import DpsqlpError

OnProgress = Callable[[int, int], None]  # how much is done, of how much
T = TypeVar("T")
_CONTEXT = multiprocessing.get_context("spawn")


def run_in_subprocess(work: Callable[..., T], *arguments: Any, on_progress: OnProgress) -> T:
    """Run `work(*arguments, on_progress)` in a new process and return its result."""
    here, there = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(there, work, arguments), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, value = here.recv()
            if kind == "done":
                return value  # type: ignore[no-any-return]
            if kind == "refused":
                raise DpsqlpError(value)
            on_progress(*value)
    except EOFError:
        process.join()
        raise DpsqlpError(
            f"A run ended unexpectedly with exit code {process.exitcode}. Code -9 often means too"
            " little memory: try fewer units or keys."
        ) from None
    finally:
        process.terminate()
        process.join()


def peak_memory_bytes() -> int:
    """The peak memory of this process.

    `ru_maxrss` would include the parent's memory at the time it started this process.
    """
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _child(there: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    try:
        there.send(("done", work(*arguments, lambda *done: there.send(("told", done)))))
    except DpsqlpError as error:
        there.send(("refused", str(error)))
