"""Kafka's client as dpsqlp uses it: settings, topics, offsets, and errors in its own words.

Privacy contract: offsets count records, so no error text has one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    text = "Kafka's client is not installed. Run `pip install 'dpsqlp[kafka]'`."
    raise DpsqlpError(text) from None

SECONDS = 10.0  # for an answer
_BATCH = 50_000
_PATIENCE = 0.5
_MESSAGE_BYTES = 10_000_000
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
# What does not pass by itself. All else is waited for, and named while it is.
_PERMANENT = (
    *(_ERROR.MSG_SIZE_TOO_LARGE, _ERROR.RECORD_LIST_TOO_LARGE, _ERROR.INVALID_RECORD),
    *(_ERROR.TOPIC_EXCEPTION, _ERROR.INVALID_TRANSACTION_TIMEOUT, _ERROR.POLICY_VIOLATION),
    *(_ERROR.INVALID_CONFIG, _ERROR.INVALID_PARTITIONS, _ERROR.UNSUPPORTED_VERSION),
    *(_ERROR.UNSUPPORTED_COMPRESSION_TYPE, _ERROR.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    *(_ERROR.UNSUPPORTED_SASL_MECHANISM, _ERROR.SECURITY_DISABLED, _ERROR._INVALID_ARG),
    *(_ERROR._UNSUPPORTED_FEATURE, _ERROR._NOT_IMPLEMENTED),
)
# A value that the client cannot unpack.
_BROKEN = (_ERROR._BAD_COMPRESSION, _ERROR._BAD_MSG, _ERROR.MSG_SIZE_TOO_LARGE)
_OURS = {"bootstrap.servers", "transactional.id", "auto.commit.enable", "logger"}


class Kafka:
    """The connection to the brokers of one source or sink."""

    def __init__(self, options: Mapping[str, OptionValue], error: type[DpsqlpError]) -> None:
        """`error` is raised for what waiting does not heal. Options named kafka.* are passed on."""
        given = {n.removeprefix("kafka."): v for n, v in options.items() if n.startswith("kafka.")}
        ours = READING.keys() | WRITING.keys() | _OURS
        clash = sorted(name for name in given if name in ours or name.endswith("_cb"))
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
        if error.code() not in _PERMANENT:
            return UnavailableError(
                f"The Kafka brokers {self.brokers} do not answer ({error.name()}). Nothing is lost."
            )
        meaning = client.KafkaError(error.code()).str()  # of the code alone: others count records
        return self.error(
            f"The Kafka brokers {self.brokers} refuse: {meaning} ({error.name()}). Correct it and"
            " run again. Nothing is lost."
        )

    def made(self, kind: Any, fixed: Mapping[str, Any], **usual: Any) -> Any:
        """A client of a kind. The usual settings give way to options, the fixed ones do not."""
        try:
            return kind(usual | self._settings | dict(fixed))
        except client.KafkaException as problem:
            text = problem.args[0].str()
            raise PlanError(f"Kafka's client does not take an option: {text}.") from None
        except (TypeError, ValueError, AttributeError) as problem:
            raise PlanError(f"Kafka's client does not take an option: {problem}.") from None

    def close(self) -> None:
        """Let go of the connection."""
        self._admin = None

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
        """A new topic, unless there is one, for which no right to create topics is needed."""
        if self.topic(name) is not None:
            return
        topic = NewTopic(name, partitions, config=dict(settings))
        try:
            self._asked(lambda admin: admin.create_topics([topic]))
        except client.KafkaException as problem:
            if problem.args[0].code() != _ERROR.TOPIC_ALREADY_EXISTS:
                raise self.refuse(problem.args[0]) from None

    def offsets(self, topic: Topic, *, end: bool, committed: bool = True) -> dict[int, int]:
        """Where each partition begins, or where it ends; readers of committed records see it end
        at the first open transaction.
        """
        which = (OffsetSpec.latest if end else OffsetSpec.earliest)()  # type: ignore[no-untyped-call]
        wanted = {client.TopicPartition(topic.name, p): which for p in topic.partitions}
        level = client.IsolationLevel
        seen = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
        try:
            found = self._asked(lambda admin: admin.list_offsets(wanted, isolation_level=seen))
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
        self._sought: dict[int, int] = {}  # past what could not be unpacked
        self.broken = 0

    def read(self, topic: str, ranges: Sequence[tuple[int, int, int]]) -> Iterator[list[Any]]:
        """The messages of ranges (partition, first, end): lists of them, as they come.

        Compacted records and those of aborted transactions are left out; so is what the client
        cannot unpack, which is counted in `broken`.
        """
        self._sought = {}
        firsts = {partition: first for partition, first, end in ranges if first < end}
        ends = {partition: end for partition, first, end in ranges if first < end}
        if self._consumer is None:
            self._consumer = self._kafka.made(client.Consumer, READING, **QUICK)
        self._consumer.assign([client.TopicPartition(topic, p, at) for p, at in firsts.items()])
        left, deadline = set(ends), time.monotonic() + SECONDS
        while left:
            batch = self._consumer.consume(_BATCH, timeout=_PATIENCE)
            reached = {m.partition(): m.offset() + 1 for m in batch if m.error() is None}
            broken: dict[int, int] = {}
            for event in [m for m in batch if m.error() is not None]:
                if event.error().code() in _BROKEN:  # only the first: a fetch may repeat it
                    broken.setdefault(event.partition(), event.offset())
                else:
                    reached |= self._passed(topic, event)
            for partition, offset in broken.items():
                reached[partition] = self._skipped(topic, partition, offset)
            if left & reached.keys():
                deadline = time.monotonic() + SECONDS
            elif time.monotonic() > deadline:
                raise self._kafka.refuse(client.KafkaError(_ERROR._TIMED_OUT))
            left -= {p for p, at in reached.items() if p in ends and at >= ends[p]}
            yield [
                m
                for m in batch
                if m.error() is None and firsts[m.partition()] <= m.offset() < ends[m.partition()]
            ]
        self._consumer.unassign()

    def _passed(self, topic: str, event: Any) -> dict[int, int]:
        """Where a partition is after something that is no message, if that is known."""
        code, partition = event.error().code(), event.partition()
        if code == _ERROR._PARTITION_EOF:
            return {partition: event.offset()}
        if code == _ERROR._AUTO_OFFSET_RESET:
            raise UnavailableError(f"The topic {topic} has just lost old records.")
        if not event.error().retriable():
            raise self._kafka.refuse(event.error())
        return {}

    def _skipped(self, topic: str, partition: int, offset: int) -> int:
        """Where a partition is read on, past a record that the client cannot unpack: the next one,
        or the next again if it is packed with that one.
        """
        sought = self._sought.get(partition, 0)
        after = offset + 1 if offset >= sought else sought + 1
        self._sought[partition] = after
        self._consumer.seek(client.TopicPartition(topic, partition, after))
        self.broken += 1
        return after

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class Producer:
    """Writes messages, each by itself, acknowledged by all replicas before `send` returns."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._producer = kafka.made(
            client.Producer,
            WRITING,
            **{"message.max.bytes": _MESSAGE_BYTES, "batch.num.messages": 1},
        )

    def send(self, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> None:
        """Write messages (key, value). Those that the brokers do not take are left out: what a
        message says must not stop a trigger.
        """
        failed: list[Any] = []
        for key, value in messages:
            try:
                _produce(self._producer, topic, key, value, failed)
            except client.KafkaException as problem:
                failed.append(problem.args[0])
        late = self._producer.flush(SECONDS) > 0
        problems = [self._kafka.refuse(error) for error in failed]
        waits = [problem for problem in problems if isinstance(problem, UnavailableError)]
        if late or waits:
            self._producer.purge()
            self._producer.flush(SECONDS)
            raise waits[0] if waits else self._kafka.refuse(client.KafkaError(_ERROR._TIMED_OUT))


class Transactions:
    """Writes messages all or none. A later writer of the same name shuts out this one."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka = kafka
        self._producer = kafka.made(client.Producer, WRITING | {"transactional.id": name})
        with self._refusals([]):
            self._producer.init_transactions(3 * SECONDS)  # ends what another has left open

    def write(self, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Messages (topic, key, value) in one transaction."""
        failed: list[Any] = []
        with self._refusals(failed):
            self._producer.begin_transaction()
            for topic, key, value in messages:
                _produce(self._producer, topic, key, value, failed)
            self._producer.commit_transaction(3 * SECONDS)

    def close(self) -> None:
        """Give up what was not committed."""
        self._producer.purge()

    @contextmanager
    def _refusals(self, failed: list[Any]) -> Iterator[None]:
        """What went wrong; if a message failed, that says more than its transaction."""
        try:
            yield
        except client.KafkaException as problem:
            errors = [problem.args[0], *failed]
            if any(error.code() in _SHUT_OUT for error in errors):
                raise UnavailableError(
                    "A transaction was cut off: it took too long, or another process writes for"
                    " this pipeline. The release is kept."
                ) from None
            raise self._kafka.refuse(errors[-1]) from None


def _produce(producer: Any, topic: str, key: bytes | None, value: bytes, failed: list[Any]) -> None:
    """Queue a message, when there is room; `failed` gets its error if it does not arrive."""

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(_PATIENCE)
