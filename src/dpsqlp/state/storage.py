"""Where durable bytes live: four calls.

A put is atomic and durable: after it returns the whole object is there, after a crash during it
either the old object or the new one is. Nothing else is asked of a store, so an object store will
do. Names are relative paths with forward slashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dpsqlp.errors import StateError

_TEMPORARY = ".writing"


class Storage(Protocol):
    """A flat space of named objects."""

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""

    def get(self, name: str) -> bytes | None:
        """The object, or None."""

    def list(self) -> list[str]:
        """All names."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep out a second writer while the context lasts."""


class LocalStorage:
    """A folder: write, fsync, rename, fsync the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""
        target = self.root / name
        self._make_folder(target.parent)
        temporary = target.with_name(target.name + _TEMPORARY)
        with temporary.open("wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)

    def get(self, name: str) -> bytes | None:
        """The object, or None."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def list(self) -> list[str]:
        """All names."""
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_file() and path.name != "lock"
        )

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        (self.root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep out a second writer while the context lasts."""
        self._make_folder(self.root)
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StateError(
                    f"Another process is running on the state in {self.root}. One writer at a"
                    " time: stop that one first."
                ) from error
            yield

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
