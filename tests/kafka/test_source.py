"""A topic as a source, on a real broker: exact ranges, gaps, dead letters, schemas, credentials."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from dpsqlp.clients import avro as schemas_module
from dpsqlp.clients import kafka as clients
from dpsqlp.clients.avro import Schemas, UnusableError, parse_schema
from dpsqlp.errors import DpsqlpError, PlanError, SourceError, UnavailableError
from dpsqlp.sources.avro import AvroDecoder, _column
from dpsqlp.sources.columns import declared_schema
from dpsqlp.sources.kafka import KafkaSource
from dpsqlp.sql.query import OptionValue, SourceDef
from kafka.broker import PASSWORD, USER, Broker, Registry
from support.pipelines import at
from support.ports import free_ports
from support.processes import WAIT_SECONDS

COLUMNS = (("unit", "TEXT"), ("k", "BIGINT"), ("ts", "TIMESTAMP"))


def made(broker: Broker, topic: str, folder: Any = Path(), **options: Any) -> KafkaSource:
    given = {"connector": "kafka", "brokers": broker.address, "topic": topic}
    named = {name.replace("__", "."): value for name, value in options.items()}
    return KafkaSource(SourceDef("s", COLUMNS, given | named), folder)


def planned(source: KafkaSource, offset: Any, trigger: int) -> Any:
    """What a trigger reads, from an offset to now."""
    return source.complete(source.cut(offset, at(trigger)))


def rows(source: KafkaSource, records: Any) -> list[tuple[Any, ...]]:
    """What a range holds, sorted."""
    with duckdb.connect() as database:
        source.read(records, database)
        return sorted(database.sql("SELECT unit, k, ts FROM s").fetchall(), key=str)


def units(source: KafkaSource, records: Any) -> list[str]:
    return [row[0] for row in rows(source, records)]


def record(unit: str) -> dict[str, Any]:
    return {"unit": unit, "k": 1, "ts": "2026-01-01 00:00:00"}


def taken(source: KafkaSource, offset: Any) -> Any:
    """What a transaction gave, which shows a moment after it has ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        records = planned(source, offset, 2)
        if any(first < end for _, first, end in records["ranges"]):
            return records
    raise TimeoutError


def test_a_trigger_takes_all_that_has_arrived_and_nothing_later(broker: Broker, topic: str) -> None:
    """A range reads the same records each time, whatever came after it."""
    broker.create(topic, 2)
    source = made(broker, topic)
    begin = source.initial_offset()
    broker.send(topic, [record("a"), record("b")], 0)
    broker.send(topic, [record("c")], 1)
    first = planned(source, begin, 5)
    broker.send(topic, [record("d")], 1)
    assert units(source, first) == ["a", "b", "c"]
    offset = source.next_offset(begin, json.loads(json.dumps(first)))
    second = planned(source, offset, 6)
    assert units(source, second) == ["d"]
    assert units(source, first) == ["a", "b", "c"]
    last = source.next_offset(offset, second)
    assert units(source, planned(source, last, 7)) == []
    assert source.next_offset(last, None) == last
    assert units(source, None) == []
    source.close()


def test_new_partitions_are_read_from_their_start(broker: Broker, topic: str) -> None:
    """Also those that were added, and filled, since the last trigger."""
    broker.create(topic, 1)
    source = made(broker, topic, start="latest")
    broker.send(topic, [record("before")])
    offset = source.next_offset(
        source.initial_offset(), planned(source, source.initial_offset(), 1)
    )
    broker.send(topic, [record("a")])
    broker.grow(topic, 3)
    broker.send(topic, [record("b")], 2)
    assert units(source, planned(source, offset, 2)) == ["a", "b"]
    source.close()


def test_the_first_trigger_reads_all_or_begins_at_the_end(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.send(topic, [record("a")])
    for start, expected in (("earliest", ["a"]), ("latest", [])):
        source = made(broker, topic, start=start)
        assert units(source, planned(source, source.initial_offset(), 1)) == expected
        source.close()


def test_only_committed_records_count(broker: Broker, topic: str) -> None:
    """An open transaction holds back what comes after it; an aborted one leaves a gap."""
    broker.create(topic)
    producer = Producer(broker.client | {"transactional.id": topic})
    producer.init_transactions()
    source = made(broker, topic)
    producer.begin_transaction()
    producer.produce(topic, json.dumps(record("aborted")))
    producer.flush()
    broker.send(topic, [record("a")])
    held = planned(source, source.initial_offset(), 1)
    assert units(source, held) == []
    producer.abort_transaction()
    freed = taken(source, source.next_offset(source.initial_offset(), held))
    assert units(source, freed) == ["a"]
    producer.begin_transaction()
    producer.produce(topic, json.dumps(record("b")))
    producer.commit_transaction()
    after = source.next_offset(source.initial_offset(), freed)
    ends_with_a_marker = taken(source, after)
    assert units(source, ends_with_a_marker) == ["b"]
    source.close()


def test_a_compacted_topic_has_gaps(broker: Broker, topic: str) -> None:
    """Records that compaction removed are not waited for."""
    broker.create(
        topic,
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    source = made(broker, topic)
    for number in range(6):
        broker.send(topic, [record(f"u{number}")], key=b"same")
        time.sleep(0.1)
    range_ = planned(source, source.initial_offset(), 1)
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found := units(source, range_)) > 3 and time.monotonic() < deadline:
        broker.send(topic, [record("later")], key=b"other")  # closes the segment
        time.sleep(0.3)
    assert "u5" in found
    assert len(found) <= 3
    source.close()


def test_expired_records_are_refused_unless_that_is_accepted(broker: Broker, topic: str) -> None:
    """Which ones are gone depends on how many there were. The error does not say how many."""
    broker.create(topic)
    source = made(broker, topic)
    broker.send(topic, [record(name) for name in "abcdefg"])
    offset = source.next_offset(
        source.initial_offset(), planned(source, source.initial_offset(), 1)
    )
    broker.send(topic, [record(name) for name in "hijk"])
    range_ = planned(source, offset, 2)
    broker.expire(topic, 9)
    for call in (lambda: planned(source, offset, 2), lambda: rows(source, range_)):
        with pytest.raises(SourceError, match="skip_unprotected") as refusal:
            call()
        assert not re.search(r"\d", str(refusal.value).replace(topic, ""))
    skipping = made(broker, topic, expired="skip_unprotected")
    assert units(skipping, planned(skipping, offset, 2)) == ["j", "k"]
    assert units(skipping, range_) == ["j", "k"]
    fresh = made(broker, topic)  # begins with what there is
    assert units(fresh, planned(fresh, fresh.initial_offset(), 1)) == ["j", "k"]
    for each in (source, skipping, fresh):
        each.close()


def test_a_topic_that_disappears(broker: Broker, topic: str) -> None:
    """Refused at the start; waited for later; read from its start when it is made again."""
    source = made(broker, topic)
    with pytest.raises(SourceError, match="no topic"):
        planned(source, source.initial_offset(), 1)
    broker.create(topic)
    broker.send(topic, [record("a"), record("b")])
    first = planned(source, source.initial_offset(), 1)
    offset = source.next_offset(source.initial_offset(), first)
    broker.delete(topic)
    with pytest.raises(UnavailableError, match="no topic"):
        planned(source, offset, 2)
    broker.create(topic)
    broker.send(topic, [record("c"), record("d"), record("e")])
    assert units(source, planned(source, offset, 2)) == ["c", "d", "e"]
    with pytest.raises(SourceError, match="skip_unprotected"):
        rows(source, first)  # the records of that intent are gone
    skipping = made(broker, topic, expired="skip_unprotected")
    assert rows(skipping, first) == []
    source.close()
    skipping.close()


def test_a_topic_that_has_lost_its_end(broker: Broker, topic: str) -> None:
    """A broker that lost records would have its next ones passed over."""
    broker.create(topic)
    broker.send(topic, [record("a")])
    source = made(broker, topic)
    offset = source.next_offset(
        source.initial_offset(), planned(source, source.initial_offset(), 1)
    )
    offset["offsets"]["0"] = 7
    with pytest.raises(SourceError, match="fewer records"):
        planned(source, offset, 2)
    source.close()


BAD = [b"{", b"\xff\xfe", b"[1]", b"3", b"null", b'{"unit": "x"} {"unit": "y"}', b""]


def test_what_cannot_be_decoded_is_a_dead_letter(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """It goes where the operator says, once more if the trigger runs again, and hides nothing."""
    broker.create(topic)
    letters = broker.create(f"{topic}-dead")
    source = made(broker, topic, tmp_path, dead_letters="dead", dead_letter_topic=letters)
    broker.send(topic, [record("a"), *BAD, None, record("b")])
    range_ = planned(source, source.initial_offset(), 12)
    assert units(source, range_) == ["a", "b"]
    assert source.undecodable == len(BAD)
    assert [value for _, value in broker.read(letters)] == BAD
    (file,) = (tmp_path / "dead").iterdir()
    assert (tmp_path / "dead").stat().st_mode & 0o77 == 0
    kept = file.read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    assert file.name.startswith("trigger-000000000012-")
    assert [base64.b64decode(line["value_base64"]) for line in lines] == BAD
    assert [(line["partition"], line["offset"]) for line in lines] == [
        (0, number) for number in range(1, 1 + len(BAD))
    ]
    assert units(source, range_) == ["a", "b"]
    assert file.read_text() == kept
    source.close()
    nowhere = made(broker, topic)
    assert units(nowhere, range_) == ["a", "b"]
    nowhere.close()
    other = made(broker, topic, tmp_path, dead_letters="dead")  # another sink's trigger 12
    broker.send(topic, [b"another"])
    offset = other.next_offset(other.initial_offset(), range_)
    assert units(other, planned(other, offset, 12)) == []
    assert len(list((tmp_path / "dead").iterdir())) == 2
    other.close()


def test_a_dead_letter_never_stops_a_trigger(broker: Broker, topic: str) -> None:
    """A topic that is not there is refused before any record; what it does not take is dropped."""
    broker.create(topic, max_message_bytes="3000000")
    missing = made(broker, topic, dead_letter_topic=f"{topic}-missing")
    with pytest.raises(SourceError, match="for dead letters"):
        planned(missing, missing.initial_offset(), 1)
    missing.close()
    letters = broker.create(f"{topic}-small", max_message_bytes="1000")
    broker.send(topic, [record("a"), b"x" * 2_000_000, b"y" * 2_000, b"z"])
    source = made(broker, topic, dead_letter_topic=letters)
    assert units(source, planned(source, source.initial_offset(), 1)) == ["a"]
    assert source.undecodable == 3
    assert [value for _, value in broker.read(letters)] == [b"z"]
    source.close()


def test_a_record_that_the_client_cannot_unpack_is_passed_by(broker: Broker, topic: str) -> None:
    """A few bytes that would become more than the client takes."""
    broker.create(topic)
    small = {"kafka__fetch.max.bytes": 1_000_000, "kafka__message.max.bytes": 1_000_000}
    small |= {"kafka__receive.message.max.bytes": 1_000_512}
    broker.send(topic, [record("a")])
    settings = {"compression.type": "zstd", "message.max.bytes": 50_000_000}
    producer = Producer(broker.client | settings)
    for _ in range(2):
        producer.produce(topic, b" " * 20_000_000)
        producer.flush()
    for name in "bcd":
        broker.send(topic, [record(name)])
    source = made(broker, topic, **small)
    range_ = planned(source, source.initial_offset(), 1)
    for _ in range(3):
        assert units(source, range_) == ["a", "b", "c", "d"]
    assert source.undecodable == 6
    source.close()


def test_a_partition_that_is_not_listed_for_a_moment_is_not_read_again(
    broker: Broker, topic: str
) -> None:
    source = made(broker, topic)
    offset: Any = {"topic": "t", "offsets": {"0": 5, "1": 9}}
    read: Any = {"topic": "t", "ranges": [[0, 5, 6]]}
    after = source.next_offset(offset, read)
    assert after["offsets"] == {"0": 6, "1": 9}
    read = {"topic": "new", "ranges": [[0, 0, 6]]}
    assert source.next_offset(offset, read)["offsets"] == {"0": 6}


def test_the_offset_of_another_source_is_refused(broker: Broker, topic: str) -> None:
    source = made(broker, topic)
    others: list[Any] = [None, {"taken": []}, {"table": "t", "column": "id", "after": "3"}]
    for offset in others:
        with pytest.raises(SourceError, match="connector it had"):
            planned(source, offset, 1)
    source.close()


def test_a_field_of_another_type_or_a_new_one_changes_no_other(broker: Broker, topic: str) -> None:
    """A schema that changes in mid-stream: nulls where a column has nothing to read."""
    broker.create(topic)
    broker.send(
        topic,
        [
            record("a"),
            {"unit": "b", "k": "2", "more": {"x": [1]}, "ts": "2026-01-01T00:00:01"},
            {"unit": "c", "k": "many", "ts": 3},
            {"k": 4},
            {"unit": {"id": "e"}, "k": 2**70, "ts": None},
        ],
    )
    source = made(broker, topic)
    found = rows(source, planned(source, source.initial_offset(), 1))
    source.close()
    assert [row[:2] for row in found] == [
        ("a", 1),
        ("b", 2),
        ("c", None),
        ('{"id":"e"}', None),
        (None, 4),
    ]
    assert [None if row[2] is None else row[2].second for row in found] == [0, 1, None, None, None]


FIRST = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "unit", "type": "string"},
        {"name": "k", "type": ["null", "long"]},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SECOND = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "more", "type": {"type": "array", "items": "int"}},
        {"name": "K", "type": ["int", "string"]},
        {"name": "unit", "type": {"type": "enum", "name": "e", "symbols": ["x", "y"]}},
    ],
}


AT_ONCE = {"registry.max.retries": 0}


class Clock:
    """What the registry's client asks of `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def avro(schema: Any, body: dict[str, Any], number: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), body)
    header = b"" if number is None else b"\0" + number.to_bytes(4, "big")
    return header + stream.getvalue()


def test_avro_by_a_schema_file(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Each value by itself: one with a byte too many or too few is a dead letter."""
    broker.create(topic)
    (tmp_path / "r.avsc").write_text(json.dumps(FIRST))
    source = made(broker, topic, tmp_path, format="avro", schema="r.avsc")
    good = avro(FIRST, {"unit": "a", "k": 7, "ts": 1767225601000})
    none = avro(FIRST, {"unit": "b", "k": None, "ts": 1767225602000})
    far = avro(FIRST, {"unit": "far", "k": 1, "ts": 2**62})  # beyond the calendar
    broker.send(topic, [good, good + b"\0", good[:-1], none, far, b""])
    found = rows(source, planned(source, source.initial_offset(), 1))
    source.close()
    assert [(unit, k, ts.second) for unit, k, ts in found] == [("a", 7, 1), ("b", None, 2)]
    assert source.undecodable == 4


def test_avro_by_a_registry_with_a_schema_that_changes(
    broker: Broker, topic: str, registry: Registry
) -> None:
    """Each value names its schema; a number the registry does not have is a dead letter."""
    broker.create(topic)
    one, two = registry.add(FIRST), registry.add(SECOND)
    source = made(broker, topic, format="avro", schema_registry=registry.address)
    broker.send(
        topic,
        [
            avro(FIRST, {"unit": "a", "k": 7, "ts": 1767225601000}, one),
            avro(SECOND, {"more": [1], "K": 8, "unit": "x"}, two),
            avro(SECOND, {"more": [1], "K": "9", "unit": "y"}, two),
            avro(SECOND, {"more": [1], "K": "many", "unit": "y"}, two),
            avro(FIRST, {"unit": "lost", "k": 7, "ts": 0}, 99),
            b"\0\0",
            b"{}",
        ],
    )
    range_ = planned(source, source.initial_offset(), 1)
    found = rows(source, range_)
    assert [row[:2] for row in found] == [("a", 7), ("x", 8), ("y", 9), ("y", None)]
    assert source.undecodable == 3
    source.close()
    registry.close()
    away = made(broker, topic, format="avro", schema_registry=registry.address)
    with pytest.raises(UnavailableError, match="schema registry"):
        rows(away, range_)
    away.close()


def test_a_range_reads_the_same_whatever_the_registry_learns_or_forgets(
    broker: Broker, topic: str, registry: Registry
) -> None:
    """The schemas there were are part of the range: others are unknown to it, for good."""
    broker.create(topic)
    one = registry.add(FIRST)
    source = made(broker, topic, format="avro", schema_registry=registry.address)
    early = avro(FIRST, {"unit": "a", "k": 7, "ts": 1767225601000}, one)
    late = avro(SECOND, {"more": [1], "K": 8, "unit": "x"}, one + 1)
    broker.send(topic, [early, None, late])
    range_ = json.loads(json.dumps(planned(source, source.initial_offset(), 1)))
    assert units(source, range_) == ["a"]
    assert registry.add(SECOND) == one + 1
    again = made(broker, topic, format="avro", schema_registry=registry.address)
    for each in (source, again):
        assert units(each, range_) == ["a"]
        assert units(each, planned(each, each.initial_offset(), 1)) == ["a", "x"]
        each.close()
    registry.schemas.clear()
    forgotten = made(broker, topic, format="avro", schema_registry=registry.address)
    with pytest.raises(UnavailableError, match="no longer has a schema"):
        units(forgotten, range_)
    forgotten.close()


def test_a_value_that_does_not_fit_its_type_is_null_alone() -> None:
    """Arrow would refuse the whole column."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    records = [{"x": Decimal("1.25")}, {"x": Decimal(10**9)}, {"x": None}]
    got = _column({"name": "x", "type": decimal}, records)
    assert got.type == pa.decimal128(4, 2)
    assert got.to_pylist() == [Decimal("1.25"), None, None]


TYPED: list[tuple[Any, str, Any, Any]] = [
    ("boolean", "BOOLEAN", True, True),
    ("int", "BIGINT", -5, -5),
    ("float", "DOUBLE", 1.5, 1.5),
    ("bytes", "BLOB", b"\0\xff", b"\0\xff"),
    ({"type": "fixed", "name": "f", "size": 2}, "BLOB", b"ab", b"ab"),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "TEXT", "B", "B"),
    ({"type": "string", "logicalType": "uuid"}, "TEXT", UUID(int=7), str(UUID(int=7))),
    ({"type": "int", "logicalType": "date"}, "DATE", date(2026, 1, 2), date(2026, 1, 2)),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "DECIMAL(10, 2)",
        Decimal("1.25"),
        Decimal("1.25"),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 100, "scale": 2},
        "TEXT",
        Decimal("1.25"),
        "1.25",
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        "TIMESTAMP",
        datetime(2026, 1, 2, tzinfo=UTC),
        datetime(2026, 1, 2),
    ),
    (["null", "string", "long"], "TEXT", 5, "5"),
    ({"type": "map", "values": "int"}, "TEXT", {"a": 1}, '{"a": 1}'),
]


@pytest.mark.parametrize(("schema", "column", "given", "expected"), TYPED)
def test_types_of_avro(tmp_path: Path, schema: Any, column: str, given: Any, expected: Any) -> None:
    """They arrive as the source's column has them."""
    record = {"type": "record", "name": "r", "fields": [{"name": "x", "type": schema}]}
    (tmp_path / "r.avsc").write_text(json.dumps(record))
    source = SourceDef("s", (("x", column),), {"schema": "r.avsc"})
    decoder = AvroDecoder(source, declared_schema(source), Schemas(source.options, tmp_path))
    table, bad = decoder([avro(record, {"x": given})])
    assert bad == []
    assert table.column("x").to_pylist() == [expected]


@pytest.mark.parametrize("said", [{}, {"scale": 2}, {"precision": 0}, {"precision": []}])
def test_a_decimal_that_is_none_stops_nothing(tmp_path: Path, said: dict[str, Any]) -> None:
    """Its nulls are values of the schema."""
    schema = field(["null", {"type": "bytes", "logicalType": "decimal"} | said])
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    source = SourceDef("s", (("x", "DOUBLE"),), {"schema": "r.avsc"})
    decoder = AvroDecoder(source, declared_schema(source), Schemas(source.options, tmp_path))
    table, bad = decoder([b"\0", b"\0"])
    assert bad == []
    assert table.column("x").to_pylist() == [None, None]


def field(kind: Any) -> Any:
    return {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}


def doubling(depth: int) -> Any:
    """A record of two of two of two ... nothings."""
    kind: Any = "null"
    for level in range(depth):
        kind = {
            "type": "record",
            "name": f"t{level}",
            "fields": [{"name": "x", "type": kind}, {"name": "y", "type": f"t{level - 1}"}]
            if level
            else [{"name": "x", "type": "null"}],
        }
    return kind


@pytest.mark.parametrize(
    "schema",
    [
        field(["null", "r"]),
        field({"type": "array", "items": "null"}),
        field({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}),
        {"type": "map", "values": "int"},
        ["null", field("int")],
        doubling(40),
        5,
        None,
        {},
    ],
)
def test_schemas_by_which_a_value_could_end_the_process(schema: Any) -> None:
    """Deep or long beyond what their bytes can pay for, or no records at all."""
    with pytest.raises(UnusableError):
        parse_schema(json.dumps(schema))
    parse_schema(json.dumps(field({"type": "array", "items": ["null", "int"]})))


@pytest.mark.parametrize("code", [401, 403, 503])
def test_a_registry_that_refuses(broker: Broker, topic: str, registry: Registry, code: int) -> None:
    """It is waited for; credentials are not shown."""
    registry.refuses = code
    address = registry.address.replace("http://", "http://user:hunter2@")
    source = made(broker, topic, format="avro", schema_registry=address)
    with pytest.raises(UnavailableError, match="schema registry") as refusal:
        source._decode([b"\0\0\0\0\1x"], [1])
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("code", [401, 403, 500, 503])
@pytest.mark.parametrize("first", [True, False])
def test_a_number_that_a_registry_refuses_is_a_dead_letter(
    registry: Registry, code: int, first: bool
) -> None:
    """While it answers to others: one value neither stops nor holds up the rest."""
    one = registry.add(FIRST)
    registry.bad[7] = code
    schemas = Schemas({"schema_registry": registry.address, **AT_ONCE}, Path())
    if first:  # nothing is known yet
        assert schemas.known([7]) == set()
    assert schemas.known([one, 7]) == {one}
    assert schemas.known([7]) == set()


@pytest.mark.parametrize("code", [401, 403, 500, 503, None])
def test_a_registry_that_answers_to_nothing_is_waited_for_but_not_for_ever(
    registry: Registry, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then new numbers are those of no schema; what is known is read as before."""
    one = registry.add(FIRST)
    schemas = Schemas({"schema_registry": registry.address, **AT_ONCE}, Path())
    assert schemas.known([one]) == {one}
    clock = Clock()
    monkeypatch.setattr(schemas_module, "time", clock)
    registry.refuses = code
    if code is None:
        registry.close()
    for now in (0, 3599):
        clock.now = now
        with pytest.raises(UnavailableError, match="schema registry"):
            schemas.known([one, 2])
    clock.now = 3600
    assert schemas.known([one, 2]) == {one}
    if code is not None:
        registry.refuses = None
        assert schemas.known([2]) == set()
        registry.refuses = code
        with pytest.raises(UnavailableError):  # it has been back
            schemas.known([3])


def test_a_schema_of_a_trigger_that_began_is_waited_for(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ever: a retry reads the same records."""
    one = registry.add(FIRST)
    monkeypatch.setattr(schemas_module, "_AWAY_SECONDS", 0)
    registry.refuses = 503
    schemas = Schemas({"schema_registry": registry.address, **AT_ONCE}, Path())
    with pytest.raises(UnavailableError):
        schemas.split([b"\0\0\0\0\1x"], [one])


def test_a_refused_number_in_a_topic(broker: Broker, topic: str, registry: Registry) -> None:
    """The others are read, the decision is part of the range, and it is asked for once."""
    broker.create(topic)
    one = registry.add(FIRST)
    options = {name.replace(".", "__"): value for name, value in AT_ONCE.items()}
    source = made(broker, topic, format="avro", schema_registry=registry.address, **options)
    good = avro(FIRST, {"unit": "a", "k": 1, "ts": 0}, one)
    registry.bad[9] = 403
    broker.send(topic, [good, b"\0\0\0\0\x09" + good[5:], good, b"\0\0\0\0\x09x"])
    records = planned(source, source.initial_offset(), 1)
    assert records["schemas"] == [one]
    assert registry.asked.count(9) == 1
    registry.bad.clear()
    assert units(source, json.loads(json.dumps(records))) == ["a", "a"]
    assert source.undecodable == 2
    source.close()


@pytest.mark.parametrize(("code", "number"), [(400, 7), (404, 7), (422, 7), (500, 2**31)])
def test_a_number_that_no_schema_has_stops_nothing(
    registry: Registry, code: int, number: int
) -> None:
    """Registries say so in several ways; what none could have is not asked for."""
    registry.refuses = code
    schemas = Schemas({"schema_registry": registry.address}, Path())
    assert schemas.known(schemas.named([b"\0" + number.to_bytes(4, "big") + b"x"])) == set()


@pytest.mark.parametrize("options", [{}, {"schema": "a", "schema_registry": "http://b"}])
def test_avro_needs_one_way_to_know_the_schema(broker: Broker, options: dict[str, str]) -> None:
    with pytest.raises(PlanError, match="either schema"):
        made(broker, "t", format="avro", **options)


def test_credentials(broker: Broker, topic: str) -> None:
    """The right ones read; wrong ones are refused at once, not waited for, and not shown."""
    broker.create(topic)
    broker.send(topic, [record("a")])
    known = {
        "brokers": broker.sasl,
        "kafka__security.protocol": "SASL_PLAINTEXT",
        "kafka__sasl.mechanism": "PLAIN",
        "kafka__sasl.username": USER,
    }
    source = made(broker, topic, **known, **{"kafka__sasl.password": PASSWORD})
    assert units(source, planned(source, source.initial_offset(), 1)) == ["a"]
    source.close()
    wrong = made(broker, topic, **known, **{"kafka__sasl.password": "hunter2"})
    with pytest.raises(SourceError, match="refuse the credentials") as refusal:
        planned(wrong, wrong.initial_offset(), 1)
    assert "hunter2" not in str(refusal.value)
    wrong.close()


def test_tls(broker: Broker, topic: str) -> None:
    """By the authority that is named, and by no other."""
    broker.create(topic)
    broker.send(topic, [record("a")])
    known = {"brokers": broker.tls, "kafka__security.protocol": "SSL"}
    source = made(broker, topic, **known, **{"kafka__ssl.ca.location": str(broker.certificate)})
    assert units(source, planned(source, source.initial_offset(), 1)) == ["a"]
    source.close()
    unknown = made(broker, topic, **known)
    with pytest.raises(SourceError, match="TLS"):
        planned(unknown, unknown.initial_offset(), 1)
    unknown.close()


def test_settings_that_would_break_the_promise_are_refused(broker: Broker) -> None:
    with pytest.raises(PlanError, match="set by dpsqlp"):
        made(broker, "t", kafka__group__id="mine")
    with pytest.raises(PlanError, match=r"enable\.partition\.eof is set"):
        made(broker, "t", **{"kafka__enable.partition.eof": False})
    for name in ("bootstrap.servers", "error_cb", "stats_cb", "logger", "auto.commit.enable"):
        with pytest.raises(PlanError, match="set by dpsqlp"):
            made(broker, "t", **{f"kafka__{name}": "x"})
    for name in ("fetch.min.byte", "default.topic.config"):
        source = made(broker, "t", **{f"kafka__{name}": "1"})
        with pytest.raises(PlanError, match="refuses an option"):
            planned(source, source.initial_offset(), 1)


def test_what_waiting_does_not_heal_is_not_waited_for(broker: Broker) -> None:
    source = made(broker, "no such/topic")
    with pytest.raises(SourceError, match="refuse"):
        planned(source, source.initial_offset(), 1)
    source.close()


@pytest.mark.parametrize(
    ("package", "module"), [("confluent_kafka", "kafka"), ("fastavro", "avro")]
)
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str
) -> None:
    """That is the installation, not the plan."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"dpsqlp.clients.{module}")
    with pytest.raises(DpsqlpError, match="not installed") as refusal:
        import_module(f"dpsqlp.clients.{module}")
    assert refusal.type is DpsqlpError


def test_columns_that_json_cannot_have() -> None:
    options: dict[str, OptionValue] = {"connector": "kafka", "brokers": "b", "topic": "t"}
    with pytest.raises(PlanError, match="read from JSON"):
        KafkaSource(SourceDef("s", (("x", "BIT"),), options), Path())


def test_brokers_that_do_not_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are to be asked again."""
    monkeypatch.setattr(clients, "SECONDS", 1.0)
    (port,) = free_ports(1)
    source = made(broker, "t", brokers=f"127.0.0.1:{port}")
    with pytest.raises(UnavailableError, match="do not answer"):
        planned(source, source.initial_offset(), 1)
