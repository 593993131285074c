"""A Kafka topic: a trigger reads everything that the partitions have when it is due.

Offsets are kept in our manifest, not in Kafka. No consumer group is joined, so nothing is
rebalanced. New partitions are read from their start, and so is a topic that was made again. Values
are JSON objects, or Avro with a schema file or a registry.

Privacy contract: a range is all that has arrived, never a number of records. Each value is decoded
by itself; a value that cannot be decoded is a dead letter, and changes nothing about the others.
Which records a broker has deleted depends on how many there were, so a gap is refused unless the
operator accepts it as unprotected. The schemas that a registry has are looked up before the range
is read, and become part of it: a schema that is registered later does not change the records of
the range. Dead letters are private records: they go only where the operator says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.clients.kafka import Kafka, Producer, Reader, Topic
from dpsqlp.errors import PlanError, SourceError, UnavailableError
from dpsqlp.sources.base import GridTime, Source
from dpsqlp.sources.columns import declared_schema, json_columns, show
from dpsqlp.sources.memory_limit import check_size
from dpsqlp.sql import connect
from dpsqlp.sql.query import OptionValue, SourceDef
from dpsqlp.state.storage import LocalStorage


class KafkaOffset(TypedDict):
    """The topic that was read, by its id, and the next offset of each partition."""

    topic: str | None
    offsets: dict[str, int]


class KafkaRange(TypedDict):
    """For each partition its number, first offset and end; and the schemas the registry had."""

    trigger: int
    topic: str
    ranges: list[tuple[int, int, int]]
    schemas: NotRequired[list[int]]


class KafkaSource(Source[KafkaOffset, KafkaRange]):
    """Records of one topic."""

    def __init__(self, source: SourceDef, folder: Path) -> None:
        options = source.options
        self._source = source
        self._schema = declared_schema(source)
        self._topic = str(options["topic"])
        self._latest = options.get("start") == "latest"
        self._skips = options.get("expired") == "skip_unprotected"
        self._kafka = Kafka(options, SourceError)
        self._cutting = Kafka(options, SourceError)  # a second client: cuts do not wait for reads
        self._reader = Reader(self._kafka)
        self._decode = make_decoder(source, self._schema, folder)
        self._numbered = "schema_registry" in options
        self._dead_letters = DeadLetters(self._kafka, options, folder)

    def initial_offset(self) -> KafkaOffset:
        """No topic has been seen."""
        return {"topic": None, "offsets": {}}

    def cut(self, offset: KafkaOffset, at: GridTime) -> KafkaRange:
        """The records that each partition has now and that were not read yet."""
        if not isinstance(offset, dict) or "offsets" not in offset:
            raise SourceError(
                "The state has an offset of another connector than kafka. Give the source the"
                " connector it had, or begin a new pipeline, which spends its own budget."
            )
        topic = self._found(self._cutting, offset["topic"])
        ends = self._cutting.offsets(topic, end=True)
        known = offset["offsets"] if topic.id == offset["topic"] else {}
        if self._latest and offset["topic"] is None:
            firsts = ends
        else:
            firsts = self._cutting.offsets(topic, end=False)
        ranges = []
        for partition, end in sorted(ends.items()):
            first = known.get(str(partition), firsts[partition])
            self._check_end(first, end)
            if first < firsts[partition]:
                self._check_gap()
                first = firsts[partition]
            ranges.append((partition, first, end))
        return {"trigger": at.trigger, "topic": topic.id, "ranges": ranges}

    def complete(self, offsets: KafkaRange) -> KafkaRange:
        """The range, with the schemas that its values name and the registry has."""
        self._dead_letters.check()
        return {**offsets, "schemas": self._schemas(self._ranges(offsets))}

    def next_offset(self, offset: KafkaOffset, offsets: KafkaRange | None) -> KafkaOffset:
        """The offset after a range."""
        if offsets is None:
            return offset
        known = offset["offsets"] if offset["topic"] == offsets["topic"] else {}
        read = {str(partition): end for partition, _, end in offsets["ranges"]}
        return {"topic": offsets["topic"], "offsets": known | read}

    def read(self, offsets: KafkaRange | None, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a table of the source's name."""
        tables = [self._schema.empty_table()]
        if offsets is not None:
            tables += self._tables(offsets)
        show(database, self._source, pa.concat_tables(tables))

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._kafka.close()
        self._cutting.close()

    def _found(self, kafka: Kafka, known: str | None) -> Topic:
        topic = kafka.topic(self._topic)
        if topic is not None:
            return topic
        text = f"The Kafka brokers {self._kafka.brokers} have no topic {self._topic}. Create it"
        if known is None:
            raise SourceError(f"{text}, or correct the option topic.")
        raise UnavailableError(f"{text} again. Nothing is lost that was read before.")

    def _check_end(self, read: int, end: int) -> None:
        if read > end:
            raise SourceError(
                f"The topic {self._topic} has fewer records than were read from it: its brokers"
                " have lost some. Restore them, or begin a new pipeline, which spends its own"
                " budget."
            )

    def _check_gap(self) -> None:
        if not self._skips:
            raise SourceError(
                f"The brokers have deleted records of the topic {self._topic} that were not read"
                " yet. Keep them for longer (retention.ms, retention.bytes). To go on without them"
                " set expired = 'skip_unprotected': which ones are gone depends on how many there"
                " were, and that is outside the promise."
            )

    def _schemas(self, ranges: list[tuple[int, int, int]]) -> list[int]:
        """The schemas that values of a range name and the registry has."""
        if not self._numbered:
            return []
        named: set[int] = set()
        for messages in self._messages(ranges):
            named |= self._decode.named([message.value() for message in messages])
        self._reader.broken = 0
        return sorted(self._decode.known(named))

    def _messages(self, ranges: list[tuple[int, int, int]]) -> Iterator[list[Any]]:
        """The messages in ranges, without those that have no value."""
        for messages in self._reader.read(self._topic, ranges):
            yield [message for message in messages if message.value() is not None]

    def _tables(self, offsets: KafkaRange) -> Iterator[pa.Table]:
        """The records, decoded in batches; values that cannot be decoded become dead letters."""
        size, letters = 0, []
        for messages in self._messages(self._ranges(offsets)):
            if not messages:
                continue
            values = [message.value() for message in messages]
            table, bad = self._decode(values, offsets.get("schemas", ()))
            letters += [messages[place] for place in bad]
            size = check_size(size + table.nbytes)
            yield table
        self._dead_letters.send(offsets, letters)
        self.undecodable += len(letters) + self._reader.broken
        self._reader.broken = 0

    def _ranges(self, offsets: KafkaRange) -> list[tuple[int, int, int]]:
        """The ranges of a trigger, without records that the brokers have deleted since."""
        topic = self._found(self._kafka, offsets["topic"])
        if topic.id != offsets["topic"]:  # made again: nothing of the old one is left
            if any(first < end for _, first, end in offsets["ranges"]):
                self._check_gap()
            return []
        firsts = self._kafka.offsets(topic, end=False)
        ends = self._kafka.offsets(topic, end=True)
        ranges = []
        for partition, first, end in offsets["ranges"]:
            if partition not in ends:
                raise UnavailableError(f"A partition of the topic {self._topic} is not available.")
            self._check_end(end, ends[partition])
            if first < min(firsts[partition], end):
                self._check_gap()
            ranges.append((partition, min(max(first, firsts[partition]), end), end))
        return ranges


class DeadLetters:
    """The values that cannot be decoded go to a folder, to a topic, or nowhere."""

    def __init__(self, kafka: Kafka, options: Mapping[str, OptionValue], folder: Path) -> None:
        path = options.get("dead_letters")
        self._folder = None if path is None else folder / str(path)
        self._topic = options.get("dead_letter_topic")
        self._kafka = kafka
        self._producer: Any = None

    def check(self) -> None:
        """Refuse a missing topic at the start, when that says nothing about records."""
        if self._topic is not None and self._producer is None:
            if self._kafka.topic(str(self._topic)) is None:
                raise SourceError(
                    f"The Kafka brokers {self._kafka.brokers} have no topic {self._topic} for dead"
                    " letters. Create it, or correct the option dead_letter_topic."
                )
            self._producer = Producer(self._kafka)

    def send(self, offsets: KafkaRange, messages: Sequence[Any]) -> None:
        """Keep a range's dead letters, durably. A trigger that runs again sends them again; in the
        folder they replace themselves, and no others.
        """
        if not messages:
            return
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark = hashlib.sha256(json.dumps(offsets, sort_keys=True).encode()).hexdigest()[:12]
            lines = [json.dumps(_letter(message)) + "\n" for message in messages]
            name = f"trigger-{offsets['trigger']:012d}-{mark}.jsonl"
            LocalStorage(self._folder).put(name, ["".join(lines).encode()])
        if self._topic is not None:
            self.check()
            self._producer.send(str(self._topic), [(m.key(), m.value()) for m in messages])


def _letter(message: Any) -> dict[str, Any]:
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "value_base64": base64.b64encode(message.value()).decode(),
    }


class Decoder(Protocol):
    """Decodes values, and reports those that cannot be decoded."""

    def named(self, values: list[bytes]) -> set[int]:
        """The ids of the schemas that values name."""

    def known(self, numbers: Collection[int]) -> set[int]:
        """The given schemas that the registry has."""

    def __call__(self, values: list[bytes], known: Collection[int]) -> tuple[pa.Table, list[int]]:
        """The records of known schemas, and the indices of values that cannot be decoded."""


def make_decoder(source: SourceDef, schema: pa.Schema, folder: Path) -> Decoder:
    """The decoder that the option `format` names."""
    if source.options.get("format", "json") == "json":
        return JsonDecoder(source, schema)
    from dpsqlp.clients.avro import Schemas
    from dpsqlp.sources.avro import AvroDecoder

    return AvroDecoder(source, schema, Schemas(source.options, folder))


class JsonDecoder:
    """Decodes JSON objects. A field that is missing or of another type is null."""

    def __init__(self, source: SourceDef, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = json_columns(source.columns)
        self._database = connect(config={"threads": 1})
        try:
            self([b"{}"])
        except duckdb.Error as problem:
            raise PlanError(f"A column cannot be read from JSON: {problem}") from None

    def named(self, values: list[bytes]) -> set[int]:
        """None: JSON has no schemas."""
        return set()

    def known(self, numbers: Collection[int]) -> set[int]:
        """None: JSON has no schemas."""
        return set()

    def __call__(
        self, values: list[bytes], known: Collection[int] = ()
    ) -> tuple[pa.Table, list[int]]:
        """The records, and the indices of values that are not JSON objects."""
        self._database.register("lines", pa.table({"line": as_text(values)}))
        fine = self._database.sql(
            "SELECT coalesce(json_type(TRY_CAST(line AS JSON)) = 'OBJECT', false) FROM lines"
        ).fetchnumpy()
        [good] = fine.values()
        bad = np.flatnonzero(~good).tolist()
        if bad:
            lines = as_text([value for value, keep in zip(values, good, strict=True) if keep])
            self._database.register("lines", pa.table({"line": lines}))
        table = self._database.sql(f"SELECT {self._columns} FROM lines").to_arrow_table()
        return table.cast(self._schema), bad


def as_text(values: list[bytes]) -> pa.Array:
    """Values as texts; null where a value is not UTF-8."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_utf8(value) for value in values], pa.string())


def _utf8(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
