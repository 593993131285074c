"""A topic read by Spark's own connector, released to PostgreSQL by ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import dpsqlp.spark
from dpsqlp.errors import SourceError
from kafka.broker import Broker
from postgres.cluster import Cluster, in_sql
from postgres.conftest import cluster, server

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
    places = {"state": tmp_path / "state", "secret": tmp_path / "secret", "shards": 2}

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
        dpsqlp.spark.start(frame, sql, state=tmp_path / "state", secret=tmp_path / "secret")
