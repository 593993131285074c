"""Make the source that a CREATE SOURCE declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dpsqlp.errors import PlanError
from dpsqlp.sources.base import AnySource
from dpsqlp.sources.files import FileSource
from dpsqlp.sources.postgres import PostgresSource
from dpsqlp.sources.python_frames import PythonSource
from dpsqlp.sources.standard_input import StandardInput
from dpsqlp.sql.options import from_environment
from dpsqlp.sql.query import Query
from dpsqlp.state.storage import Storage


def make_source(query: Query, storage: Storage, folder: Path, now: Callable[[], int]) -> AnySource:
    """The source of a query. `now` is the clock by which lines of standard input arrive."""
    source = replace(query.source, options=from_environment(query.source.options))
    match source.connector:
        case "files":
            return FileSource(source, query.event_column, folder)
        case "stdin":
            return StandardInput(source, storage, now)
        case "postgres":
            return PostgresSource(source)
        case "python":
            return PythonSource(source, storage)
        case "kafka":
            from dpsqlp.sources.kafka import KafkaSource

            return KafkaSource(source, folder)
    raise PlanError(
        f"The source {source.name} has the connector {source.connector!r}. Use files, stdin, kafka,"
        " postgres or python."
    )
