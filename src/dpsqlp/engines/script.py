"""Open the engines of a script's sinks, given the folders of state, secret and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpsqlp.engines.account import check_room
from dpsqlp.engines.clock import Clock, SystemClock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.instance import description
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.secret_file import check_secret_outside_state, load_secret
from dpsqlp.errors import PlanError
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sources.factory import make_source
from dpsqlp.sql.plan import make_plan
from dpsqlp.sql.query import SinkDef
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_engine(
    sink: SinkDef,
    *,
    state: Path,
    secret: Path,
    folder: Path,
    output: Sink | None = None,
    clock: Clock | None = None,
    threads: int = 2,
) -> LocalEngine:
    """The engine of one sink. Relative paths in the script start at `folder`."""
    _check_folder(state)
    check_secret_outside_state(secret, state)
    storage = SealedStorage(LocalStorage(state / sink.name))
    target = output or make_sink(sink.name, sink.options, folder)
    clock = clock or SystemClock()
    source = make_source(sink.query, storage, folder, clock.now)
    key = load_secret(secret, storage_is_new=not storage.list())
    return LocalEngine(sink.query, storage, key, source, target, clock=clock, threads=threads)


def check_budgets(sinks: Sequence[SinkDef], state: Path) -> None:
    """Refuse sinks without a state that do not fit their budgets together, before one begins."""
    new = [
        sink.query
        for sink in sinks
        if sink.query.account is not None and description(LocalStorage(state / sink.name)) is None
    ]
    if new and len(sinks) > 1:  # a single one is checked when it is opened
        check_room([(query, make_plan(query)) for query in new], SystemClock().now())


def open_spark_engine(
    spark: SparkSession,
    sink: SinkDef,
    *,
    state: Path,
    secret: Path,
    folder: Path,
    shards: int,
    output: Sink | None = None,
    clock: Clock | None = None,
) -> Engine:
    """The engine of one sink on Spark, over files or a topic."""
    from dpsqlp.engines.spark.engine import SparkEngine
    from dpsqlp.engines.spark.factory import make_spark_source

    _check_folder(state)
    check_secret_outside_state(secret, state)
    query = sink.query
    target = output or make_sink(sink.name, sink.options, folder)
    source = make_spark_source(query, folder)
    return SparkEngine(
        spark, query, state / sink.name, secret, source, target, clock=clock, shards=shards
    )


def _check_folder(state: Path) -> None:
    """Refuse a URI: as a path it would become a folder named `s3:`."""
    if re.match(r"[a-z][a-z0-9+.-]+:", state.parts[0] if state.parts else "", re.I):
        raise PlanError(
            f"The state {state} is the address of a store, and this engine needs a folder. Give a"
            " folder; for an object store, use dpsqlp.spark.start(..., state=...)."
        )
