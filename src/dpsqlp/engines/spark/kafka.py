"""A Kafka topic on Spark: the driver takes the offsets at grid times, executors read the records.

Spark's own connector reads a fixed range. The local engine's code decodes the values in Spark's
Python workers, so both engines have the same records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dpsqlp.engines.spark.files import as_declared, no_records
from dpsqlp.errors import PlanError
from dpsqlp.sources.columns import declared_schema
from dpsqlp.sources.kafka import KafkaRange, KafkaSource, make_decoder
from dpsqlp.sql.query import OptionValue, SourceDef
from dpsqlp.sql.spark import spark_type
from dpsqlp.sql.spark.cells import name_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAME = ("kafka.security.protocol",)  # the same for the driver's client and Spark's
_LOGIN = {  # by mechanism: the login module of Java's client
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SASL = {"kafka.sasl.mechanism", "kafka.sasl.mechanisms"}
_TRANSLATED = {
    *_SAME,
    *_SASL,
    "kafka.sasl.username",
    "kafka.sasl.password",
    "kafka.ssl.ca.location",
}


class SparkKafka(KafkaSource):
    """Records of one topic, read by executors. Offsets are those of the local engine."""

    def __init__(self, source: SourceDef, folder: Path) -> None:
        for option in ("dead_letters", "dead_letter_topic"):
            if option in source.options:
                raise PlanError(
                    f"The option {option} keeps values that cannot be decoded, which the Spark"
                    " engine does not. Leave it out, or use the local engine."
                )
        self._java = java_settings(source.options)
        self._declared, self._folder = source, folder
        super().__init__(source, folder)

    def frame(self, offsets: KafkaRange | None, spark: SparkSession) -> DataFrame:
        """The range's records, with the columns and types that the source declares."""
        source = self._declared
        ranges = [] if offsets is None else self._ranges(offsets)
        if offsets is None or not any(first < end for _, first, end in ranges):
            return no_records(source, spark)
        topic = str(source.options["topic"])
        values = (
            spark.read.format("kafka")
            .options(**self._java)
            .option("assign", json.dumps({topic: [partition for partition, _, _ in ranges]}))
            .option("startingOffsets", json.dumps({topic: {p: at for p, at, _ in ranges}}))
            .option("endingOffsets", json.dumps({topic: {p: at for p, _, at in ranges}}))
            .load()
            .where("value IS NOT NULL")
            .select("value")
        )
        columns = [f"{name_sql(name)} {spark_type(kind)}" for name, kind in source.columns]
        decode = Decode(source, self._folder, tuple(offsets.get("schemas", ())))
        return as_declared(values.mapInArrow(decode, ", ".join(columns)), source)


@dataclass(frozen=True, slots=True)
class Decode:
    """Values in, records out. Values that cannot be decoded are left out, as in `KafkaSource`."""

    source: SourceDef
    folder: Path
    known: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode a partition."""
        decode = make_decoder(self.source, declared_schema(self.source), self.folder)
        for batch in batches:
            table, _ = decode(batch.column("value").to_pylist(), self.known)
            yield from table.to_batches()


def java_settings(options: Mapping[str, OptionValue]) -> dict[str, str]:
    """The source's options as options of Java's client."""
    given = {name for name in options if name.startswith("kafka.")}
    unknown = sorted(given - _TRANSLATED)
    if unknown:
        raise PlanError(
            f"The option {unknown[0]} is not known to the Spark engine, which uses Java's client."
            f" Use {', '.join(sorted(_TRANSLATED))}."
        )
    settings = {
        "kafka.bootstrap.servers": str(options["brokers"]),
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        **{name: str(options[name]) for name in _SAME if name in options},
    }
    for name in _SASL & given:
        mechanism = str(options[name])
        if mechanism not in _LOGIN:
            raise PlanError(
                f"The Spark engine does not know {name} = '{mechanism}'. Use one of"
                f" {', '.join(_LOGIN)}."
            )
        user, password = (
            json.dumps(str(options.get(f"kafka.sasl.{part}", "")), ensure_ascii=False)
            for part in ("username", "password")
        )
        settings["kafka.sasl.mechanism"] = mechanism
        settings["kafka.sasl.jaas.config"] = (
            f"{_LOGIN[mechanism]} required username={user} password={password};"
        )
    if "kafka.ssl.ca.location" in options:
        settings["kafka.ssl.truststore.type"] = "PEM"
        settings["kafka.ssl.truststore.location"] = str(options["kafka.ssl.ca.location"])
    return settings
