"""A ledger in a file: write, fsync, rename, fsync the folder, under a lock of its own.

The lock is on the file `<name>.lock`, which is never replaced: a lock on the ledger itself would be
lost at the rename. Links are followed first, so that a ledger has one lock under all its paths.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dpsqlp.errors import StateError, UnavailableError
from dpsqlp.ledgers.base import Change
from dpsqlp.state.storage import TEMPORARY, LocalDisk

_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.01


class LedgerFile:
    """One file, shared by the processes of a machine."""

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.realpath(path))
        self._lock_path = self._path.with_name(self._path.name + ".lock")
        self._disk = LocalDisk()
        self.name = str(self._path)

    def read(self) -> str | None:
        """The text; None before the first. A rename replaces it whole, so no lock is needed."""
        try:
            return self._path.read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return ""  # which no ledger is
        except OSError as error:
            raise self._problem("read", error) from error

    def update(self, change: Change) -> None:
        """Replace the text by what `change` makes of it, durably."""
        with self._locked() as lock:
            before = self.read()
            after = change(before)
            temporary = self._path.with_name(self._path.name + TEMPORARY)
            try:
                if after == before:  # by a process that may have ended before it was durable
                    self._disk.sync(self._path)
                else:
                    self._disk.write(temporary, [after.encode("ascii")])
                    with suppress(FileNotFoundError):  # the first replaces none
                        shutil.copymode(self._path, temporary)
                    self._disk.sync(temporary)
                    self._check_lock(lock)
                    self._disk.rename(temporary, self._path)
                self._disk.sync_folder(self._path.parent)
            except OSError as error:
                raise self._problem("written", error) from error

    def close(self) -> None:
        """Nothing is open."""

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        """Hold the lock; wait for another process that has it."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with self._open_lock() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise UnavailableError(
                            f"Another process holds the lock of the ledger {self.name}. Nothing"
                            " was entered. End it if it hangs, then run again."
                        ) from None
                    time.sleep(_PAUSE_SECONDS)
                    continue
                if self._has_lock(file):  # else it was deleted since it was opened
                    yield file
                    return

    def _open_lock(self) -> TextIO:
        try:
            return self._lock_path.open("a")
        except OSError as error:  # a folder is not made: it may be a mount that is missing
            raise self._problem("locked", error) from error

    def _has_lock(self, file: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _check_lock(self, file: TextIO) -> None:
        if not self._has_lock(file):
            raise StateError(
                f"The lock of the ledger {self.name} was deleted while it was held. Nothing was"
                " entered. Leave the file to dpsqlp, and run again."
            )

    def _problem(self, done: str, error: OSError) -> StateError:
        return StateError(
            f"The ledger {self.name} could not be {done}: {error.strerror or error}. Nothing was"
            " released. The folder must exist, and the ledger and its lock must be writable;"
            " correct that, then run again."
        )
