"""State on an object store (S3, GCS, Azure), through `pyarrow.fs`.

A put is one object, which such a store shows when it is closed. A large object whose upload fails
may be left torn; no manifest names it, and the trigger that runs again writes it again. Small
objects (intent, manifest) go in one request, whole or not at all. A lease, which its owner renews
and everybody can read, keeps out a second writer. Without compare-and-swap that is not certain; two
writers that begin within a moment of each other both notice, and stop.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs

from dpsqlp.entropy.secret import new_name
from dpsqlp.errors import StateError
from dpsqlp.state.storage import LocalStorage, Storage

_LEASE = "lease.json"
_LEASE_SECONDS = 60.0
_SETTLING_SECONDS = 2.0


def storage_at(location: str, *, shared: bool = False) -> Storage:
    """The storage at a path or URI. `shared`: other processes may write the same objects."""
    if "://" not in location:
        return LocalStorage(Path(location), shared=shared)
    try:
        filesystem, root = fs.FileSystem.from_uri(location)
    except (OSError, pa.ArrowException) as error:
        raise StateError(f"The state {location} cannot be reached: {error}") from error
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalStorage(Path(root), shared=shared)
    if isinstance(filesystem, fs.HadoopFileSystem):
        raise StateError(
            f"The state {location} would lie on HDFS, where a file cannot be replaced in one step."
            " Use an object store, or a folder that all machines mount."
        )
    return ObjectStorage(filesystem, root)


def below(location: str, name: str) -> str:
    """The location of a folder below a location; a URI's query stays at its end."""
    path, mark, query = location.partition("?") if "://" in location else (location, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


class LeaseClock:
    """The machine's time, by which a lease is renewed and runs out."""

    def wall(self) -> float:
        """Seconds since 1970, which other machines have too."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go on."""
        return time.monotonic()

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        """Wait, at most until `ended` is set; whether it is."""
        return ended.wait(seconds)


_MACHINE = LeaseClock()


class ObjectStorage:
    """A prefix of an object store."""

    def __init__(self, filesystem: fs.FileSystem, root: str, clock: LeaseClock = _MACHINE) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._clock = clock
        self._owner: str | None = None  # of the lease, while this process holds it
        self._renewed = 0.0

    def put(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Store the concatenation of parts under a name, atomically and durably."""
        if self._owner is not None and name != _LEASE:
            self._check_lease()  # after a long pause another process may hold it
        with (
            _told(f"{self._root}/{name}"),
            self._filesystem.open_output_stream(f"{self._root}/{name}", compression=None) as stream,
        ):
            for part in parts:
                stream.write(part)

    def get(self, name: str) -> bytes | None:
        """The object, or None."""
        try:
            with self._filesystem.open_input_stream(
                f"{self._root}/{name}", compression=None
            ) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def list(self) -> list[str]:
        """All names."""
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        with _told(self._root):
            infos = self._filesystem.get_file_info(selector)
        paths = (info.path for info in infos if info.type == fs.FileType.File)
        names = (path.removeprefix(f"{self._root}/") for path in paths)
        return sorted(name for name in names if name != _LEASE)

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        with contextlib.suppress(FileNotFoundError), _told(f"{self._root}/{name}"):
            self._filesystem.delete_file(f"{self._root}/{name}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep out a second writer while the context lasts."""
        held_by, until = self._lease()
        if held_by is not None and until > self._clock.wall():
            raise self._another()
        self._owner = new_name()
        self._renewed = self._clock.monotonic()
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(ended,), daemon=True)
        try:
            self._renew()
            # A writer that began at the same moment has overwritten the lease after this wait.
            self._clock.wait(_SETTLING_SECONDS, ended)
            self._check_lease()
            renewing.start()
            yield
        finally:
            ended.set()
            if renewing.is_alive():
                renewing.join()
            if self._lease()[0] == self._owner:
                self.delete(_LEASE)
            self._owner = None

    def _renew_until(self, ended: threading.Event) -> None:
        while not self._clock.wait(_LEASE_SECONDS / 4, ended):
            # If the store is away, or another process has the lease, `put` refuses.
            with contextlib.suppress(StateError):
                self._check_lease()
                self._renew()

    def _renew(self) -> None:
        began = self._clock.monotonic()
        lease = {"owner": self._owner, "until": self._clock.wall() + _LEASE_SECONDS}
        self.put(_LEASE, [json.dumps(lease).encode()])
        self._renewed = began

    def _lease(self) -> tuple[str | None, float]:
        """The owner of the lease, and its end."""
        data = self.get(_LEASE)
        if data is None:
            return None, 0.0
        lease = json.loads(data)
        return lease["owner"], lease["until"]

    def _check_lease(self) -> None:
        too_late = self._clock.monotonic() - self._renewed > 0.75 * _LEASE_SECONDS
        if too_late or self._lease()[0] != self._owner:  # another process may hold it, or soon will
            raise self._another()

    def _another(self) -> StateError:
        return StateError(
            f"Another process is running on the state in {self._root}, or has crashed. If it"
            f" crashed, wait {_LEASE_SECONDS:g} seconds. Only one writer is allowed."
        )


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Name the object on which a store failed, and what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateError(
            f"{name} could not be reached: {error}. Nothing was published that is not stored."
            " Repair the store or its permissions, then run again."
        ) from error
