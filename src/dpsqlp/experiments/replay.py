"""A run of the whole system: files, the local engine with durable state, and a Parquet sink."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsqlp.engines.instance import create_instance
from dpsqlp.engines.script import open_engine
from dpsqlp.engines.secret_file import load_secret
from dpsqlp.experiments import subprocesses
from dpsqlp.experiments.histogram import errors, keys_by, released_keys
from dpsqlp.experiments.task import SINK, Options, Stream, plan_of, script
from dpsqlp.sql import compile_script
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage

ReportProgress = Callable[[str, int, int], None]  # what is running; how much is done, of how much


@dataclass(frozen=True, slots=True)
class RunCost:
    """Time and memory of a run, from opening the state to closing it, including loading kernels."""

    seconds: float
    trigger_seconds: tuple[float, ...]
    peak_memory_bytes: int


def replay(
    stream: Stream,
    options: Options,
    triggers: int,
    work: Path,
    threads: int,
    on_progress: subprocesses.OnProgress,
) -> RunCost:
    """Run a stream through the engine; releases go to `work`/output."""
    [sink] = compile_script(script(stream, options, triggers, work / "output")).sinks
    begin = time.perf_counter()
    if options.published:  # with its own canonical form: no other run accepts this state
        named = f"{sink.query.normal_form} -- calibrated as published, which carries no promise"
        sink = replace(sink, query=replace(sink.query, normal_form=named))
        key = load_secret(work / "secret", storage_is_new=True)
        storage = SealedStorage(LocalStorage(work / "state" / SINK))
        plan = plan_of(sink.query, options)
        create_instance(storage, sink.query, plan, key, time.time_ns() // 1000, threads)
    engine = open_engine(
        sink, state=work / "state", secret=work / "secret", folder=work, threads=threads
    )
    taken = []
    try:
        while not engine.finished:
            before = time.perf_counter()
            engine.step()
            taken.append(time.perf_counter() - before)
            on_progress(len(taken), triggers)
    finally:
        engine.close()
    return RunCost(time.perf_counter() - begin, tuple(taken), subprocesses.peak_memory_bytes())


def measure(
    stream: Stream,
    options: Options,
    triggers: int,
    truth: pa.Table,
    *,
    threads: int = 2,
    on_progress: subprocesses.OnProgress,
) -> dict[str, Any]:
    """Run a stream in a process of its own; returns accuracy, time and memory."""
    with working_folder() as work:
        ran = subprocesses.run_in_subprocess(
            replay, stream, options, triggers, work, threads, on_progress=on_progress
        )
        released = released_keys(work / "output")
    return {
        "keys": released.num_rows,
        "half_day_keys": keys_by(released, triggers // 2),
        "keys_before_last": keys_by(released, triggers - 1),
        **asdict(errors(truth, released)),
        "seconds": ran.seconds,
        "records_per_second": stream.records / ran.seconds,
        "peak_memory_bytes": ran.peak_memory_bytes,
    }


@contextmanager
def working_folder() -> Iterator[Path]:
    """A temporary folder, always removed at the end."""
    with tempfile.TemporaryDirectory(prefix="dpsqlp-experiment-") as folder:
        yield Path(folder)
