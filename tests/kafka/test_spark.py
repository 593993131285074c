"""A topic read by Spark's own connector, released to PostgreSQL by ours."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import dpsqlp.spark
from dpsqlp.engines.script import open_engine, open_spark_engine
from dpsqlp.engines.spark.kafka import SparkKafka, java_settings
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import PlanError, SourceError
from dpsqlp.sql import compile_script
from dpsqlp.sql.query import SourceDef
from kafka.broker import PASSWORD, USER, Broker
from postgres.cluster import Cluster, in_sql
from postgres.conftest import cluster, server
from support.fake_clock import START, FakeClock
from support.pipelines import SECRET, step

__all__ = ["cluster", "server"]  # fixtures

SQL = """
CREATE SOURCE s (unit TEXT, k TEXT) WITH (connector = 'python');
CREATE SINK pages WITH (connector = 'postgres', dsn = {dsn}) AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3, privacy_unit_column = unit,
  max_rows_contributed = 1) k, COUNT(*) AS n
FROM s GROUP BY k EMIT EVERY INTERVAL 4 SECONDS FOR 100 TRIGGERS;
"""


def records(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    """The topic's values as records."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
    )
    columns = "unit STRING, k STRING"
    values = f"from_json(CAST(value AS STRING), '{columns}') AS v"
    return reader.load().selectExpr(values).select("v.*")


def crowd(first: int, count: int) -> list[Any]:
    return [{"unit": f"u{n}", "k": f"k{n % 2}"} for n in range(first, first + count)]


def test_kafka_to_postgres(
    spark: Any, broker: Broker, server: Cluster, topic: str, tmp_path: Path
) -> None:
    """Every record counts once, over a stop and a start, and no trigger is left out."""
    broker.create(topic, 2)
    sql = SQL.format(dsn=in_sql(server.dsn))
    places: dict[str, Any] = {
        "state": tmp_path / "state",
        "secret": tmp_path / "secret",
        "shards": 2,
        "unprotected_batches": True,
    }

    def counted(expected: int) -> None:
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            assert query.exception() is None
            if server.run("SELECT to_regclass('pages')::text") != [(None,)]:
                found = dict(server.run("SELECT k, n FROM pages_current"))
                if len(found) == 2 and all(abs(n - expected) < 60 for n in found.values()):
                    return
            time.sleep(0.2)
        raise TimeoutError

    for turn in (1, 2):
        query = dpsqlp.spark.start(records(spark, broker, topic), sql, **places)
        broker.send(topic, [*crowd(1000 * turn, 500), b"no record"], 0)
        broker.send(topic, crowd(1000 * turn + 500, 500), 1)
        counted(500 * turn)
        query.stop()
    triggers = [n for (n,) in server.run("SELECT DISTINCT trigger FROM pages ORDER BY 1")]
    assert triggers == list(range(triggers[0], triggers[-1] + 1))


@pytest.mark.parametrize(
    ("limit", "value"),
    [("maxOffsetsPerTrigger", "10"), ("minOffsetsPerTrigger", "10"), ("failOnDataLoss", "false")],
)
def test_limits_by_count_are_refused(
    spark: Any, broker: Broker, topic: str, tmp_path: Path, limit: str, value: str
) -> None:
    """They would let one unit's records move or drop those of others."""
    broker.create(topic)
    frame = records(spark, broker, topic, **{limit: value})
    sql = SQL.format(dsn="''")
    with pytest.raises(SourceError, match=limit):
        dpsqlp.spark.start(
            frame,
            sql,
            state=tmp_path / "state",
            secret=tmp_path / "secret",
            unprotected_batches=True,
        )


TOPIC = """
CREATE SOURCE s (unit TEXT, k TEXT, x DOUBLE, ts TIMESTAMP, flags BOOLEAN, price DECIMAL(9, 2))
  WITH (connector = 'kafka', brokers = '{broker}', topic = '{topic}'{options});
CREATE SINK pages WITH (connector = 'jsonl', path = '{out}') AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3, privacy_unit_column = unit,
  max_rows_contributed = 4) k, flags, COUNT(*) AS n,
  SUM(x, contribution_bounds_per_row => (-1, 5)) AS total,
  SUM(CAST(price AS DOUBLE), contribution_bounds_per_row => (0, 9)) AS spent
FROM s GROUP BY k, flags EMIT EVERY INTERVAL 15 MINUTES FOR 6 TRIGGERS;
"""


def visits(trigger: int) -> list[Any]:
    """Records of all kinds, and values that are none."""
    dice = random.Random(trigger)
    hostile = [
        b"no record", b"[1]", b"\xff", None, {"unit": 7, "k": None, "x": "3", "price": "1e3"},
        {"unit": "u1", "k": "\u0000é", "x": 1e400, "ts": "never", "flags": "maybe", "price": -1},
    ]  # fmt: skip
    return hostile + [
        {
            "unit": f"u{dice.randrange(60)}",
            "k": dice.choice(["a", "b", "ü", None]),
            "x": dice.uniform(-3, 9),
            "ts": "2024-10-04 00:00:00",
            "flags": dice.choice([True, False, None]),
            "price": round(dice.uniform(0, 12), 2),
        }
        for _ in range(200)
    ]


@pytest.mark.parametrize("listener", ["plain", "sasl"])
def test_a_topic_that_the_engine_reads_itself(
    listener: str, spark: Any, broker: Broker, topic: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Offsets by the driver at grid times; Spark's releases are those of the local engine."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))
    broker.create(topic, 2)
    address, options = broker.address, ""
    if listener == "sasl":
        address = broker.sasl
        options = (
            ", kafka.security.protocol = 'SASL_PLAINTEXT', kafka.sasl.mechanism = 'PLAIN',"
            f" kafka.sasl.username = '{USER}', kafka.sasl.password = '{PASSWORD}'"
        )
    engines = {}
    for name in ("local", "spark"):
        values = {"broker": address, "topic": topic, "out": f"out-{name}", "options": options}
        (sink,) = compile_script(TOPIC.format(**values)).sinks
        places: Any = {"state": tmp_path / name, "secret": tmp_path / "secret", "folder": tmp_path}
        places["clock"] = FakeClock(START)
        engines[name] = (
            open_engine(sink, **places)
            if name == "local"
            else open_spark_engine(spark, sink, shards=2, **places)
        )
    for trigger in range(1, 7):
        if trigger != 4:  # a silent one
            broker.send(topic, visits(trigger), trigger % 2)
        for engine in engines.values():
            engine.cut(trigger)
        broker.send(topic, visits(10 + trigger), 0)  # after the cut
        assert {step(engine).trigger for engine in engines.values()} == {trigger}
    for engine in engines.values():
        engine.close()
    found = {
        name: [path.read_text() for path in sorted((tmp_path / f"out-{name}").glob("trigger-*"))]
        for name in engines
    }
    assert found["spark"] == found["local"]
    assert len(found["local"]) == 6
    assert all(text.count("\n") > 3 for text in found["local"])


def test_options_that_only_one_of_the_two_clients_has_are_refused() -> None:
    options: dict[str, Any] = {"brokers": "b:9092", "kafka.queued.min.messages": 7}
    with pytest.raises(PlanError, match=r"kafka.queued.min.messages is not known"):
        java_settings(options)
    with pytest.raises(PlanError, match="OAUTHBEARER"):
        java_settings({"brokers": "b:9092", "kafka.sasl.mechanism": "OAUTHBEARER"})
    given = {"kafka.ssl.ca.location": "/ca.pem", "kafka.security.protocol": "SSL"}
    settings = java_settings({"brokers": "b:9092", **given})
    assert settings["kafka.ssl.truststore.location"] == "/ca.pem"
    assert settings["kafka.security.protocol"] == "SSL"
    with pytest.raises(PlanError, match="dead_letters"):
        SparkKafka(SourceDef("s", (), {"dead_letters": "x"}), Path())
