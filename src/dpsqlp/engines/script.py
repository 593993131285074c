"""A SQL script's sinks as engines: where the state, the secret and the files are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpsqlp.engines.clock import Clock, SystemClock
from dpsqlp.engines.engine import Engine
from dpsqlp.engines.instance import load_secret
from dpsqlp.engines.local import LocalEngine
from dpsqlp.errors import PlanError, SecretError
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sources.base import Source
from dpsqlp.sources.files import FileSource
from dpsqlp.sources.postgres import PostgresSource
from dpsqlp.sources.pushed import PushedSource, StandardInput
from dpsqlp.sql.options import from_environment
from dpsqlp.sql.query import Query, SinkDef
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpsqlp.engines.spark.engine import SparkSource


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
    source = make_source(sink.query, storage, folder, clock)
    key = load_secret(secret, storage_is_new=not storage.list())
    return LocalEngine(sink.query, storage, key, source, target, clock=clock, threads=threads)


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

    _check_folder(state)
    check_secret_outside_state(secret, state)
    query = sink.query
    target = output or make_sink(sink.name, sink.options, folder)
    source = _spark_source(query, folder)
    return SparkEngine(
        spark, query, state / sink.name, secret, source, target, clock=clock, shards=shards
    )


def _spark_source(query: Query, folder: Path) -> SparkSource:
    """The source of a query, as Spark reads it."""
    source = replace(query.source, options=from_environment(query.source.options))
    match source.connector:
        case "files":
            from dpsqlp.engines.spark.files import SparkFiles

            return SparkFiles(source, query.event_column, folder)
        case "kafka":
            from dpsqlp.engines.spark.kafka import SparkKafka

            return SparkKafka(source, folder)
    raise PlanError(
        f"The source {source.name} has the connector {source.connector!r}. On Spark a script reads"
        " files or Kafka; a stream is started from Python with dpsqlp.spark.start(...)."
    )


def _check_folder(state: Path) -> None:
    """Refuse a URI, of which a path would make a folder `s3:`."""
    if re.match(r"[a-z][a-z0-9+.-]+:", state.parts[0] if state.parts else "", re.I):
        raise PlanError(
            f"The state {state} is the address of a store, and has to be a folder here. Give a"
            " folder; on object stores, start the query with dpsqlp.spark.start(..., state=...)."
        )


def check_secret_outside_state(secret: Path, state: Path) -> None:
    """Refuse a secret inside the state."""
    if secret.resolve().is_relative_to(state.resolve()):
        raise SecretError(
            f"The secret {secret} would lie inside the state {state}; whoever has both sees through"
            " the noise. Keep it elsewhere."
        )


def make_source(query: Query, storage: Storage, folder: Path, clock: Clock) -> Source:
    """The source of a query."""
    source = replace(query.source, options=from_environment(query.source.options))
    match source.connector:
        case "files":
            return FileSource(source, query.event_column, folder)
        case "stdin":
            return StandardInput(source, storage, clock.now)
        case "postgres":
            return PostgresSource(source)
        case "python":
            return PushedSource(source, storage)
        case "kafka":
            from dpsqlp.sources.kafka import KafkaSource

            return KafkaSource(source, folder)
    raise PlanError(
        f"The source {source.name} has the connector {source.connector!r}. Use files, stdin, kafka,"
        " postgres or python."
    )
