"""Run a query on Spark: a streaming DataFrame in, a private table out.

    query = dpsqlp.spark.start(
        frame, "views.sql", state="/shared/views.state", unprotected_batches=True
    )

The state is a folder that the driver and all executors see. The secret is a file that they can
read; it never goes through Spark. The releases equal those of the local engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsqlp.api import choose, read_script
from dpsqlp.engines.secret_file import check_secret_outside_state
from dpsqlp.engines.spark.batch_source import FrameSink
from dpsqlp.engines.spark.foreach_batch import ForeachBatch, with_ticks
from dpsqlp.entropy.secret import new_name
from dpsqlp.errors import PlanError, SecretError, StateError
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sources.python_frames import arrow_table
from dpsqlp.sql import compile_script
from dpsqlp.state.remote import below, storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_running: dict[str, tuple[Any, ForeachBatch]] = {}


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
    unprotected_batches: bool = False,
) -> StreamingQuery:
    """Start a Structured Streaming query, or continue one. `frame` is a stream with the columns of
    the query's source, whose connector is 'python'.

    `state` is a folder that driver and executors share, or the URI of an object store (s3://,
    gs://, abfs://); Spark's checkpoint lies in it. The secret is a file outside it that driver and
    executors can read, made if it does not exist.
    Releases go where CREATE SINK says, or as a DataFrame to `write(release, trigger)`; after a
    crash the last trigger is written again, the same. `shards` is fixed at the first start.

    Spark chooses the records of a batch when the batch before has ended, not when its trigger is
    due. So a unit whose records take long moves those of others to a later trigger, which is
    outside the promise: `unprotected_batches=True` accepts that. Files and topics that the engine
    reads itself (`dpsqlp run --engine spark`) are cut by the clock.
    """
    if not unprotected_batches:
        raise PlanError(
            "Spark, not the clock, decides which batch of a streaming DataFrame a record is in: a"
            " unit whose records take long moves those of others to a later trigger. Read files or"
            " Kafka with `dpsqlp run --engine spark`, or accept that this is outside the promise:"
            " start(..., unprotected_batches=True)."
        )
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
    place = str(state).removeprefix("file://")
    root = place if "://" in place else str(Path(place).resolve())
    checkpoint = below(root, f"{chosen.name}.checkpoint")
    if root in _running:
        before, left = _running[root]
        if before.isActive:
            raise StateError(f"A query is running on the state in {root}. Stop that one first.")
        left.close()
    batches = ForeachBatch(
        chosen.query,
        target,
        below(root, chosen.name),
        _secret(root, secret),
        _token(checkpoint),
        shards,
    )
    query = (
        with_ticks(frame, chosen.query)
        .writeStream.foreachBatch(batches)
        .option("checkpointLocation", _spark_uri(checkpoint))
        .trigger(processingTime=f"{chosen.query.emit.interval_us // 1000} milliseconds")
        .queryName(chosen.name)
        .start()
    )
    batches.stopped.query = query
    _running[root] = (query, batches)
    return query


def _secret(root: str, given: str | os.PathLike[str] | None) -> Path:
    """The secret's file; by default beside the state folder."""
    if "://" in root:
        if given is None:
            raise SecretError(
                "The secret is a file that driver and executors can read, and never lies in the"
                " store of the state. Give its path: start(..., secret='/run/secrets/views')."
            )
        return Path(given).resolve()
    secret = Path(root).with_suffix(".secret") if given is None else Path(given).resolve()
    check_secret_outside_state(secret, Path(root))
    return secret


def _spark_uri(location: str) -> str:
    """The location as Spark's file systems name it."""
    if "://" not in location:
        return f"file://{location}"  # not the default file system of the cluster
    return location.partition("?")[0].replace("s3://", "s3a://", 1)


def _token(checkpoint: str) -> str:
    """A token that the state and the checkpoint both keep, so that neither can be swapped."""
    storage = storage_at(checkpoint)
    token = storage.get("dpsqlp")
    if token is None:
        token = new_name().encode()
        storage.put("dpsqlp", [token])
    return token.decode()
