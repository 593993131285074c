"""The sink of a CREATE SINK. Client libraries are imported only if its connector needs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsqlp.errors import PlanError
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.duckdb import DuckDbSink
from dpsqlp.sinks.files import FileSink
from dpsqlp.sinks.stdout import StdoutSink
from dpsqlp.sql.options import from_environment


def make_sink(name: str, options: Mapping[str, Any], folder: Path) -> Sink:
    """The sink with these options. Paths are relative to the folder."""
    options = from_environment(options)
    path = folder / str(options.get("path", name))
    match options.get("connector"):
        case "parquet":
            return FileSink(path, "parquet")
        case "jsonl":
            return FileSink(path, "jsonl")
        case "stdout":
            return StdoutSink()
        case "duckdb":
            return DuckDbSink(path, str(options.get("table", name)))
        case "postgres":
            from dpsqlp.sinks.postgres import PostgresSink

            return PostgresSink(str(options.get("dsn", "")), str(options.get("table", name)))
        case "kafka":
            from dpsqlp.sinks.kafka import KafkaSink

            return KafkaSink(name, options)
    raise PlanError(
        f"The sink {name} has the connector {options.get('connector')!r}. Use parquet, jsonl,"
        " stdout, duckdb, kafka or postgres."
    )
