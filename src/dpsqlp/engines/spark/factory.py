"""Make the source that a CREATE SOURCE declares, as Spark reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpsqlp.engines.spark.engine import AnySparkSource
from dpsqlp.engines.spark.files import SparkFiles
from dpsqlp.engines.spark.kafka import SparkKafka
from dpsqlp.errors import PlanError
from dpsqlp.sql.options import from_environment
from dpsqlp.sql.query import Query


def make_spark_source(query: Query, folder: Path) -> AnySparkSource:
    """The source of a query, as Spark reads it."""
    source = replace(query.source, options=from_environment(query.source.options))
    match source.connector:
        case "files":
            return SparkFiles(source, query.event_column, folder)
        case "kafka":
            return SparkKafka(source, folder)
    raise PlanError(
        f"The source {source.name} has the connector {source.connector!r}. On Spark a script reads"
        " files or Kafka; a stream is started from Python with dpsqlp.spark.start(...)."
    )
