"""A Kafka topic: one message per released row, one transaction per trigger.

Each transaction also writes a marker to a topic of its own: the pipeline, its trigger and the
release's digest. After a restart the last marker tells whether the last release was published, so
that consumers of committed messages see every release exactly once. A message's key is the row's
window and group, so that a compacted topic keeps the current values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pyarrow as pa

from dpsqlp.clients.kafka import Kafka, Reader, Transactions
from dpsqlp.errors import SinkError, UnavailableError
from dpsqlp.sinks.base import DIAGNOSTICS_SUFFIX, Sink
from dpsqlp.sinks.formats import to_json_lines
from dpsqlp.sinks.published import Published, release_digest
from dpsqlp.sql.query import OptionValue


class KafkaSink(Sink):
    """Releases as messages."""

    def __init__(self, name: str, options: Mapping[str, OptionValue]) -> None:
        self._options = dict(options)
        self._topic = str(options.get("topic", name))
        self._markers = str(options.get("markers", f"{self._topic}.triggers"))
        self._pipeline, self._keys = "", list[str]()
        self._kafka: Kafka | None = None
        self._transactions: Transactions | None = None
        self._published: Published | None = None

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Name the pipeline and the key columns. Nothing is connected yet."""
        self._pipeline, self._keys = pipeline, list(keys)

    def diagnostics(self) -> KafkaSink:
        """A topic beside this one, with markers of its own. A message's key is the window."""
        topics = {"topic": self._topic, "markers": self._markers}
        others = {name: topic + DIAGNOSTICS_SUFFIX for name, topic in topics.items()}
        return KafkaSink(others["topic"], self._options | others)

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release in one transaction, unless it was published."""
        published = Published(trigger, release_digest(release))
        try:
            transactions = self._connected()
            last = self._published
            if last is not None and last.has(trigger, published.digest, "Kafka"):
                return
            marker = json.dumps({**asdict(published), "rows": release.num_rows}).encode()
            keys = _json_objects(release.select(["window_start", "window_end", *self._keys]))
            messages = zip(keys, self._values(release), strict=True)
            transactions.write(
                [(self._topic, key, value) for key, value in messages]
                + [(self._markers, self._pipeline.encode(), marker)]
            )
            self._published = published
        except BaseException:
            self.close()  # the markers will tell whether the transaction was committed
            raise

    def close(self) -> None:
        """Close the connections."""
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None
        if self._kafka is not None:
            self._kafka.close()
            self._kafka = None

    def _connected(self) -> Transactions:
        """The producer. A new one first reads the last published release from the markers."""
        if self._transactions is None:
            kafka = self._kafka = Kafka(self._options, SinkError)
            kafka.create(self._topic, -1, {})
            kafka.create(self._markers, 1, {"cleanup.policy": "compact"})
            transactions = Transactions(kafka, f"dpsqlp-{self._pipeline}-{self._topic}")
            self._published = self._last_marker(kafka)
            self._transactions = transactions
        return self._transactions

    def _last_marker(self, kafka: Kafka) -> Published | None:
        """The last published release. An open transaction may hide it, and is waited for."""
        topic = kafka.topic(self._markers)
        if topic is None:  # created a moment ago
            raise UnavailableError(f"The topic {self._markers} does not exist yet.")
        firsts = kafka.offsets(topic, end=False)
        ends = kafka.offsets(topic, end=True, committed=False)
        reader = Reader(kafka)
        try:
            batches = list(reader.read(topic.name, [(p, firsts[p], ends[p]) for p in ends]))
        except UnavailableError:
            if kafka.offsets(topic, end=True) == ends:
                raise
            raise UnavailableError(
                f"A transaction on {topic.name} is open, so it is not known whether the last"
                " release was published. The sink waits for it; `kafka-transactions.sh"
                " find-hanging` finds a transaction that was left behind. Nothing is lost."
            ) from None
        finally:
            reader.close()
        mine = [m for batch in batches for m in batch if m.key() == self._pipeline.encode()]
        markers = [json.loads(m.value()) for m in mine if m.value() is not None]
        released = [Published(marker["trigger"], marker["digest"]) for marker in markers]
        return max(released, key=lambda marker: marker.trigger, default=None)

    def _values(self, release: pa.Table) -> list[bytes]:
        if self._options.get("format", "json") == "json":
            return _json_objects(release)
        from dpsqlp.clients.avro import Encoder

        return Encoder(self._options, self._topic)(release)


def _json_objects(release: pa.Table) -> list[bytes]:
    """A JSON object for each row."""
    return to_json_lines(release).splitlines()
