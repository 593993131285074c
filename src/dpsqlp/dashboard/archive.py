"""Releases kept for the page: one Parquet file for each trigger, beside what is public of the plan.

The folder is `STATE/<sink>.releases`. A trigger that is published again leaves its file as it is.

Privacy contract: the folder holds released rows, public numbers and whether the run goes on. What
depends on other data is written by `OperatorLog` alone, into the state, and only when asked for.
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

from dpsqlp.dashboard.about import ABOUT, About
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.instance import description
from dpsqlp.errors import StateError
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.published import store_once
from dpsqlp.sql.release import FIXED
from dpsqlp.state.storage import LocalStorage

SUFFIX = ".releases"
STATUS = "status.json"
OPERATOR = "operator.json"
Status = Literal["running", "waiting", "finished", "stopped", "failed"]
_ROW_GROUP = 8192  # rows come in the order of keys: one key's course reads one group of each file


class Kept(Sink):
    """A sink that also keeps what it is given."""

    def __init__(self, sink: Sink, state: Path, name: str) -> None:
        self.folder = state / f"{name}{SUFFIX}"
        self._sink = sink
        self._name = name
        self._storage = LocalStorage(self.folder)
        self._said: Status | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._unwritten: dict[int, pa.Table] = {}  # published, and not kept yet

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Say whose releases they will be, and what tells their rows apart."""
        self._sink.open(pipeline, keys)

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release, then keep it: the page never shows more than the sink has.

        It is written while the pipeline goes on, and is there before the next one is kept. What
        could not be written stays in memory, and is tried again here and at the end.
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
        repeated = [n for n in release.column_names if n in FIXED or n.endswith("_sd")]
        pq.write_table(
            release,
            buffer,
            compression="zstd",
            row_group_size=_ROW_GROUP,
            use_dictionary=repeated,  # keys and values seldom repeat: trying takes half the time
        )
        store_once(self._storage, trigger, f"trigger-{trigger:012d}.parquet", buffer.getvalue())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Let go of connections, once all is written."""
        self._sink.close()
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        self._writing = None
        self._write_all()  # what the writer has left

    def describe(self, engine: Engine) -> None:
        """Say what is kept here. Releases of another pipeline are not mixed with these."""
        body = description(engine.journal.storage.plain)
        assert body is not None, "an open engine has a pipeline"
        about = About.of(self._name, engine.query, engine.plan, body["created"])
        before = About.read(self.folder)
        if before is not None and _identity(before) != _identity(about):
            raise StateError(
                f"{self.folder} keeps the releases of another pipeline. Move it away, or delete"
                " it, then run again."
            )
        self._storage.put(ABOUT, [about.describe()])

    def say(self, status: Status) -> None:
        """Whether the run goes on. An error's text may name files: it stays in the log."""
        self._wait()
        if status != self._said:
            self._storage.put(STATUS, [json.dumps({"status": status}).encode()])
            self._said = status


class OperatorLog:
    """What the operator asked to see of a run. Not private: it depends on every record."""

    def __init__(self, state: Path, name: str, engine: Engine) -> None:
        self._folder = state / name
        self._engine = engine
        self._opened = self._began = time.monotonic()

    def begin(self) -> None:
        """A trigger is about to run."""
        self._began = time.monotonic()

    def report(self, progress: Progress) -> None:
        """A trigger has run."""
        now = time.monotonic()
        schedule = self._engine.schedule
        lag = None
        if not schedule.on_event_time:
            lag = max(self._engine.clock.now() - schedule.due(progress.trigger), 0) / 1e6
        records = self._engine.records
        lasted = max(now - self._opened, 1e-9)
        files = (path for path in self._folder.rglob("*") if path.is_file())
        body = {
            "trigger": progress.trigger,
            "records": records,
            "records_per_second": None if records is None else records / lasted,
            "trigger_seconds": now - self._began,
            "lag_seconds": lag,
            "state_bytes": sum(_size(path) for path in files),
        }
        LocalStorage(self._folder).put(OPERATOR, [json.dumps(body).encode()])


def _identity(about: About) -> tuple[int, str]:
    return about.created, about.numbers["fingerprint"]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a delta that a snapshot has just replaced
        return 0
