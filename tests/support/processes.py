"""Processes that tests start. They end with the test however it ends, and the signals that a test
sends mean to them what they mean in a terminal, however the suite itself was started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WAIT_SECONDS = 300.0  # what a test waits for has happened by then on any machine, or never will

# A shell's background job ignores SIGINT, nohup ignores SIGHUP, and children inherit both. The
# program takes the launcher's place and pid; `preexec_fn` may deadlock where there are threads.
_LAUNCHER = """
import os, signal, sys
for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), getattr(signal, sys.argv[1]))
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execvp(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def started(
    command: Sequence[str], *, ignoring: bool = False, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process in a session of its own, ended with all below it; its pipes are closed."""
    process = launch(command, ignoring=ignoring, **options)
    try:
        yield process
    finally:
        end(process)


def launch(
    command: Sequence[str], *, ignoring: bool = False, **options: Any
) -> subprocess.Popen[Any]:
    """A process to be given to `end`. `ignoring`: as a script's background job under nohup."""
    disposition = "SIG_IGN" if ignoring else "SIG_DFL"
    launcher = [sys.executable, "-ISc", _LAUNCHER, disposition]
    return subprocess.Popen([*launcher, *command], start_new_session=True, **options)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all below it, and close its pipes."""
    below = descendants(process.pid)  # some may have groups of their own
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also those whose parent has ended
    for pid in below:
        kill(pid)
    process.wait(WAIT_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what was not yet written has no reader
                stream.close()


def until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait for something to become true, while a process lives."""
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)


def descendants(pid: int, named: str = "") -> list[int]:
    """The processes below one, those whose command says `named`."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, found = {pid}, []
    while new := {child for child, parent in parents.items() if parent in below} - below:
        below |= new
    for child in below - {pid}:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if named in command:
            found.append(child)
    return sorted(found)


def kill(pid: int) -> None:
    """End a process now, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
