"""Durable storage: four calls and a lock.

A put is atomic and durable: when it returns, the whole object is stored; after a crash during it,
either the old object or the new one is. Nothing else is asked of a store, so an object store
suffices (`remote`). Names are relative paths with forward slashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from dpsqlp.entropy.secret import new_name
from dpsqlp.errors import StateError

TEMPORARY = ".writing"


class Storage(Protocol):
    """A flat space of named objects."""

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""

    def get(self, name: str) -> bytes | None:
        """The object, or None."""

    def list(self) -> list[str]:
        """All names."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep out a second writer while the context lasts."""


class Disk(Protocol):
    """The operations of a file system; tests have a disk that forgets what is not durable."""

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Write a new file, not yet durable; folders are made as needed."""

    def sync(self, path: Path) -> None:
        """Make a file's contents durable."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace a name, not yet durable."""

    def sync_folder(self, folder: Path) -> None:
        """Make a folder's names durable, and those of the folders made for it."""

    def read(self, path: Path) -> bytes | None:
        """A file's contents, or None."""

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""

    def list(self, root: Path) -> list[Path]:
        """All files below a folder."""

    def lock(self, path: Path) -> contextlib.AbstractContextManager[None]:
        """Hold an exclusive lock, or raise BlockingIOError."""


Holder = tuple[int, int, int]  # process id, and device and inode of the lock file
_HOLDERS: set[Holder | None] = set()  # the locks of this process, to tell who else holds one


class LocalStorage:
    """A folder: write, fsync, rename, fsync the folder."""

    def __init__(self, root: Path, disk: Disk | None = None, *, shared: bool = False) -> None:
        """`shared`: another process may write the same objects at the same time."""
        self.root = root
        self._disk = disk or LocalDisk()
        self._suffix = f".{new_name()}{TEMPORARY}" if shared else TEMPORARY
        self._held: Holder | None = None

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""
        if self._held is not None and self._holder() != self._held:
            raise StateError(
                f"This process has lost the lock of the state in {self.root}: the folder was moved,"
                " its lock deleted, or the process forked. Nothing was written. Open the pipeline"
                " again, in one process."
            )
        target = self.root / name
        temporary = target.with_name(target.name + self._suffix)
        try:
            self._disk.write(temporary, parts)
            self._disk.sync(temporary)
            self._disk.rename(temporary, target)
            self._disk.sync_folder(target.parent)
        except OSError as error:
            raise StateError(
                f"{target} could not be written: {error.strerror or error}. Nothing was published"
                " that is not on disk. Make room or repair the disk, then run again."
            ) from error

    def get(self, name: str) -> bytes | None:
        """The object, or None."""
        return self._disk.read(self.root / name)

    def list(self) -> list[str]:
        """All names, half-written ones included."""
        paths = (path.relative_to(self.root).as_posix() for path in self._disk.list(self.root))
        return sorted(name for name in paths if name != "lock")

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        self._disk.remove(self.root / name)

    def _holder(self) -> Holder | None:
        """This process and the lock file. After a fork the process differs; after a move or a
        deletion the file does.
        """
        try:
            lock = (self.root / "lock").stat()
        except FileNotFoundError:
            return None
        return os.getpid(), lock.st_dev, lock.st_ino

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep out a second writer while the context lasts."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._disk.lock(self.root / "lock"))
            except BlockingIOError as error:
                if self._holder() in _HOLDERS:
                    raise StateError(
                        f"This process has the state in {self.root} open already, perhaps in an"
                        " earlier cell of a notebook. One writer at a time: close that one first"
                        " (stream.close()), or go on with it."
                    ) from error
                raise StateError(
                    f"Another process is running on the state in {self.root}. One writer at a time:"
                    " stop that one first."
                ) from error
            self._held = self._holder()
            held = {self._held} - {None}  # a disk of a test has no lock file
            _HOLDERS.update(held)
            try:
                yield
            finally:
                _HOLDERS.difference_update(held)
                self._held = None


class LocalDisk:
    """The machine's file system."""

    def __init__(self) -> None:
        self._made: set[Path] = set()  # folders whose names are not durable yet

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Write a new file, not yet durable; folders are made as needed."""
        self._make(path.parent, 0o777)
        with path.open("wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[file.write(view) :]

    def sync(self, path: Path) -> None:
        """Make a file's contents durable."""
        _fsync(path)

    def rename(self, source: Path, target: Path) -> None:
        """Replace a name, not yet durable."""
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        """Make a folder's names durable, and those of the folders made for it."""
        _fsync(folder)
        while folder in self._made:
            self._made.discard(folder)  # another thread may do the same
            folder = folder.parent
            _fsync(folder)

    def read(self, path: Path) -> bytes | None:
        """A file's contents, or None."""
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def list(self, root: Path) -> list[Path]:
        """All files below a folder."""
        return [path for path in root.rglob("*") if path.is_file()]

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Hold an exclusive lock, or raise BlockingIOError. New folders are the owner's alone."""
        self._make(path.parent, 0o700)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def _make(self, folder: Path, mode: int) -> None:
        for missing in (folder, *folder.parents):
            if missing.is_dir():
                break
            self._made.add(missing)
        folder.mkdir(mode, parents=True, exist_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
