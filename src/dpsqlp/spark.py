"""Run a query on Spark: a streaming DataFrame in, a private table out.

    query = dpsqlp.spark.start(frame, "views.sql", state="/shared/views.state")

The state is a folder that the driver and all executors see; the secret a file that they can read,
and that never goes through Spark. What is released equals what the local engine would release.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsqlp.api import choose, read_script
from dpsqlp.engines.script import check_apart
from dpsqlp.engines.spark.stream import Batches, FrameSink, ticking
from dpsqlp.errors import PlanError, StateError
from dpsqlp.sinks.base import make_sink
from dpsqlp.sources.pushed import arrow_table
from dpsqlp.sql import compile_script
from dpsqlp.state.storage import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_running: dict[Path, tuple[Any, Batches]] = {}


def start(
    frame: DataFrame,
    sql: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str],
    secret: str | os.PathLike[str] | None = None,
    sink: str | None = None,
    write: Callable[[DataFrame, int], None] | None = None,
    tables: Mapping[str, Any] | None = None,
    shards: int = 8,
) -> StreamingQuery:
    """Start a Structured Streaming query, or go on with one. `frame` is a stream with the columns
    of the query's source, whose connector is 'python'.

    `state` is a folder on storage that driver and executors share; Spark's checkpoint lies in it.
    The secret is a file outside it, made if there is none, that driver and executors can read.
    Releases go where CREATE SINK says, or as a DataFrame to `write(release, trigger)`; after a
    crash the last trigger is written again, the same. `shards` is fixed at the first start.
    """
    text, file = read_script(sql)
    folder = Path() if file is None else file.parent
    public = {name: arrow_table(table) for name, table in (tables or {}).items()}
    chosen = choose(compile_script(text, tables=public, folder=str(folder)).sinks, sink)
    if chosen.query.source.connector != "python" or chosen.query.emit.on_event_time:
        raise PlanError(
            "A streaming DataFrame needs a source with connector = 'python' and triggers by the"
            " clock. To replay files, use `dpsqlp run --engine spark`."
        )
    if (write is None) == (chosen.options.get("connector", "python") == "python"):
        raise PlanError(
            f"Say where the releases of {chosen.name} go: either CREATE SINK ... WITH (connector ="
            " ...), or write=..., and not both."
        )
    target = make_sink(chosen.name, chosen.options, folder) if write is None else FrameSink(write)
    root = Path(state).resolve()
    if root in _running:
        before, left = _running[root]
        if before.isActive:
            raise StateError(f"A query is running on the state in {root}. Stop that one first.")
        left.close()
    key = root.with_suffix(".secret") if secret is None else Path(secret).resolve()
    check_apart(key, root)
    batches = Batches(
        chosen.query,
        target,
        root / chosen.name,
        key,
        _token(root / "checkpoint"),
        shards,
    )
    query = (
        ticking(frame, chosen.query)
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(processingTime=f"{chosen.query.emit.interval_us // 1000} milliseconds")
        .queryName(chosen.name)
        .start()
    )
    _running[root] = (query, batches)
    return query


def _token(checkpoint: Path) -> str:
    """A number that the state and the checkpoint both keep, so that neither can be swapped."""
    storage = LocalStorage(checkpoint)
    token = storage.get("dpsqlp")
    if token is None:
        token = secrets.token_hex(16).encode()
        storage.put("dpsqlp", [token])
    return token.decode()
