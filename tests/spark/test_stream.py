"""Streams on Spark: batches run at the grid's triggers, once each, and nothing else decides."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import lit, pandas_udf, udf  # type: ignore[attr-defined]

import dpsqlp.spark
from dpsqlp.engines.clock import SystemClock
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.release_query import serialise
from dpsqlp.engines.spark.files import SparkFiles, as_declared
from dpsqlp.engines.spark.foreach_batch import ForeachBatch, with_ticks
from dpsqlp.errors import PlanError, SourceError, TriggerError
from dpsqlp.sources.python_frames import PythonSource
from dpsqlp.sql import compile_script
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage
from support.fake_clock import START, FakeClock
from support.pipelines import MINUTE, SECRET, Collected, Record, at, script, table
from support.processes import started, until

PYTHON = "connector = 'python'"
SCHEMA = "unit STRING, k STRING, x DOUBLE, ts TIMESTAMP_NTZ"


def records(seed: int, at: int, number: int = 300) -> list[Record]:
    dice = np.random.default_rng(seed)
    return [
        (f"u{dice.integers(60)}", f"k{dice.integers(6)}", float(dice.normal()), at - int(back))
        for back in dice.integers(0, 30 * MINUTE, number)
    ]


class Streamed:
    """A query fed batch by batch, as Spark would, and the same instance on the local engine."""

    def __init__(self, spark: Any, folder: Path, sql: str) -> None:
        self.spark, self.folder = spark, folder
        (self.definition,) = compile_script(sql).sinks
        self.clock, self.local_clock = FakeClock(START), FakeClock(START)
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text(SECRET.key.hex())
        storage = SealedStorage(LocalStorage(folder / "local"))
        query = self.definition.query
        self.source = PythonSource(query.source, storage)
        self.local = LocalEngine(
            query, storage, SECRET.key, self.source, Collected(), clock=self.local_clock, threads=2
        )
        shutil.copytree(folder / "local", folder / "state")
        self.sink = Collected()
        self.batches = self.opened()

    def opened(self, checkpoint: str = "c") -> ForeachBatch:
        state, secret = str(self.folder / "state"), self.folder / "secret"
        return ForeachBatch(
            self.definition.query, self.sink, state, secret, checkpoint, 2, clock=self.clock
        )

    def frame(self, rows: list[Record]) -> Any:
        frame = self.spark.createDataFrame(table(rows), schema=SCHEMA)
        return frame.selectExpr("*", "CAST(NULL AS BIGINT) AS dpsqlp_tick")

    def batch(self, number: int, at: int, rows: list[Record]) -> None:
        """A batch at a moment, on both."""
        self.clock.time = self.local_clock.time = at
        self.batches(self.frame(rows), number)
        self.source.push(table(rows))
        while self.local.next_trigger <= self.local.schedule.current(at):
            if not self.local.ready:
                self.local.cut(self.local.schedule.current(at))
            self.local.step()

    def check(self) -> None:
        assert isinstance(self.local.sink, Collected)
        found, expected = ([serialise(r) for r in s.releases] for s in (self.sink, self.local.sink))
        assert found == expected
        assert any(release.num_rows for release in self.sink.releases)


@pytest.fixture
def streamed(spark: Any, tmp_path: Path) -> Streamed:
    return Streamed(spark, tmp_path, script(source=PYTHON))


def test_batches_give_what_the_local_engine_gives(streamed: Streamed) -> None:
    """Trigger by trigger, with silence, missed triggers and a record dated a year ahead."""
    quarter = 15 * MINUTE
    ahead: Record = ("u1", "k1", 1.0, START + 365 * 24 * 60 * MINUTE)
    for number, (step, rows) in enumerate(
        [
            (1, records(1, START + quarter)),
            (2, []),
            (3, [*records(2, START + 3 * quarter), ahead]),
            (6, records(3, START + 6 * quarter)),  # 4 and 5 were missed
            (7, []),
        ]
    ):
        streamed.batch(number, START + step * quarter + 1_000_000, rows)
    assert len(streamed.sink.releases) == 7
    streamed.check()


def test_batches_end_with_a_closing(spark: Any, tmp_path: Path) -> None:
    """Of a window whose last trigger has records, of one whose last trigger is missed, and of one
    without records.
    """
    quarter = 15 * MINUTE
    options = ", privacy_unit_period = INTERVAL 30 MINUTES, max_selections_contributed = 1"
    window = "TUMBLE(ts, INTERVAL 30 MINUTES)"
    streamed = Streamed(spark, tmp_path, script(source=PYTHON, window=window, options=options))
    for number, (step, count) in enumerate([(1, 40), (2, 40), (3, 80), (5, 0), (6, 0)]):
        streamed.batch(number, START + step * quarter, records(step, START + step * quarter, count))
    assert len(streamed.sink.releases) == 6
    streamed.check()


def test_a_batch_that_comes_again_counts_once(streamed: Streamed) -> None:
    """Spark may call with a committed batch again: before and after a restart."""
    quarter = 15 * MINUTE
    rows = records(1, START + quarter)
    streamed.batch(0, START + quarter, rows)
    streamed.batches(streamed.frame(rows), 0)
    streamed.batches.close()
    streamed.batches = streamed.opened()
    streamed.batches(streamed.frame(rows), 0)
    streamed.batch(1, START + 2 * quarter, records(2, START + 2 * quarter))
    streamed.check()


def test_a_batch_before_its_trigger_waits(streamed: Streamed) -> None:
    """Two batches within one interval are two triggers: the second waits for its own."""
    quarter = 15 * MINUTE
    streamed.batch(0, START + quarter, records(1, START + quarter))
    streamed.clock.time = START + quarter + 1
    ran: list[int] = []
    streamed.clock.happenings = [
        (START + 2 * quarter - 1, lambda: ran.append(len(streamed.sink.releases)))
    ]
    streamed.batches(streamed.frame([]), 1)
    assert ran == [1]
    assert len(streamed.sink.releases) == 2


def test_after_an_early_batch_spark_takes_the_next_at_its_trigger(streamed: Streamed) -> None:
    """Spark takes a batch when the one before has returned. A batch that was early returns when the
    next is due; one at its trigger, or after it, at once.
    """
    quarter = 15 * MINUTE
    streamed.clock.time = START + 1
    streamed.batches(streamed.frame([]), 0)
    assert streamed.clock.time == START + 2 * quarter
    assert len(streamed.sink.releases) == 1
    streamed.batches(streamed.frame([]), 0)  # again: it has run
    streamed.batches(streamed.frame([]), 1)
    assert streamed.clock.time == START + 2 * quarter
    assert len(streamed.sink.releases) == 2


def test_an_early_batch_that_is_stopped_after_its_trigger_has_run(streamed: Streamed) -> None:
    """It returns; should Spark not get to note that, the batch comes again and counts once."""
    quarter = 15 * MINUTE
    rows = records(1, START + quarter)
    streamed.clock.time = START + 1
    streamed.clock.happenings = [(START + quarter + 1, streamed.batches.stopped.set)]
    streamed.batches(streamed.frame(rows), 0)
    streamed.batches.close()
    streamed.batches = streamed.opened()
    streamed.batch(0, START + 2 * quarter, rows)
    assert len(streamed.sink.releases) == 1


@pytest.mark.parametrize(
    ("number", "checkpoint"), [(0, "c"), (3, "c"), (0, "other"), (1, "other"), (2, "other")]
)
def test_a_checkpoint_that_is_not_the_states_is_refused(
    streamed: Streamed, number: int, checkpoint: str
) -> None:
    """An older one, a gap, or another's batches: records would count twice or not at all."""
    quarter = 15 * MINUTE
    streamed.batch(0, START + quarter, records(1, START + quarter))
    streamed.batch(1, START + 2 * quarter, [])
    streamed.batches.close()
    streamed.batches = streamed.opened(checkpoint)
    streamed.clock.time = START + 3 * quarter
    with pytest.raises(SourceError, match="One of the two was replaced"):
        streamed.batches(streamed.frame([]), number)
    assert len(streamed.sink.releases) == 2


def test_a_failed_batch_lets_go_of_the_state_and_can_be_run_again(
    streamed: Streamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarter = 15 * MINUTE
    rows = records(1, START + quarter)
    streamed.clock.time = START + quarter
    with monkeypatch.context() as broken:
        broken.setattr("dpsqlp.engines.spark.engine.open_tables", lambda *_: iter(()))
        with pytest.raises(Exception, match="every shard"):
            streamed.batches(streamed.frame(rows), 0)
    streamed.batch(0, START + quarter, rows)
    streamed.check()


def test_what_spark_says_of_a_record_is_not_passed_on(streamed: Streamed) -> None:
    """An error of a frame before the query has the record in its text."""
    streamed.clock.time = START + 15 * MINUTE
    frame = streamed.frame([("u1", "private", 1.0, START)])
    with pytest.raises(SourceError, match="could not run the trigger") as failure:
        streamed.batches(frame.withColumn("x", frame.k.cast("double")), 0)
    assert "private" not in "".join(traceback.format_exception(failure.value))


def test_no_batch_runs_after_the_last_trigger(spark: Any, tmp_path: Path) -> None:
    """It is refused, so that Spark does not take records for nothing."""
    sql = script(source=PYTHON, window=None, emit="EMIT EVERY INTERVAL 15 MINUTES FOR 1 TRIGGERS")
    streamed = Streamed(spark, tmp_path, sql)
    streamed.batch(0, START + 15 * MINUTE, records(1, START))
    with pytest.raises(TriggerError, match="has run"):
        streamed.batches(streamed.frame([]), 1)
    assert len(streamed.sink.releases) == 1


def test_a_batch_that_waits_lets_go_when_stopped(streamed: Streamed) -> None:
    streamed.batches.clock = SystemClock()  # it is long past START: nothing need be waited for
    streamed.batches.stopped.set()
    with pytest.raises(SourceError, match="stopped"):
        streamed.batches(streamed.frame([]), 0)
    with streamed.local._exit, LocalStorage(streamed.folder / "state").lock():
        pass  # the state is free


def test_it_travels_without_the_secret(streamed: Streamed) -> None:
    """Spark Connect sends the function to the server: opened or not, it carries no secret."""
    streamed.batch(0, START + 15 * MINUTE, records(1, START + 15 * MINUTE))
    streamed.batches.clock = SystemClock()
    sent = pickle.dumps(streamed.batches)
    assert SECRET.key not in sent
    assert SECRET.key.hex().encode() not in sent
    assert pickle.loads(sent)._engine is None


def stream(spark: Any, folder: Path, **options: Any) -> Any:
    (folder / "in").mkdir(exist_ok=True)
    reader = spark.readStream.schema(SCHEMA)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.parquet(str(folder / "in"))


def _centred(x: pd.Series) -> pd.Series:
    return x - x.mean()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda frame: frame.dropDuplicates(["unit"]), "Deduplicate"),
        (lambda frame: frame.groupBy("unit").count(), "Aggregate"),
        (
            lambda frame: frame.withColumn("t", frame.ts.cast("timestamp")).withWatermark(
                "t", "1 hour"
            ),
            "Watermark",
        ),
        (lambda frame: frame.selectExpr("unit", "k", "rand() AS x", "ts"), "not deterministic"),
        (
            lambda frame: frame.withColumn("x", pandas_udf(_centred, "double")("x")),
            "Python function",
        ),
        (lambda frame: frame.withColumn("k", udf(str.upper)("k")), "Python function"),
        (lambda frame: frame.where("x > (SELECT max(id) FROM range(3))"), "subquery"),
        (lambda frame: frame.where("x IN (SELECT id FROM range(3))"), "subquery"),
        (lambda frame: frame.drop("x"), "lacks the columns"),
        (lambda frame: frame.withColumn("x", frame.x.cast("string")), "is declared as DOUBLE"),
    ],
)
def test_frames_that_break_the_promise_are_refused(
    spark: Any, tmp_path: Path, change: Any, says: str
) -> None:
    (sink,) = compile_script(script(source=PYTHON)).sinks
    with pytest.raises(SourceError, match=says):
        with_ticks(change(stream(spark, tmp_path)), sink.query)


FORWARD, BACK = 1710054000_000000, 1730613600_000000  # New York's clocks in 2024
FIRST, LAST = -9223372022400000000, 2**63 - 1


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize(
    ("known", "lost"),
    [
        ([0, *(at - hours * 60 * MINUTE for at in (FORWARD, BACK) for hours in range(6))], []),
        ([FIRST, -LAST, LAST, -1, -(10**18)], [FIRST - 1, -(2**63)]),
    ],
    ids=["clocks", "extremes"],
)
def test_times_are_utc_whatever_the_zone_of_the_session(
    spark: Any, known: list[int], lost: list[int], kind: str
) -> None:
    """To the microsecond, where clocks are put forward and back, and over all of time."""
    (sink,) = compile_script(script(source=PYTHON)).sinks
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    at = pa.array([*known, *lost], pa.int64()).cast(pa.timestamp("us"))
    rows = pa.table({"ts": at if kind == "TIMESTAMP_NTZ" else at.cast(pa.timestamp("us", "UTC"))})
    frame = session.createDataFrame(rows, schema=f"ts {kind}")
    columns = ["CAST(NULL AS STRING) AS unit", "'a' AS k", "CAST(0 AS DOUBLE) AS x", "ts"]
    found = as_declared(frame.selectExpr(*columns), sink.query.source).toArrow()["ts"]
    assert found.type == pa.timestamp("us")
    assert found.cast(pa.int64()).to_pylist() == [*known, *[None] * len(lost)]


def test_a_text_that_is_none_is_null(spark: Any) -> None:
    """Spark takes any bytes for a text; once selected, such a key could never be released."""
    (sink,) = compile_script(script(source=PYTHON)).sinks
    rows = [(b"caf\xe9",), (b"\xed\xa0\x80",), ("é\0\U0010ffff".encode(),), (None,)]
    columns = ["'u' AS unit", "CAST(k AS STRING) AS k", "CAST(0 AS DOUBLE) AS x", "ts"]
    frame = spark.createDataFrame(rows, "k BINARY").withColumn("ts", lit(None).cast("timestamp"))
    found = as_declared(frame.selectExpr(*columns), sink.query.source).toArrow()["k"]
    assert found.to_pylist() == [None, None, "é\0\U0010ffff", None]


def test_files_are_filtered_only_if_they_are_read_whole(spark: Any, tmp_path: Path) -> None:
    """By a file's statistics Spark would leave out all of its rows, or none."""
    (sink,) = compile_script(script(source=PYTHON)).sinks
    session = spark.newSession()
    for kind in ("parquet", "orc"):
        session.conf.set(f"spark.sql.{kind}.filterPushdown", "true")
    filtered = stream(session, tmp_path).where("x > 5")
    with pytest.raises(SourceError, match="as WHERE in the query"):
        with_ticks(filtered, sink.query)
    by_rows = session.readStream.schema(SCHEMA).json(str(tmp_path / "in")).where("x > 5")
    assert with_ticks(by_rows, sink.query).isStreaming
    for kind in ("parquet", "orc"):
        session.conf.set(f"spark.sql.{kind}.filterPushdown", "false")
    assert with_ticks(filtered, sink.query).isStreaming


def test_a_reader_that_stops_at_a_record_is_refused(spark: Any, tmp_path: Path) -> None:
    (sink,) = compile_script(script(source=PYTHON)).sinks
    with pytest.raises(SourceError, match="stop the query for good"):
        with_ticks(stream(spark, tmp_path, Mode="failFast"), sink.query)


def test_names_that_are_patterns_to_spark_are_refused(spark: Any, tmp_path: Path) -> None:
    """Before they are taken: Spark would read a1.parquet twice and the other never."""
    (sink,) = compile_script(script()).sinks
    source = SparkFiles(sink.query.source, "ts", tmp_path)
    (tmp_path / "in").mkdir()
    for name in ("a1.parquet", "a b#%20é.parquet"):
        pq.write_table(table(records(1, START, 10)), tmp_path / "in" / name)
    taken = source.complete(source.cut(source.initial_offset(), at(1)))
    assert source.frame(taken, spark).count() == 20
    pq.write_table(table(records(1, START, 10)), tmp_path / "in" / "a[1].parquet")
    with pytest.raises(SourceError, match="read as a pattern"):
        source.complete(source.cut(source.initial_offset(), at(1)))


@pytest.mark.parametrize(
    "limit",
    [
        *("maxFilesPerTrigger", "maxfilespertrigger", "maxBytesPerTrigger", "maxEventsPerTrigger"),
        *("streaming-max-rows-per-micro-batch", "rowsPerBatch", "latestFirst", "maxFileAge"),
    ],
)
def test_limits_on_a_batch_are_refused(spark: Any, tmp_path: Path, limit: str) -> None:
    (sink,) = compile_script(script(source=PYTHON)).sinks
    with pytest.raises(SourceError, match="would decide about time"):
        with_ticks(stream(spark, tmp_path, **{limit: "7"}), sink.query)


def test_a_folder_that_is_named_like_a_limit_is_none(spark: Any, tmp_path: Path) -> None:
    """And a view of a stream is that stream."""
    (sink,) = compile_script(script(source=PYTHON)).sinks
    (tmp_path / "maxPerBatch").mkdir()
    stream(spark, tmp_path / "maxPerBatch").createOrReplaceTempView("viewed")
    assert with_ticks(spark.table("viewed"), sink.query).isStreaming


def test_a_table_is_no_stream(spark: Any) -> None:
    (sink,) = compile_script(script(source=PYTHON)).sinks
    with pytest.raises(SourceError, match="not a stream"):
        with_ticks(spark.createDataFrame([], SCHEMA), sink.query)


def test_where_releases_go_is_said_once(spark: Any, tmp_path: Path) -> None:
    frame = stream(spark, tmp_path)
    places: dict[str, Any] = {"state": tmp_path / "state", "secret": tmp_path / "secret"}
    with pytest.raises(PlanError, match=r"not the clock, decides.*unprotected_batches=True"):
        dpsqlp.spark.start(frame, script(source=PYTHON), **places)
    places["unprotected_batches"] = True
    with pytest.raises(PlanError, match="Say where"):
        dpsqlp.spark.start(frame, script(source=PYTHON), **places)
    sql = script(source=PYTHON, sink="connector = 'stdout'")
    with pytest.raises(PlanError, match="not both"):
        dpsqlp.spark.start(frame, sql, write=lambda *_: None, **places)
    with pytest.raises(PlanError, match="connector = 'python'"):
        dpsqlp.spark.start(frame, script(), write=lambda *_: None, **places)
    assert not (tmp_path / "state").exists()


DRIVER = """
import sys
from pyspark.sql import SparkSession
import dpsqlp.spark

folder = sys.argv[1]
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
         .config("spark.log.level", "OFF").getOrCreate())
frame = spark.readStream.schema("unit STRING, k STRING").parquet(folder + "/in")
query = dpsqlp.spark.start(frame, open(folder + "/query.sql").read(), state=folder + "/state",
                           secret=folder + "/secret", shards=2, unprotected_batches=True)
print("started", flush=True)
query.awaitTermination()
"""
SQL = """
CREATE SOURCE s (unit TEXT, k TEXT) WITH (connector = 'python');
CREATE SINK t WITH (connector = 'jsonl', path = '{folder}/out') AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3, privacy_unit_column = unit,
  max_rows_contributed = 1) k, COUNT(*) AS n
FROM s GROUP BY k EMIT EVERY INTERVAL 5 SECONDS FOR 500 TRIGGERS;
"""


@pytest.mark.needs("java")
def test_a_real_stream_survives_its_driver(tmp_path: Path) -> None:
    """Structured Streaming from a growing folder; the driver is killed and started again. Every
    trigger is there, and every record counts exactly once.
    """
    (tmp_path / "query.sql").write_text(SQL.format(folder=tmp_path))
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "in").mkdir()
    units = 0

    def arrive(number: int) -> None:
        nonlocal units
        rows = pa.table({"unit": [f"u{units + k}" for k in range(1000)], "k": ["a"] * 1000})
        units += 1000
        pq.write_table(rows, tmp_path / f".{number}")
        (tmp_path / f".{number}").rename(tmp_path / "in" / f"{number}.parquet")

    def counts() -> list[int]:
        """What was released of the key at each trigger."""
        found = []
        for number, path in enumerate(sorted((tmp_path / "out").glob("*.jsonl")), 1):
            assert int(path.stem.removeprefix("trigger-")) == number, "a trigger is missing"
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found.append(rows[0]["n"] if rows else 0)
        return found

    def more_than(seen: int) -> bool:
        return len(counts()) > seen

    command = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    for round_number in (1, 2):
        arrive(round_number)
        with (
            (tmp_path / "driver.log").open("ab") as log,
            started(command, env=environment, stdout=log, stderr=log) as driver,
        ):
            until(lambda: counts() and abs(counts()[-1] - units) <= 100, driver)
            until(partial(more_than, len(counts())), driver)  # silence makes triggers too
    assert abs(counts()[-1] - 2000) < 100
