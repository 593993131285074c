"""A streaming DataFrame in, a private table out, on a Spark of this process."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import dpsqlp.spark

SQL = """
CREATE SOURCE trips (station TEXT, rider BIGINT);

CREATE SINK busy AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 4, delta = 1e-7, privacy_unit_column = rider, max_contribution_norm = 2)
  station, COUNT(*) AS trips
FROM trips
GROUP BY station
EMIT EVERY INTERVAL 5 SECONDS FOR 100 TRIGGERS;
"""


def run(spark: SparkSession, folder: Path, releases: int) -> list[list[str]]:
    """Count trips by station until some releases had rows; the stations of each of them."""
    riders = range(3_000)
    stations = [f"station {rider % 5}" for rider in riders[:-2]] + ["the lighthouse"] * 2
    (folder / "trips").mkdir()
    pq.write_table(pa.table({"station": stations, "rider": riders}), folder / "trips/1.parquet")

    seen: list[list[str]] = []
    enough = threading.Event()

    def write(release: DataFrame, trigger: int) -> None:
        rows = release.orderBy("station").collect()
        for row in rows:
            print(f"trigger {trigger}: {row.station} {row.trips:.0f} ± {row.trips_sd:.0f}")
        if rows:
            seen.append([row.station for row in rows])
        if len(seen) == releases:
            enough.set()

    frame = spark.readStream.schema("station STRING, rider LONG").parquet(str(folder / "trips"))
    query = dpsqlp.spark.start(
        frame,
        SQL,
        state=folder / "trips.state",
        write=write,
        shards=2,
        unprotected_batches=True,  # Spark decides which batch a record is in, not the clock
    )
    while not enough.wait(1):
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
    query.stop()
    return seen


def main() -> None:
    """Run on two cores of this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        run(session, Path(folder), releases=3)
    session.stop()


if __name__ == "__main__":
    main()
