"""The Kafka source compared with a bare consumer that only decodes the same small JSON records.

Both read a topic of one partition and one of four from a broker on this machine. Figures are
medians of several runs. One JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
from confluent_kafka import Consumer, TopicPartition

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dpsqlp.clients.kafka import FETCH_SETTINGS
from dpsqlp.sources.base import GridTime
from dpsqlp.sources.kafka import KafkaSource
from dpsqlp.sql.query import OptionValue, SourceDef
from kafka.broker import Broker, running

COLUMNS = (("url", "TEXT"), ("user_id", "TEXT"), ("ts", "TIMESTAMP"), ("dwell", "DOUBLE"))


def fill(broker: Broker, topic: str, partitions: int, records: int) -> None:
    rng = np.random.default_rng(1)
    broker.create(topic, partitions)
    pages, users = rng.integers(0, 1000, records), rng.integers(0, 100_000, records)
    values = [
        {"url": f"/p/{page}", "user_id": f"u{user}", "ts": "2026-01-01 00:00:00", "dwell": 12.5}
        for page, user in zip(pages.tolist(), users.tolist(), strict=True)
    ]
    for partition in range(partitions):
        broker.send(topic, values[partition::partitions], partition)


def bare(broker: Broker, topic: str, partitions: int) -> int:
    settings = {"group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(broker.client | settings | FETCH_SETTINGS)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records, ended = 0, 0
    while ended < partitions:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                ended += 1
            else:
                json.loads(message.value() or b"")
                records += 1
    consumer.close()
    return records


def ours(broker: Broker, topic: str, partitions: int) -> int:
    options: dict[str, OptionValue] = {
        "connector": "kafka",
        "brokers": broker.address,
        "topic": topic,
    }
    source = KafkaSource(SourceDef("s", COLUMNS, options), Path())
    with duckdb.connect() as database:
        source.read(source.cut(source.initial_offset(), GridTime(1, 0, 10.0)), database)
        records = database.sql("SELECT count(dwell) FROM s").fetchall()[0][0]
    source.close()
    return int(records)


def rate(read: Callable[[Broker, str, int], int], *where: object, records: int) -> float:
    begin = time.perf_counter()
    assert read(*where) == records  # type: ignore[arg-type]
    return records / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as broker:
        for partitions in (1, 4):
            topic = f"events-{partitions}"
            fill(broker, topic, partitions, given.records)
            rates: dict[str, list[float]] = {"bare": [], "dpsqlp": []}
            for _ in range(given.turns):
                for name, read in (("bare", bare), ("dpsqlp", ours)):
                    where = (broker, topic, partitions)
                    rates[name].append(rate(read, *where, records=given.records))
            found = {name: round(median(many)) for name, many in rates.items()}
            line = {"benchmark": "kafka source", "partitions": partitions}
            line |= {f"{name}_records_per_second": value for name, value in found.items()}
            print(json.dumps(line | {"ratio": round(found["dpsqlp"] / found["bare"], 2)}))


if __name__ == "__main__":
    main()
