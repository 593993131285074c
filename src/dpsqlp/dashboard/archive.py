"""The archive of releases: one Parquet file per trigger, public metadata, the status of the run.

The archive of a sink is the folder `STATE/<sink>.releases`. Publishing a trigger again does not
change its file.

Privacy contract: the archive holds released rows, public metadata and the status of the run. Only
`OperatorLog` writes anything that depends on other data, into the state, and only on request.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.dashboard.metadata import METADATA, Metadata
from dpsqlp.dashboard.release_files import parquet_name
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.instance import description
from dpsqlp.errors import StateError
from dpsqlp.releases import ARCHIVE
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.formats import repeated_columns
from dpsqlp.sinks.published import store_once
from dpsqlp.state.storage import LocalStorage

SUFFIX = ARCHIVE
STATUS = "status.json"
OPERATOR = "operator.json"
Status = Literal["running", "waiting", "finished", "stopped", "failed"]
_ROW_GROUP = 8192  # rows are sorted by key: one key's series reads one group of each file


class ArchivingSink(Sink):
    """Archives every release that another sink publishes."""

    def __init__(self, sink: Sink, state: Path, name: str) -> None:
        self.folder = state / f"{name}{SUFFIX}"
        self._sink = sink
        self._name = name
        self._storage = LocalStorage(self.folder)
        self._status: Status | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._unwritten: dict[int, pa.Table] = {}  # published, not archived yet

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Open the wrapped sink."""
        self._sink.open(pipeline, keys)

    def diagnostics(self) -> Sink:
        """The second table of the wrapped sink; it is not archived."""
        return self._sink.diagnostics()

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release, then archive it: the dashboard never shows more than the sink has.

        The file is written while the pipeline continues, and before the next release is archived.
        A release that could not be written stays in memory and is retried by the next call and by
        `close`.
        """
        self._sink.emit(trigger, release)
        self._unwritten[trigger] = release
        self._wait()
        self._writer = self._writer or ThreadPoolExecutor(1)
        self._writing = self._writer.submit(self._write_all)

    def _write_all(self) -> None:
        for trigger, release in list(self._unwritten.items()):
            self._write(trigger, release)
            del self._unwritten[trigger]

    def _write(self, trigger: int, release: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(
            release,
            buffer,
            compression="zstd",
            row_group_size=_ROW_GROUP,
            use_dictionary=repeated_columns(release),
        )
        store_once(self._storage, trigger, parquet_name(trigger), buffer.getvalue())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Close the wrapped sink and write every release that is still in memory."""
        self._sink.close()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        self._writing = None
        self._write_all()  # releases that the writer could not write

    def write_metadata(self, engine: Engine) -> None:
        """Write the metadata. An archive of another pipeline is refused."""
        body = description(engine.journal.storage.plain)
        assert body is not None, "an open engine has a pipeline"
        metadata = Metadata.of(self._name, engine.query, engine.plan, body["created"])
        before = Metadata.read(self.folder)
        if before is not None and _identity(before) != _identity(metadata):
            raise StateError(
                f"{self.folder} is the archive of another pipeline. Move or delete it, then run"
                " again."
            )
        self._storage.put(METADATA, [metadata.to_json()])

    def write_status(self, status: Status) -> None:
        """Write the status of the run. An error's text may name files, so only the log has it."""
        self._wait()
        if status != self._status:
            self._storage.put(STATUS, [json.dumps({"status": status}).encode()])
            self._status = status


class OperatorLog:
    """Operator metrics of a run. NOT PRIVATE: they depend on every record."""

    def __init__(self, state: Path, name: str, engine: Engine) -> None:
        self._folder = state / name
        self._engine = engine
        self._opened = self._began = time.monotonic()

    def begin(self) -> None:
        """A trigger starts."""
        self._began = time.monotonic()

    def report(self, progress: Progress) -> None:
        """A trigger ended: write its metrics."""
        now = time.monotonic()
        schedule = self._engine.schedule
        lag = None
        if not schedule.on_event_time:
            lag = max(self._engine.clock.now() - schedule.due(progress.trigger), 0) / 1e6
        records = self._engine.records
        elapsed = max(now - self._opened, 1e-9)
        files = (path for path in self._folder.rglob("*") if path.is_file())
        body = {
            "trigger": progress.trigger,
            "records": records,
            "records_per_second": None if records is None else records / elapsed,
            "trigger_seconds": now - self._began,
            "lag_seconds": lag,
            "state_bytes": sum(_size(path) for path in files),
        }
        LocalStorage(self._folder).put(OPERATOR, [json.dumps(body).encode()])


def _identity(metadata: Metadata) -> tuple[int, str]:
    return metadata.created, metadata.numbers["fingerprint"]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a delta that a snapshot has just replaced
        return 0
