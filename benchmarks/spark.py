"""The Spark engine compared with Spark's own non-private streaming count, on one machine.

Both read the same Parquet files, one per trigger, with about 250,000 keys in 600,000 records, and
keep durable state: ours with bounding, selection and noise, Spark's `groupBy(key).count()` in its
RocksDB store. Then a trigger is measured on a small and a large table of cold keys. Figures are of
the median trigger after the first few; one JSON object per line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.engines.script import open_engine, open_spark_engine
from dpsqlp.engines.spark.session import start_session
from dpsqlp.experiments.data import START_US
from dpsqlp.sql import compile_script

SQL = """
CREATE SOURCE day (user_id BIGINT, key BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = '{folder}/in/*.parquet');
CREATE SINK counts WITH (connector = 'parquet', path = '{folder}/out') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32,
           max_rows_per_group = 1, max_selections_contributed = 6)
  key, COUNT(*) AS n
FROM day GROUP BY key, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 15 MINUTES
  ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-01-02';
"""
INTERVAL_US = 15 * 60 * 10**6
RECORDS = 600_000
HOT_KEYS = 290_000  # so that a trigger has about 250,000 of them
UNITS = 2_000_000
WARM_UP = 4
SHARDS = 4


def write(path: Path, trigger: int, units: np.ndarray, keys: np.ndarray) -> None:
    """The records of one trigger."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.full(len(keys), START_US + (trigger - 1) * INTERVAL_US)
    columns = {"user_id": units, "key": keys, "ts": pa.array(times, pa.timestamp("us"))}
    pq.write_table(pa.table(columns), path)


def write_hot(folder: Path, first: int, last: int) -> float:
    """Triggers of hot keys; returns the mean number of keys in one."""
    rng = np.random.default_rng(first)
    distinct = []
    for trigger in range(first, last + 1):
        keys = rng.integers(0, HOT_KEYS, RECORDS)
        distinct.append(len(np.unique(keys)))
        write(folder / f"{trigger:03d}.parquet", trigger, rng.integers(0, UNITS, RECORDS), keys)
    return float(np.mean(distinct))


def private_seconds(spark: Any, folder: Path, triggers: int, local: int = 0) -> list[float]:
    """Seconds of each trigger; the local engine runs the first few."""
    [sink] = compile_script(SQL.format(folder=folder)).sinks
    places: dict[str, Any] = {
        "state": folder / "state",
        "secret": folder / "secret",
        "folder": folder,
    }
    if local:
        engine = open_engine(sink, threads=SHARDS, **places)
        for _ in range(local):
            engine.step()
        engine.close()
    on_spark = open_spark_engine(spark, sink, shards=SHARDS, **places)
    times = []
    for _ in range(triggers):
        begin = time.perf_counter()
        on_spark.step()
        times.append(time.perf_counter() - begin)
    on_spark.close()
    return times


def plain_seconds(spark: Any, folder: Path, triggers: int) -> list[float]:
    """Seconds of each micro-batch of Spark's own count."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.shuffle.partitions", SHARDS)
    query = (
        spark.readStream.schema("user_id BIGINT, key BIGINT, ts TIMESTAMP_NTZ")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "in"))
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    durations = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    assert len(durations) == triggers, durations
    return [milliseconds / 1000 for milliseconds in durations]


def bench_throughput(spark: Any, triggers: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        keys = write_hot(folder / "in", 1, triggers)
        plain = float(np.median(plain_seconds(spark, folder, triggers)[WARM_UP:]))
        private = float(np.median(private_seconds(spark, folder, triggers)[WARM_UP:]))
    report = {
        "benchmark": "spark_throughput",
        "records_per_trigger": RECORDS,
        "keys_per_trigger": round(keys),
        "records_per_second": round(RECORDS / private),
        "keys_per_second": round(keys / private),
        "plain_records_per_second": round(RECORDS / plain),
        "plain_keys_per_second": round(keys / plain),
        "ratio_to_plain": round(plain / private, 2),
    }
    print(json.dumps(report), flush=True)


def bench_cold_keys(spark: Any, sizes: list[int], triggers: int) -> None:
    """The same triggers after one with this many keys, which the local engine ran."""
    first = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            cold = np.arange(size)
            write(folder / "in" / "001.parquet", 1, UNITS + cold // 32, HOT_KEYS + cold)
            write_hot(folder / "in", 2, 1 + triggers)
            seconds = float(np.median(private_seconds(spark, folder, triggers, 1)[WARM_UP:]))
        first = first or seconds
        report = {
            "benchmark": "spark_cold_keys",
            "keys_in_state": size,
            "milliseconds": round(1000 * seconds, 1),
            "ratio_to_first": round(seconds / first, 2),
        }
        print(json.dumps(report), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small tables, for a look")
    quick = parser.parse_args().quick
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--driver-memory 4g pyspark-shell")
    spark = start_session("local[2,4]")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        bench_throughput(spark, 6 if quick else 14)
        bench_cold_keys(
            spark, [10_000, 100_000] if quick else [10**6, 2 * 10**7], 6 if quick else 12
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
