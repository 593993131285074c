"""The Kafka client: settings, topics, offsets, reading, writing, and error messages.

Privacy contract: offsets count records, so no error message contains one.
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
    text = "The Kafka client is not installed. Run `pip install 'dpsqlp[kafka]'`."
    raise DpsqlpError(text) from None

SECONDS = 10.0  # until an answer is given up
_MESSAGES_MAX = 50_000
_POLL_SECONDS = 0.5
_MESSAGE_BYTES = 10_000_000
_CONSUMER_SETTINGS = {
    "group.id": "dpsqlp",  # never joined: offsets are in the pipeline's state
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
}
# Without these, a consumer pauses for a second whenever its queue is full.
FETCH_SETTINGS = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10}
_PRODUCER_SETTINGS = {"enable.idempotence": True}
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
_FENCED_CODES = (_ERROR._FENCED, _ERROR.PRODUCER_FENCED, _ERROR.INVALID_PRODUCER_EPOCH)
# Errors that do not go away by themselves. All others are retried, and shown meanwhile.
_PERMANENT = (
    *(_ERROR.MSG_SIZE_TOO_LARGE, _ERROR.RECORD_LIST_TOO_LARGE, _ERROR.INVALID_RECORD),
    *(_ERROR.TOPIC_EXCEPTION, _ERROR.INVALID_TRANSACTION_TIMEOUT, _ERROR.POLICY_VIOLATION),
    *(_ERROR.INVALID_CONFIG, _ERROR.INVALID_PARTITIONS, _ERROR.UNSUPPORTED_VERSION),
    *(_ERROR.UNSUPPORTED_COMPRESSION_TYPE, _ERROR.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    *(_ERROR.UNSUPPORTED_SASL_MECHANISM, _ERROR.SECURITY_DISABLED, _ERROR._INVALID_ARG),
    *(_ERROR._UNSUPPORTED_FEATURE, _ERROR._NOT_IMPLEMENTED),
)
# A message that the client cannot decompress or parse.
_UNREADABLE = (_ERROR._BAD_COMPRESSION, _ERROR._BAD_MSG, _ERROR.MSG_SIZE_TOO_LARGE)
_RESERVED = {"bootstrap.servers", "transactional.id", "auto.commit.enable", "logger"}


class Kafka:
    """The connection to the brokers of one source or sink."""

    def __init__(self, options: Mapping[str, OptionValue], error: type[DpsqlpError]) -> None:
        """`error` is raised for permanent errors. Options kafka.* are passed to the client."""
        given = {n.removeprefix("kafka."): v for n, v in options.items() if n.startswith("kafka.")}
        ours = _CONSUMER_SETTINGS.keys() | _PRODUCER_SETTINGS.keys() | _RESERVED
        clash = sorted(name for name in given if name in ours or name.endswith("_cb"))
        if clash:
            raise PlanError(f"The option kafka.{clash[0]} is set by dpsqlp. Leave it out.")
        self.brokers = str(options["brokers"])
        self.error = error
        self._refusal: str | None = None
        self._answered = False
        self._settings: dict[str, Any] = {
            "bootstrap.servers": self.brokers,
            "socket.timeout.ms": int(SECONDS * 1000),
            "logger": _SILENT,
            **given,
            "error_cb": self._remember_refusal,
        }
        self._admin: Any = None

    def _remember_refusal(self, error: Any) -> None:
        """Remember why connecting fails: later errors only say that it does. After a first success,
        a failed handshake means that a broker restarted.
        """
        if not self._answered:
            self._refusal = _REFUSED.get(error.code(), self._refusal)

    def as_error(self, error: Any) -> DpsqlpError:
        """A client's error as ours: UnavailableError if it is to be retried."""
        why = _REFUSED.get(error.code(), self._refusal)
        if why is not None:
            return self.error(
                f"The Kafka brokers {self.brokers} {why}. Check the options kafka.security.protocol"
                " and kafka.sasl.* or kafka.ssl.*, and the user's permissions. Nothing is lost."
            )
        if error.code() not in _PERMANENT:
            return UnavailableError(
                f"The Kafka brokers {self.brokers} do not answer ({error.name()}). Nothing is lost."
            )
        meaning = client.KafkaError(
            error.code()
        ).str()  # of the code alone: the full text may contain offsets
        return self.error(
            f"The Kafka brokers {self.brokers} refuse: {meaning} ({error.name()}). Correct this"
            " and run again. Nothing is lost."
        )

    def new_client(self, kind: Any, fixed: Mapping[str, Any], **usual: Any) -> Any:
        """A client of this class. Options override the usual settings, but not the fixed ones."""
        try:
            return kind(usual | self._settings | dict(fixed))
        except client.KafkaException as problem:
            text = problem.args[0].str()
            raise PlanError(f"The Kafka client refuses an option: {text}.") from None
        except (TypeError, ValueError, AttributeError) as problem:
            raise PlanError(f"The Kafka client refuses an option: {problem}.") from None

    def close(self) -> None:
        """Close the connection."""
        self._admin = None

    def _ask(self, question: Callable[[Any], Mapping[Any, Any]]) -> dict[Any, Any]:
        """The brokers' answers to an admin request."""
        if self._admin is None:
            self._admin = self.new_client(AdminClient, {})
        asked = question(self._admin)
        deadline = time.monotonic() + 2 * SECONDS
        while wait(asked.values(), _POLL_SECONDS).not_done:
            self._admin.poll(0)  # calls `_remember_refusal`
            if self._refusal is not None or time.monotonic() > deadline:
                raise self.as_error(client.KafkaError(_ERROR._TIMED_OUT))
        answers = {name: future.result() for name, future in asked.items()}
        self._answered = True
        return answers

    def topic(self, name: str) -> Topic | None:
        """The topic as it is now, if it exists."""
        try:
            wanted = client.TopicCollection([name])
            found = self._ask(lambda admin: admin.describe_topics(wanted))[name]
        except client.KafkaException as problem:
            if problem.args[0].code() == _ERROR.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.as_error(problem.args[0]) from None
        return Topic(name, str(found.topic_id), tuple(p.id for p in found.partitions))

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic, unless it exists: then no permission to create topics is needed."""
        if self.topic(name) is not None:
            return
        topic = NewTopic(name, partitions, config=dict(settings))
        try:
            self._ask(lambda admin: admin.create_topics([topic]))
        except client.KafkaException as problem:
            if problem.args[0].code() != _ERROR.TOPIC_ALREADY_EXISTS:
                raise self.as_error(problem.args[0]) from None

    def offsets(self, topic: Topic, *, end: bool, committed: bool = True) -> dict[int, int]:
        """The first or the end offset of each partition. For committed records, a partition ends
        at its first open transaction.
        """
        which = (OffsetSpec.latest if end else OffsetSpec.earliest)()  # type: ignore[no-untyped-call]
        wanted = {client.TopicPartition(topic.name, p): which for p in topic.partitions}
        level = client.IsolationLevel
        seen = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
        try:
            found = self._ask(lambda admin: admin.list_offsets(wanted, isolation_level=seen))
        except client.KafkaException as problem:
            raise self.as_error(problem.args[0]) from None
        return {partition.partition: result.offset for partition, result in found.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. A topic that was deleted and created again has another id."""

    name: str
    id: str
    partitions: tuple[int, ...]


class Reader:
    """Reads exact ranges of a topic's partitions, in no particular order."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._consumer: Any = None
        self._skipped_to: dict[int, int] = {}  # by partition, past unreadable messages
        self.broken = 0

    def read(self, topic: str, ranges: Sequence[tuple[int, int, int]]) -> Iterator[list[Any]]:
        """The messages of ranges (partition, first, end), in lists, as they arrive.

        Compacted records and those of aborted transactions are left out; so are messages that the
        client cannot read, which are counted in `broken`.
        """
        self._skipped_to = {}
        firsts = {partition: first for partition, first, end in ranges if first < end}
        ends = {partition: end for partition, first, end in ranges if first < end}
        if self._consumer is None:
            self._consumer = self._kafka.new_client(
                client.Consumer, _CONSUMER_SETTINGS, **FETCH_SETTINGS
            )
        self._consumer.assign([client.TopicPartition(topic, p, at) for p, at in firsts.items()])
        left, deadline = set(ends), time.monotonic() + SECONDS
        while left:
            batch = self._consumer.consume(_MESSAGES_MAX, timeout=_POLL_SECONDS)
            reached = {m.partition(): m.offset() + 1 for m in batch if m.error() is None}
            broken: dict[int, int] = {}
            for event in [m for m in batch if m.error() is not None]:
                if event.error().code() in _UNREADABLE:  # only the first: a fetch may repeat it
                    broken.setdefault(event.partition(), event.offset())
                else:
                    reached |= self._offset_after(topic, event)
            for partition, offset in broken.items():
                reached[partition] = self._skip(topic, partition, offset)
            if left & reached.keys():
                deadline = time.monotonic() + SECONDS
            elif time.monotonic() > deadline:
                raise self._kafka.as_error(client.KafkaError(_ERROR._TIMED_OUT))
            left -= {p for p, at in reached.items() if p in ends and at >= ends[p]}
            yield [
                m
                for m in batch
                if m.error() is None and firsts[m.partition()] <= m.offset() < ends[m.partition()]
            ]
        self._consumer.unassign()

    def _offset_after(self, topic: str, event: Any) -> dict[int, int]:
        """A partition's offset after an event that is not a message, if it is known."""
        code, partition = event.error().code(), event.partition()
        if code == _ERROR._PARTITION_EOF:
            return {partition: event.offset()}
        if code == _ERROR._AUTO_OFFSET_RESET:
            raise UnavailableError(f"The topic {topic} has just deleted old records.")
        if not event.error().retriable():
            raise self._kafka.as_error(event.error())
        return {}

    def _skip(self, topic: str, partition: int, offset: int) -> int:
        """Skip an unreadable message, and return the next offset. If the next message is in the
        same unreadable batch, one more is skipped each time.
        """
        skipped_to = self._skipped_to.get(partition, 0)
        after = offset + 1 if offset >= skipped_to else skipped_to + 1
        self._skipped_to[partition] = after
        self._consumer.seek(client.TopicPartition(topic, partition, after))
        self.broken += 1
        return after

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class Producer:
    """Writes single messages, acknowledged by all replicas before `send` returns."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._producer = kafka.new_client(
            client.Producer,
            _PRODUCER_SETTINGS,
            **{"message.max.bytes": _MESSAGE_BYTES, "batch.num.messages": 1},
        )

    def send(self, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> None:
        """Write messages (key, value). Messages that the brokers refuse are left out: the contents
        of a message must not stop a trigger.
        """
        failed: list[Any] = []
        for key, value in messages:
            try:
                _produce(self._producer, topic, key, value, failed)
            except client.KafkaException as problem:
                failed.append(problem.args[0])
        late = self._producer.flush(SECONDS) > 0
        problems = [self._kafka.as_error(error) for error in failed]
        waits = [problem for problem in problems if isinstance(problem, UnavailableError)]
        if late or waits:
            self._producer.purge()
            self._producer.flush(SECONDS)
            raise waits[0] if waits else self._kafka.as_error(client.KafkaError(_ERROR._TIMED_OUT))


class Transactions:
    """Writes messages in transactions. A later writer of the same name fences this one."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._kafka = kafka
        self._producer = kafka.new_client(
            client.Producer, _PRODUCER_SETTINGS | {"transactional.id": name}
        )
        with self._errors([]):
            self._producer.init_transactions(
                3 * SECONDS
            )  # aborts transactions that a former writer left open

    def write(self, messages: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Write messages (topic, key, value) in one transaction."""
        failed: list[Any] = []
        with self._errors(failed):
            self._producer.begin_transaction()
            for topic, key, value in messages:
                _produce(self._producer, topic, key, value, failed)
            self._producer.commit_transaction(3 * SECONDS)

    def close(self) -> None:
        """Discard messages that were not committed."""
        self._producer.purge()

    @contextmanager
    def _errors(self, failed: list[Any]) -> Iterator[None]:
        """Raise client errors as ours; a failed message explains more than its transaction."""
        try:
            yield
        except client.KafkaException as problem:
            errors = [problem.args[0], *failed]
            if any(error.code() in _FENCED_CODES for error in errors):
                raise UnavailableError(
                    "A transaction was aborted: it took too long, or another process writes for"
                    " this pipeline. The release is kept."
                ) from None
            raise self._kafka.as_error(errors[-1]) from None


def _produce(producer: Any, topic: str, key: bytes | None, value: bytes, failed: list[Any]) -> None:
    """Queue a message as soon as there is room. If its delivery fails, `failed` gets the error."""

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(_POLL_SECONDS)
