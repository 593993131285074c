"""A topic as a sink, on a real broker: every release exactly once for readers of committed ones."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from dpsqlp.clients import kafka as clients
from dpsqlp.clients.avro import Encoder
from dpsqlp.errors import PlanError, SinkError, UnavailableError
from dpsqlp.sinks.kafka import KafkaSink
from dpsqlp.sql import connect
from kafka.broker import Broker, Registry
from support.processes import WAIT_SECONDS, started

PIPELINE = "p" * 32


def made(broker: Broker, topic: str, pipeline: str = PIPELINE, **options: Any) -> KafkaSink:
    sink = KafkaSink(topic, {"connector": "kafka", "brokers": broker.address} | options)
    sink.open(pipeline, ["k"])
    return sink


def release(trigger: int, keys: int = 3) -> pa.Table:
    start = pa.array([datetime(2026, 1, 1)] * keys, pa.timestamp("us"))
    return pa.table(
        {
            "window_start": start,
            "window_end": start,
            "trigger": pa.array([trigger] * keys),
            "released_at": start,
            "window_trigger": pa.array([trigger] * keys),
            "final": pa.array([False] * keys),
            "k": [f"/{number}\n\u2028é" for number in range(keys)],
            "n": pa.array([trigger * 100 + number for number in range(keys)]),
            "n_sd": [1.5] * keys,
        }
    )


def published(broker: Broker, topic: str) -> list[tuple[int, str, int]]:
    bodies = [json.loads(value) for _, value in broker.read(topic)]
    return sorted((body["trigger"], body["k"], body["n"]) for body in bodies)


def expected(*triggers: int) -> list[tuple[int, str, int]]:
    return sorted(
        (row["trigger"], row["k"], row["n"]) for t in triggers for row in release(t).to_pylist()
    )


def test_a_release_is_one_transaction_with_a_marker(broker: Broker, topic: str) -> None:
    """A message's key is the row's window and group; a release given again is not repeated."""
    sink = made(broker, topic)
    sink.emit(7, release(7))
    sink.emit(7, release(7))
    sink.emit(8, release(8, keys=0))
    sink.close()
    again = made(broker, topic)
    again.emit(8, release(8, keys=0))
    again.emit(9, release(9))
    again.close()
    assert published(broker, topic) == expected(7, 9)
    keys = {json.loads(key or b"")["k"] for key, _ in broker.read(topic)}
    assert keys == {row["k"] for row in release(7).to_pylist()}
    assert all(
        set(json.loads(key or b"")) == {"window_start", "window_end", "k"}
        for key, _ in broker.read(topic)
    )
    markers = broker.read(f"{topic}.triggers")
    assert [key for key, _ in markers] == [PIPELINE.encode()] * 3
    assert [json.loads(value)["trigger"] for _, value in markers] == [7, 8, 9]


def test_a_published_trigger_is_not_replaced(broker: Broker, topic: str) -> None:
    """Other rows of the trigger that is out, also where it had none, are refused."""
    for trigger, out, other in ((7, 3, 2), (8, 0, 1)):
        sink = made(broker, topic)
        sink.emit(trigger, release(trigger, keys=out))
        sink.close()
        before = broker.read(topic)
        again = made(broker, topic)
        with pytest.raises(SinkError, match=r"different rows.*Nothing was replaced"):
            again.emit(trigger, release(trigger, keys=other))
        again.emit(trigger, release(trigger, keys=out))
        again.close()
        assert broker.read(topic) == before


def test_another_pipeline_is_not_taken_for_this_one(broker: Broker, topic: str) -> None:
    """Its trigger numbers may be the same."""
    for pipeline in ("a" * 32, "b" * 32):
        sink = made(broker, topic, pipeline)
        sink.emit(7, release(7))
        sink.close()
    assert len(broker.read(topic)) == 6


def test_a_second_writer_shuts_out_the_first(broker: Broker, topic: str) -> None:
    """One writer at a time, also where two processes have lost their lock."""
    first, second = made(broker, topic), made(broker, topic)
    first.emit(1, release(1))
    second.emit(2, release(2))
    with pytest.raises(UnavailableError, match="was aborted"):
        first.emit(2, release(2))
    second.emit(3, release(3))
    with pytest.raises(SinkError, match="another process is ahead"):
        first.emit(2, release(2))
    with pytest.raises(UnavailableError, match="was aborted"):
        second.emit(4, release(4))
    second.emit(4, release(4))
    second.close()
    assert published(broker, topic) == expected(1, 2, 3, 4)


def test_a_transaction_of_another_pipeline_does_not_hide_a_marker(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it ends it is not known whether a release is out: nothing is repeated."""
    sink = made(broker, topic)
    sink.emit(4, release(4))
    other = Producer(broker.client | {"transactional.id": f"{topic}-other"})
    other.init_transactions()
    other.begin_transaction()
    other.produce(f"{topic}.triggers", b"{}", b"other")
    other.flush()
    sink.emit(5, release(5))
    sink.close()
    monkeypatch.setattr(clients, "SECONDS", 2.0)
    again = made(broker, topic)
    with pytest.raises(
        UnavailableError, match=r"transaction on \S+\.triggers is open.*find-hanging"
    ):
        again.emit(5, release(5))
    other.abort_transaction()
    monkeypatch.setattr(clients, "SECONDS", 10.0)
    again.emit(5, release(5))
    again.emit(6, release(6))
    again.close()
    assert published(broker, topic) == expected(4, 5, 6)


def test_a_row_that_the_topic_does_not_take(broker: Broker, topic: str) -> None:
    """That does not pass by waiting."""
    broker.create(topic, max_message_bytes="200")
    sink = made(broker, topic)
    with pytest.raises(SinkError, match="MSG_SIZE_TOO_LARGE"):
        sink.emit(1, release(1))
    sink.close()


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_commit_whose_answer_is_lost(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Whether it came through is read from the markers, and the release comes once."""
    sink = made(broker, topic)
    sink.emit(1, release(1))
    producer = sink._transactions._producer  # type: ignore[union-attr]

    class Lost:
        def __getattr__(self, name: str) -> Any:
            return getattr(producer, name)

        def commit_transaction(self, *words: Any) -> None:
            if point == "after":
                producer.commit_transaction(*words)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(sink._transactions, "_producer", Lost())
    with pytest.raises(UnavailableError):
        sink.emit(2, release(2))
    sink.emit(2, release(2))
    sink.emit(3, release(3))
    sink.close()
    assert published(broker, topic) == expected(1, 2, 3)


def test_a_broker_that_is_killed_in_mid_stream(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release waits until the broker is back, and is there once."""
    sink = made(broker, topic)
    sink.emit(1, release(1))
    # A single broker that is killed just before the end of a transaction is in its logs may forget
    # to put it there: then it hangs for good, as in the test above.
    for name in (topic, f"{topic}.triggers"):
        broker.settle(name)
    monkeypatch.setattr(clients, "SECONDS", 2.0)
    broker.kill()
    with pytest.raises(UnavailableError):
        sink.emit(2, release(2))
    back = threading.Thread(target=broker.start)
    back.start()
    for trigger in (2, 3):
        while True:
            try:
                sink.emit(trigger, release(trigger))
                break
            except UnavailableError:
                time.sleep(0.2)
    back.join()
    sink.close()
    assert published(broker, topic) == expected(1, 2, 3)


def test_a_marker_that_was_deleted_stops_nothing(broker: Broker, topic: str) -> None:
    """What compaction has not yet removed still counts."""
    sink = made(broker, topic)
    sink.emit(1, release(1))
    sink.close()
    broker.send(f"{topic}.triggers", [None], key=PIPELINE.encode())
    again = made(broker, topic)
    for trigger in (1, 2):
        again.emit(trigger, release(trigger))
    again.close()
    assert published(broker, topic) == expected(1, 2)


WRITER = """
import sys
from kafka.test_sink import KafkaSink, PIPELINE, UnavailableError, release
sink = KafkaSink(sys.argv[2], {"connector": "kafka", "brokers": sys.argv[1]})
sink.open(PIPELINE, ["k"])
for trigger in range(int(sys.argv[3]), int(sys.argv[4])):
    print(trigger, flush=True)  # as an engine has it in its state before a sink does
    while True:
        try:
            sink.emit(trigger, release(trigger))
            break
        except UnavailableError:  # as an engine waits
            pass
"""


def test_a_process_that_is_killed_anywhere(broker: Broker, topic: str, tmp_path: Path) -> None:
    """The next one gives its last release again, as an engine does."""
    begun, end = 1, 150
    moments = random.Random(5)
    errors = tmp_path / "errors"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    for killed in [True] * 6 + [False]:
        words = [sys.executable, "-c", WRITER, broker.address, topic, str(begun), str(end)]
        with (
            errors.open("wb") as log,
            started(
                words, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            ) as process,
        ):
            if killed:
                assert process.stdout is not None
                lines = [process.stdout.readline() for _ in range(moments.randint(1, 3))]
                assert all(lines), errors.read_text()
                time.sleep(moments.uniform(0, 0.15))
                process.kill()
                begun = int(("".join(lines) + process.communicate()[0]).split()[-1])
            else:
                process.communicate(timeout=WAIT_SECONDS)
                assert process.returncode == 0, errors.read_text()
    assert published(broker, topic) == expected(*range(1, end))


def test_avro(broker: Broker, topic: str, registry: Registry) -> None:
    """Values name their schema in the registry and read back as they were."""
    sink = made(broker, topic, format="avro", schema_registry=registry.address)
    table = release(4).append_column("d", pa.array([date(2026, 1, 2)] * 3))
    table = table.append_column("u", pa.array([2**64 - 1] * 3, pa.uint64()))
    table = table.append_column("none", pa.array([None] * 3, pa.int16()))
    sink.emit(4, table)
    sink.close()
    values = [value for _, value in broker.read(topic)]
    (schema,) = registry.schemas
    parsed = fastavro.parse_schema(json.loads(schema))
    read: list[Any] = [fastavro.schemaless_reader(io.BytesIO(v[5:]), parsed, None) for v in values]
    assert all(value[:5] == b"\0\0\0\0\1" for value in values)
    assert sorted(row["k"] for row in read) == sorted(table.column("k").to_pylist())
    assert {row["window_start"] for row in read} == {datetime(2026, 1, 1, tzinfo=UTC)}
    assert {row["d"] for row in read} == {date(2026, 1, 2)}
    assert {row["u"] for row in read} == {Decimal(2**64 - 1)}
    assert {row["none"] for row in read} == {None}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("DATE", "infinity", 2**31 - 1),
        ("DATE", "5877642-06-25 (BC)", 2 - 2**31),
        ("TIMESTAMP", "-infinity", 1 - 2**63),
        ("TIMESTAMPTZ", "294247-01-10 04:00:54.775806+00", 2**63 - 2),
        ("TIMESTAMP_S", "infinity", 2**63 - 1),
        ("TIMESTAMP_NS", "2024-01-02 00:00:00.000000001", "2024-01-02 00:00:00.000000001"),
        ("TIME", "24:00:00", "24:00:00"),
        ("HUGEINT", str(2**127 - 1), Decimal(2**127 - 1)),
    ],
)
def test_keys_that_python_has_no_value_for(
    registry: Registry, kind: str, value: str, expected: Any
) -> None:
    """A release that cannot be written would be tried for ever."""
    with connect() as database:
        keys = database.sql(f"SELECT CAST('{value}' AS {kind}) AS k").to_arrow_table()
    (written,) = Encoder({"schema_registry": registry.address}, "t")(keys)
    schema = registry.schemas[0].replace("timestamp-micros", "none").replace('"date"', '"none"')
    bare = fastavro.parse_schema(json.loads(schema))
    assert fastavro.schemaless_reader(io.BytesIO(written[5:]), bare, None) == {"k": expected}


def test_avro_needs_a_registry(broker: Broker, topic: str) -> None:
    with pytest.raises(PlanError, match="schema_registry"):
        made(broker, topic, format="avro").emit(1, release(1))


def test_diagnostics_have_a_topic_of_their_own(broker: Broker, topic: str) -> None:
    """Beside the released rows, each trigger once, with markers of their own."""
    sink = made(broker, topic)
    second = sink.diagnostics()
    second.open(PIPELINE, ())
    for trigger in (7, 7, 8):
        sink.emit(trigger, release(trigger))
        second.emit(trigger, release(trigger, keys=1).drop(["k"]))
    sink.close()
    second.close()
    told = broker.read(f"{topic}_diagnostics")
    assert [json.loads(value)["trigger"] for _, value in told] == [7, 8]
    assert {*json.loads(told[0][0] or b"")} == {"window_start", "window_end"}
    assert len(broker.read(f"{topic}.triggers_diagnostics")) == 2
    assert published(broker, topic) == expected(7, 8)
