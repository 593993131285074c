"""PostgreSQL on this machine: writing releases, and reading records. One JSON object per line.

The server is started in a temporary folder, with fsync on for the releases.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dpsqlp.sinks.postgres import PostgresSink
from dpsqlp.sources.base import GridTime
from dpsqlp.sources.postgres import PostgresSource
from dpsqlp.sql import connect
from dpsqlp.sql.query import OptionValue, SourceDef
from postgres import cluster as clusters
from support.components import postgres_programs


def release(trigger: int, rows: int) -> pa.Table:
    """Rows with a text key, a count and a sum."""
    return pa.table(
        {
            "window_start": pa.array([datetime(2024, 1, 1)] * rows, pa.timestamp("us")),
            "window_end": pa.array([datetime(2024, 1, 2)] * rows, pa.timestamp("us")),
            "trigger": pa.array(np.full(rows, trigger)),
            "released_at": pa.array([datetime(2024, 1, 2)] * rows, pa.timestamp("us")),
            "window_trigger": pa.array(np.full(rows, trigger)),
            "final": pa.array(np.zeros(rows, bool)),
            "url": pa.array([f"/page/{number}" for number in range(rows)]),
            "n": pa.array(np.arange(rows)),
            "n_sd": pa.array(np.full(rows, 6.5)),
            "total": pa.array(np.arange(rows) / 3),
            "total_sd": pa.array(np.full(rows, 40.25)),
        }
    )


def median_seconds(run: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def say(benchmark: str, rows: int, seconds: float) -> None:
    line = {"benchmark": benchmark, "rows": rows, "milliseconds": round(1000 * seconds, 1)}
    print(json.dumps(line | {"rows_per_second": round(rows / seconds)}), flush=True)


def bench_sink(server: clusters.Cluster, rows: int) -> None:
    sink = PostgresSink(server.dsn, "releases")
    sink.open("", ["url"])
    releases = iter([release(trigger, rows) for trigger in range(8)])
    sink.emit(9, release(9, rows))
    say("postgres_emit", rows, median_seconds(lambda: sink.emit(8, next(releases)), 8))
    for trigger in range(8):
        sink.emit(trigger, release(trigger, rows))
    query = "SELECT count(*) FROM (SELECT * FROM releases_current OFFSET 0) AS c"
    say("postgres_view", 10 * rows, median_seconds(lambda: server.run(query), 3))
    sink.close()


def bench_source(server: clusters.Cluster, rows: int) -> None:
    server.run(
        "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url text,"
        " user_id bigint, ts timestamptz, dwell float8);"
        "INSERT INTO events (url, user_id, ts, dwell) SELECT '/page/' || n % 1000, n, now(),"
        f" n / 3.0 FROM generate_series(1, {rows}) AS n"
    )
    columns = (
        ("url", "VARCHAR"),
        ("user_id", "BIGINT"),
        ("ts", "TIMESTAMP"),
        ("dwell", "DOUBLE"),
    )
    options: dict[str, OptionValue] = {"dsn": server.dsn, "table": "events", "column": "id"}
    source = PostgresSource(SourceDef("s", columns, options))
    taken = source.cut(source.initial_offset(), GridTime(1, 0, 10.0))

    def read() -> None:
        with connect() as database:
            source.read(taken, database)
            table = database.sql("FROM s").to_arrow_table()
            assert table.num_rows == rows

    say("postgres_read", rows, median_seconds(read, 5))
    after = source.next_offset(source.initial_offset(), taken)

    def cut() -> None:
        source.cut(after, GridTime(2, 0, 10.0))

    say("postgres_take", 1, median_seconds(cut, 20))
    source.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    programs = postgres_programs()
    if programs is None:
        sys.exit("PostgreSQL is not installed: `make services` gets it.")
    clusters.SETTINGS["fsync"] = "on"
    server = clusters.Cluster(programs)
    try:
        server.start()
        bench_sink(server, rows)
        bench_source(server, 5 * rows)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
