"""Work in a process of its own, so that its memory is its own. Ctrl-C ends it with its parent."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from dpsqlp.errors import DpsqlpError

Tell = Callable[[int, int], None]  # how much is done, of how much
T = TypeVar("T")
_CONTEXT = multiprocessing.get_context("spawn")


def run_in_subprocess(work: Callable[..., T], *arguments: Any, tell: Tell) -> T:
    """What `work(*arguments, tell)` returns, run in a new process."""
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
            tell(*value)
    except EOFError:
        process.join()
        raise DpsqlpError(
            f"A run ended by itself with code {process.exitcode}. Code -9 is often a lack of"
            " memory: try fewer units or keys."
        ) from None
    finally:
        process.terminate()
        process.join()


def peak_memory_bytes() -> int:
    """The most memory this process has had.

    Not `ru_maxrss`: that begins with what the parent had when it started this process.
    """
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _child(there: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    try:
        there.send(("done", work(*arguments, lambda *done: there.send(("told", done)))))
    except DpsqlpError as error:
        there.send(("refused", str(error)))
