"""Files that Spark reads give the rows that DuckDB reads, whatever is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsqlp.engines.spark.files import SparkFiles
from dpsqlp.engines.spark.session import configure_session, new_session
from dpsqlp.errors import SourceError
from dpsqlp.sources.files import FileSource
from dpsqlp.sql import compile_script, connect
from dpsqlp.sql.spark import spark_rows
from spark.parity import begin, published, spark_engine, step, tables, write
from support.fake_clock import START
from support.pipelines import MINUTE, at

NAN = float("nan")
X = "unit TEXT, k TEXT, x DOUBLE"


def doubles(*values: float) -> pa.Table:
    units = [f"u{number}" for number in range(len(values))]
    return pa.table({"unit": units, "k": ["a"] * len(values), "x": pa.array(values, pa.float64())})


def both(
    session: Any, folder: Path, columns: str, rows: pa.Table | None = None, after: str = ""
) -> tuple[list[Any], list[Any]]:
    """The rows of `FROM s` and what comes after it, on the local engine and on Spark."""
    (folder / "in").mkdir(exist_ok=True)
    if rows is not None:
        pq.write_table(rows, folder / "in" / "a.parquet")
    (sink,) = compile_script(
        f"CREATE SOURCE s ({columns}) WITH (connector = 'files', path = 'in/*.parquet');"
        "CREATE SINK t WITH (connector = 'python') AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ("
        "epsilon = 1, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 1) k,"
        f" COUNT(*) AS n FROM s {after} GROUP BY k EMIT EVERY INTERVAL 1 HOUR FOR 2 TRIGGERS;",
        folder=str(folder),
    ).sinks
    query = sink.query
    local, spark = (
        kind(query.source, query.event_column, folder) for kind in (FileSource, SparkFiles)
    )
    with connect({}, {}, local.folders()) as database:
        local.read(local.complete(local.cut(local.initial_offset(), at(1))), database)
        here = database.sql(query.row_sql).to_arrow_table()
    assert isinstance(spark, SparkFiles)
    spark.frame(
        spark.complete(spark.cut(spark.initial_offset(), at(1))), session
    ).createOrReplaceTempView("s")
    there = session.sql(spark_rows(query)).toArrow()
    return here.to_pylist(), there.to_pylist()


@pytest.mark.parametrize(
    ("values", "condition", "kept"),
    [
        ((1.0, NAN), "x > 5", 1),
        ((1.0, NAN, 9.0), "x > 5", 2),
        ((1.0, NAN), "x <> 1", 1),
        ((-0.0, -0.0), "x = 0", 2),
        ((-0.0, -0.0), "x >= 0", 2),
        ((-0.0, -0.0), "x IN (0.0, 7.0)", 2),
    ],
)
def test_no_record_decides_whether_another_is_read(
    spark: Any, tmp_path: Path, values: tuple[float, ...], condition: str, kept: int
) -> None:
    """By a file's statistics Spark would leave out all of its rows, or none."""
    rows = doubles(*values)
    here, there = both(new_session(spark), tmp_path, X, rows, f"WHERE {condition}")
    assert there == here
    assert len(there) == kept


def test_a_range_is_read_up_to_its_cut(spark: Any, tmp_path: Path) -> None:
    """Files that come while the driver is busy are a later trigger's."""
    query = f"CREATE SOURCE s ({X}) WITH (connector = 'files', path = '*.parquet', follow = true);"
    (source,) = compile_script(
        f"{query} CREATE SINK t WITH (connector = 'python') AS SELECT WITH DIFFERENTIAL_PRIVACY"
        " OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 1)"
        " k, COUNT(*) AS n FROM s GROUP BY k EMIT EVERY INTERVAL 1 HOUR FOR 2 TRIGGERS;"
    ).sinks
    files = SparkFiles(source.query.source, None, tmp_path)
    pq.write_table(doubles(1.0), tmp_path / "a.parquet")
    first = files.cut(files.initial_offset(), at(1))
    pq.write_table(doubles(2.0, 3.0), tmp_path / "b.parquet")
    second = files.cut(files.next_offset(files.initial_offset(), first), at(2))
    read = [files.frame(files.complete(offsets), spark).count() for offsets in (first, second)]
    assert read == [1, 2]


def test_literals_are_read_as_they_are_written(spark: Any, tmp_path: Path) -> None:
    """Whatever the user's session makes of a backslash."""
    session = spark.newSession()
    session.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    configure_session(session)
    rows = pa.table({"unit": ["u1", "u2", "u3"], "k": ["it's", "a\\b", "b"]})
    after = "WHERE k = 'it''s' OR k = 'a\\b'"
    here, there = both(session, tmp_path, "unit TEXT, k TEXT", rows, after)
    assert there == here
    assert len(there) == 2


def test_dates_of_the_old_calendar_are_refused(spark: Any, tmp_path: Path) -> None:
    """Spark would read others than it finds, whatever it is told."""
    session = new_session(spark)
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    old = session.sql("SELECT 'u' AS unit, DATE'1500-03-10' AS k").coalesce(1)
    old.write.parquet(str(tmp_path / "in"))
    with pytest.raises(SourceError, match="calendar"):
        both(session, tmp_path, "unit TEXT, k DATE")


def test_columns_that_spark_does_not_tell_apart_are_refused(spark: Any, tmp_path: Path) -> None:
    rows = pa.table([pa.array(["u"]), pa.array(["a"]), pa.array(["b"])], names=["unit", "k", "K"])
    with pytest.raises(SourceError, match="several columns named k"):
        both(new_session(spark), tmp_path, "unit TEXT, k TEXT", rows)


def test_any_name_and_columns_that_are_not_used(spark: Any, tmp_path: Path) -> None:
    """Names with dots and dashes; a public table's column of a type that Spark lacks."""
    begin(
        tmp_path,
        """CREATE SOURCE "page-views" (unit TEXT, k TEXT) WITH (connector = 'files',
          path = 'in/*.parquet');
        CREATE PUBLIC TABLE "a.b" AS SELECT 'a' AS k, 'Alpha' AS name, 1::UINTEGER AS number,
          INTERVAL 1 DAY AS age;
        CREATE SINK t WITH (connector = 'python') AS
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3,
          privacy_unit_column = unit, max_rows_contributed = 1) name, COUNT(*) AS n
        FROM "page-views" JOIN "a.b" USING (k) GROUP BY name
        EMIT EVERY INTERVAL 1 HOUR FOR 2 TRIGGERS;""",
        spark=4,
    )
    write(tmp_path, 1, pa.table({"unit": [f"u{n}" for n in range(99)], "k": ["a"] * 99}))
    engine = spark_engine(spark, tmp_path, "spark")
    step(engine, START + 60 * MINUTE, 1)
    engine.close()
    (release,) = tables(published(tmp_path, "spark"))
    assert release["name"].to_pylist() == ["Alpha"]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_that_duckdb_does_not_have_are_null(
    spark: Any, tmp_path: Path, zone: str | None
) -> None:
    """From the first one on, and both infinities, they are as they are."""
    first = -9223372022400000000
    moments = pa.array([first - 1, -(2**63), first, 0, 2**63 - 1, 1 - 2**63], pa.int64())
    rows = pa.table(
        {
            "unit": [f"u{number}" for number in range(len(moments))],
            "k": ["a"] * len(moments),
            "ts": moments.cast(pa.timestamp("us", zone)),
        }
    )
    columns = "unit TEXT, k TEXT, ts TIMESTAMP"
    here, there = both(new_session(spark), tmp_path, columns, rows, "WHERE ts IS NULL")
    assert [row["unit_0"] for row in here] == ["u0", "u1"]
    assert there == here
