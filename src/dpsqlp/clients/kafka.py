"""Kafka's client as dpsqlp uses it: settings, topics, offsets, and errors in its own words.

Privacy contract: offsets count records, so no error text has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dpsqlp.errors import DpsqlpError, PlanError, UnavailableError
from dpsqlp.sql.query import OptionValue

try:
    import confluent_kafka as client
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        NewTopic,
        OffsetSpec,
    )
except ImportError:
    raise PlanError("Kafka's client is not installed. Run `pip install 'dpsqlp[kafka]'`.") from None

SECONDS = 10.0  # for an answer
_BATCH = 50_000
_PATIENCE = 0.5
READING = {
    "group.id": "dpsqlp",  # never joined: offsets are in our manifest
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}
# Without them a reader pauses for a second whenever it is ahead.
QUICK = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10}
WRITING = {"enable.idempotence": True}
_SILENT = logging.Logger("dpsqlp.kafka")
_SILENT.addHandler(logging.NullHandler())
_ERROR = client.KafkaError
_REFUSED = {
    _ERROR._AUTHENTICATION: "refuse the credentials",
    _ERROR.SASL_AUTHENTICATION_FAILED: "refuse the credentials",
    _ERROR.TOPIC_AUTHORIZATION_FAILED: "do not allow this user to use the topic",
    _ERROR.GROUP_AUTHORIZATION_FAILED: "do not allow this user to read",
    _ERROR.CLUSTER_AUTHORIZATION_FAILED: "do not allow this user to do it",
    _ERROR.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "do not allow this user to write in transactions",
    _ERROR._SSL: "fail the TLS handshake",
}
_SHUT_OUT = (_ERROR._FENCED, _ERROR.PRODUCER_FENCED, _ERROR.INVALID_PRODUCER_EPOCH)


class Kafka:
    """The connection to the brokers of one source or sink."""

    def __init__(self, options: Mapping[str, OptionValue], error: type[DpsqlpError]) -> None:
        """`error` is raised for what waiting does not heal. Options named kafka.* are passed on."""
        given = {n.removeprefix("kafka."): v for n, v in options.items() if n.startswith("kafka.")}
        clash = sorted((READING.keys() | WRITING.keys() | {"transactional.id"}) & given.keys())
        if clash:
            raise PlanError(f"kafka.{clash[0]} is set by dpsqlp. Leave it out.")
        self.brokers = str(options["brokers"])
        self.error = error
        self._refusal: str | None = None
        self._answered = False
        self._settings: dict[str, Any] = {
            "bootstrap.servers": self.brokers,
            "socket.timeout.ms": int(SECONDS * 1000),
            "logger": _SILENT,
            **given,
            "error_cb": self._note,
        }
        self._admin: Any = None

    def _note(self, error: Any) -> None:
        """Remember why connecting fails; clients only say that it does. Once it has worked, a
        handshake that fails is one that a restart has cut off.
        """
        if not self._answered:
            self._refusal = _REFUSED.get(error.code(), self._refusal)

    def refuse(self, error: Any) -> DpsqlpError:
        """A client's error in our words: to be waited for, or not."""
        why = _REFUSED.get(error.code(), self._refusal)
        if why is not None:
            return self.error(
                f"The Kafka brokers {self.brokers} {why}. Check the options kafka.security.protocol"
                " and kafka.sasl.* or kafka.ssl.*, and what the user may do. Nothing is lost."
            )
        if error.code() == _ERROR._INVALID_ARG or error.code() == _ERROR._UNKNOWN_PROTOCOL:
            return PlanError(f"Kafka's client does not take an option: {error.str()}.")
        return UnavailableError(
            f"The Kafka brokers {self.brokers} do not answer ({error.name()}). Nothing is lost."
        )

    def made(self, kind: Any, fixed: Mapping[str, Any], **usual: Any) -> Any:
        """A client of a kind. The usual settings give way to options, the fixed ones do not."""
        try:
            return kind(usual | self._settings | dict(fixed))
        except client.KafkaException as problem:
            text = problem.args[0].str()
            raise PlanError(f"Kafka's client does not take an option: {text}.") from None

    def _asked(self, question: Callable[[Any], Mapping[Any, Any]]) -> dict[Any, Any]:
        """What the brokers answer."""
        if self._admin is None:
            self._admin = self.made(AdminClient, {})
        asked = question(self._admin)
        deadline = time.monotonic() + 2 * SECONDS
        while wait(asked.values(), _PATIENCE).not_done:
            self._admin.poll(0)  # tells `_note`
            if self._refusal is not None or time.monotonic() > deadline:
                raise self.refuse(client.KafkaError(_ERROR._TIMED_OUT))
        answers = {name: future.result() for name, future in asked.items()}
        self._answered = True
        return answers

    def topic(self, name: str) -> Topic | None:
        """A topic as it is now, if there is one."""
        try:
            wanted = client.TopicCollection([name])
            found = self._asked(lambda admin: admin.describe_topics(wanted))[name]
        except client.KafkaException as problem:
            if problem.args[0].code() == _ERROR.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.refuse(problem.args[0]) from None
        return Topic(name, str(found.topic_id), tuple(p.id for p in found.partitions))

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """A new topic, unless there is one."""
        topic = NewTopic(name, partitions, config=dict(settings))
        try:
            self._asked(lambda admin: admin.create_topics([topic]))
        except client.KafkaException as problem:
            if problem.args[0].code() != _ERROR.TOPIC_ALREADY_EXISTS:
                raise self.refuse(problem.args[0]) from None

    def offsets(self, topic: Topic, *, end: bool) -> dict[int, int]:
        """Where each partition begins, or where it ends for readers of committed records."""
        which = (OffsetSpec.latest if end else OffsetSpec.earliest)()  # type: ignore[no-untyped-call]
        wanted = {client.TopicPartition(topic.name, p): which for p in topic.partitions}
        committed = client.IsolationLevel.READ_COMMITTED
        try:
            found = self._asked(lambda admin: admin.list_offsets(wanted, isolation_level=committed))
        except client.KafkaException as problem:
            raise self.refuse(problem.args[0]) from None
        return {partition.partition: result.offset for partition, result in found.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: one that was deleted and made again has another id."""

    name: str
    id: str
    partitions: tuple[int, ...]


class Reader:
    """Reads exact ranges of a topic's partitions, in no particular order."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._consumer: Any = None

    def read(self, topic: str, ranges: Iterable[tuple[int, int, int]]) -> Iterable[list[Any]]:
        """The messages of ranges (partition, first, end): lists of them, as they come.

        Compacted records and those of aborted transactions are left out.
        """
        ranges = list(ranges)
        ends = {partition: end for partition, first, end in ranges if first < end}
        starts = [client.TopicPartition(topic, p, first) for p, first, _ in ranges if p in ends]
        if self._consumer is None:
            self._consumer = self._kafka.made(client.Consumer, READING, **QUICK)
        self._consumer.assign(starts)
        self._consumer.resume(starts)  # what an earlier reading has paused
        left, silent = set(ends), 0.0
        while left:
            batch = self._consumer.consume(_BATCH, timeout=_PATIENCE)
            silent = 0.0 if batch else silent + _PATIENCE
            if silent >= SECONDS:
                raise self._kafka.refuse(client.KafkaError(_ERROR._TIMED_OUT))
            reached = {m.partition(): m.offset() + 1 for m in batch if m.error() is None}
            for event in [m for m in batch if m.error() is not None]:
                if event.error().code() == _ERROR._PARTITION_EOF:
                    reached[event.partition()] = event.offset()
                elif event.error().code() == _ERROR._AUTO_OFFSET_RESET:
                    raise UnavailableError(f"The topic {topic} has just lost old records.")
                elif event.error().code() in _REFUSED or not event.error().retriable():
                    raise self._kafka.refuse(event.error())
            done = {p for p in left if reached.get(p, -1) >= ends[p]}
            if done:
                left -= done
                self._consumer.pause([client.TopicPartition(topic, p) for p in done])
            yield [m for m in batch if m.error() is None and m.offset() < ends[m.partition()]]

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class Producer:
    """Writes messages, each acknowledged by all replicas before `send` returns."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._producer = kafka.made(client.Producer, WRITING)

    def send(self, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> None:
        """Write messages (key, value)."""
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for key, value in messages:
            _produce(self._producer, topic, key, value, on_delivery=delivered)
        if self._producer.flush(SECONDS) > 0 or failed:
            self._producer.purge()
            raise self._kafka.refuse(failed[0] if failed else client.KafkaError(_ERROR._TIMED_OUT))


class Transactions:
    """Writes messages all or none. A later writer of the same name shuts out this one."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka = kafka
        self._producer = kafka.made(client.Producer, WRITING | {"transactional.id": name})
        with self._refusals():
            self._producer.init_transactions(3 * SECONDS)  # ends what another has left open

    def write(self, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Messages (topic, key, value) in one transaction."""
        with self._refusals():
            self._producer.begin_transaction()
            for topic, key, value in messages:
                _produce(self._producer, topic, key, value)
            self._producer.commit_transaction(3 * SECONDS)

    def close(self) -> None:
        """Give up what was not committed."""
        self._producer.purge()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except client.KafkaException as problem:
            if problem.args[0].code() in _SHUT_OUT:
                raise self._kafka.error(
                    "Another process writes to Kafka for this pipeline. One writer at a time: stop"
                    " the other one, then run again. The release is kept."
                ) from None
            raise self._kafka.refuse(problem.args[0]) from None


def _produce(producer: Any, topic: str, key: bytes | None, value: bytes, **options: Any) -> None:
    """Queue a message, when there is room."""
    while True:
        try:
            producer.produce(topic, value, key, **options)
            return
        except BufferError:
            producer.poll(_PATIENCE)
