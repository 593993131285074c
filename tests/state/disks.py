"""A disk that forgets what was not synced, fills up, and crashes where it is told to."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path


class Crash(BaseException):
    """The power goes out. No handler of the package may catch it."""


class FakeDisk:
    """Files in memory. `crash` keeps only what was made durable: contents by `sync`, names by
    `sync_folder`; a file whose contents were not synced comes back torn."""

    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}  # as the process sees it
        self.synced: set[Path] = set()  # files whose present contents are durable
        self.durable: dict[Path, bytes] = {}  # what a crash leaves
        self.steps = 0
        self.crash_at: int | None = None
        self.room: int | None = None  # bytes that may still be written
        self.written = 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash

    def crash(self) -> None:
        """Lose what was not durable."""
        self.contents = dict(self.durable)
        self.synced = set(self.contents)
        self.crash_at = None

    def write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        self._step()
        data = b"".join(bytes(part) for part in parts)
        if self.room is not None and len(data) > self.room:
            self.contents[path] = data[: self.room]
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.room is not None:
            self.room -= len(data)
        self.written += len(data)
        self.contents[path] = data
        self.synced.discard(path)

    def sync(self, path: Path) -> None:
        self._step()
        self.synced.add(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        self.contents[target] = self.contents.pop(source)
        if source in self.synced:
            self.synced.remove(source)
            self.synced.add(target)
        else:
            self.synced.discard(target)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        for path in {*self.durable, *self.contents}:
            if path.parent != folder:
                continue
            if path not in self.contents:
                del self.durable[path]
            elif path in self.synced:
                self.durable[path] = self.contents[path]
            else:
                self.durable[path] = self.contents[path][: len(self.contents[path]) // 2]

    def read(self, path: Path) -> bytes | None:
        return self.contents.get(path)

    def remove(self, path: Path) -> None:
        self._step()
        self.contents.pop(path, None)

    def list(self, root: Path) -> list[Path]:
        return [path for path in self.contents if root in path.parents]

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        yield
