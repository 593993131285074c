"""A process that runs a pipeline in forked children, to be killed. Everything is imported once.

Reads one JSON object a line: folder (with query.sql, state, secret), kill_at (the number of the
disk step before which the child kills itself), file_bytes (the largest file it may write), now (a
standing clock: what is due by then is run), hold (open the state and wait). Answers
with the child's pid and, after an empty line, with its wait status. A child leaves its disk steps
in steps.txt and an error in error.txt.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsqlp.accounting.model import CalibratedProcess, Process
from dpsqlp.core import Core
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.runner import run_side_by_side
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import DpsqlpError
from dpsqlp.plan import Plan
from dpsqlp.sql import compile_script
from dpsqlp.stages.admit import MicroBatch
from dpsqlp.state import shards
from dpsqlp.state.storage import LocalDisk, LocalStorage
from state.disks import FakeDisk
from state.sealed_storages import opened_journal
from support.plans import COUNT, SECRET, make_closing, make_plan


class Standing:
    """A clock that stands still."""

    def __init__(self, time: int) -> None:
        self._time = time

    def now(self) -> int:
        return self._time

    def wait(self, until: int, stop: threading.Event) -> None:
        raise NotImplementedError


class Steps:
    """Counts the disk's steps, and dies at one of them; a write dies half way."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.names: list[str] = []
        self._lock = threading.Lock()
        self._local = threading.local()

    def install(self) -> None:
        """Wrap the package's disk."""
        for name in ("write", "sync", "rename", "sync_folder", "remove"):
            self._wrap(name, getattr(LocalDisk, name))

    def _wrap(self, name: str, original: Any) -> None:
        def step(disk: LocalDisk, path: Path, *rest: Any) -> Any:
            if name != "sync_folder":
                self._local.path = rest[0] if name == "rename" else path
            with self._lock:
                self.names.append(f"{name} {self._local.path}")
                if len(self.names) == self.kill_at:
                    if name == "write":
                        original(disk, path, _half(rest[0]))
                    os.kill(os.getpid(), signal.SIGKILL)
            return original(disk, path, *rest)

        setattr(LocalDisk, name, step)


def _half(parts: Sequence[bytes | memoryview]) -> list[bytes]:
    data = b"".join(bytes(part) for part in parts)
    return [data[: len(data) // 2]]


def run(command: dict[str, Any]) -> None:
    """What a child does."""
    folder = Path(command["folder"])
    steps = Steps(command.get("kill_at"))
    steps.install()
    if command.get("file_bytes"):
        limit = command["file_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    (sink,) = compile_script((folder / "query.sql").read_text(), folder=str(folder)).sinks
    clock = Standing(command["now"]) if "now" in command else None
    try:
        engine = open_engine(
            sink, state=folder / "state", secret=folder / "secret", folder=folder, clock=clock
        )
        if command.get("hold"):
            (folder / "holds").touch()
            signal.pause()
        if clock is None:
            run_side_by_side({"t": engine}, threading.Event(), lambda *_: None)
        else:
            _run_due(engine)
        engine.close()
    except DpsqlpError as error:
        if not command.get("file_bytes"):
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(3 if "File too large" in str(error) else 2)
    if not command.get("file_bytes"):
        (folder / "steps.txt").write_text("\n".join(steps.names))


def _run_due(engine: LocalEngine) -> None:
    last = engine.schedule.current(engine.clock.now())
    while not engine.published or engine.next_trigger <= last:
        if not engine.ready:
            engine.cut(last)
        engine.step()


def warm() -> None:
    """Load compiled code, in one thread and without a database, so that children have it."""
    amount = CalibratedProcess(Process("sum", "sum", 0, -2.0, 8.0), "process/1", 0.8, 0.5)
    plan = make_plan(4, stride=2, threshold=2, sigma=0.8, processes=[COUNT, amount])
    closes = make_plan(4, threshold=99, processes=[COUNT, amount], closing=make_closing(1))
    for each, triggers in ((plan, 8), (closes, 4)):
        _run_nowhere(replace(each, unit_kinds=("text",), key_kinds=("text",)), triggers)


def _run_nowhere(plan: Plan, triggers: int) -> None:
    storage = LocalStorage(Path("/nowhere"), FakeDisk())
    batch = MicroBatch(
        (pa.array(["a", "b", "c"]),),
        (pa.array(["k"] * 3),),
        pa.array([0, 0, 0]),
        pa.array([1, 2, 3]),
        (pa.array([1.0, None, 2.0]),),
    )
    for trigger in range(1, triggers + 1):
        core = Core(plan, SECRET)
        log = opened_journal(storage, core, SECRET, 2)
        state = log.load()
        step = core.compute(state, core.admit(batch, trigger))
        log.commit(log.save(state, step), b"", None)


def main() -> None:
    """Fork a child for each command; reap it when told, so that its pid stays its own."""
    shards._SNAPSHOT_FILES = 2  # snapshots come often enough to be seen
    warm()
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(command)
                status = 0
            finally:
                os._exit(status)
        print(pid, flush=True)
        sys.stdin.readline()
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
