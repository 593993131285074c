"""Every sink: a release given twice is there once, whatever its columns are called."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsqlp.errors import PlanError, SinkError
from dpsqlp.sinks import postgres
from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sinks.published import release_digest

KEYS = ["it's", 'a "b"', "ünï", "", None]


def release(trigger: int, keys: list[str | None] = KEYS) -> pa.Table:
    """A release with columns whose names are awkward."""
    rows = len(keys)
    return pa.table(
        {
            "window_start": pa.array([datetime(2024, 1, 1)] * rows, pa.timestamp("us")),
            "trigger": pa.array([trigger] * rows, pa.int64()),
            "released_at": pa.array([datetime(2024, 1, 1)] * rows, pa.timestamp("us")),
            "window_trigger": pa.array([trigger] * rows, pa.int64()),
            "final": pa.array([True] * rows, pa.bool_()),
            "release": pa.array(keys, pa.string()),
            "a \"b' c": pa.array([0.5] * rows, pa.float64()),
            "n": pa.array(range(rows), pa.int64()),
        }
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def table_of(folder: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "x" / "it's here.duckdb")) as database:
        return database.sql('FROM "my ""table" ORDER BY trigger, n').fetchall()


PLACES: dict[str, tuple[dict[str, str], Callable[[Path], Any]]] = {
    "parquet": ({"path": "out/it's here"}, files),
    "jsonl": ({"path": "out/it's here"}, files),
    "duckdb": ({"path": "x/it's here.duckdb", "table": 'my "table'}, table_of),
}


@pytest.mark.parametrize("connector", PLACES)
def test_a_trigger_given_twice_is_there_once(connector: str, tmp_path: Path) -> None:
    """The same bytes or rows as if it had been given once; also by another process."""
    options, look = PLACES[connector]

    def made(folder: Path) -> Sink:
        return make_sink("t", {"connector": connector, **options}, folder)

    once, twice = made(tmp_path / "once"), made(tmp_path / "twice")
    for trigger, keys in ((7, KEYS), (8, []), (9, KEYS[:2])):
        once.emit(trigger, release(trigger, keys))
        twice.emit(trigger, release(trigger, keys))
        made(tmp_path / "twice").emit(trigger, release(trigger, keys))
    expected = look(tmp_path / "once")
    assert look(tmp_path / "twice") == expected
    assert len(expected) == {"duckdb": 7}.get(connector, 3)


@pytest.mark.parametrize("connector", PLACES)
def test_a_published_trigger_is_not_replaced(connector: str, tmp_path: Path) -> None:
    """Fewer, more or other rows of a trigger that is out, also one that was empty: refused, and
    what is there stays. The same noise on other records would show the difference."""
    options, look = PLACES[connector]

    def made() -> Sink:
        return make_sink("t", {"connector": connector, **options}, tmp_path)

    at = release(7).schema.get_field_index("n")
    changed = release(7).set_column(at, "n", pa.array(range(3, 8), pa.int64()))
    for trigger, published, others in (
        (7, release(7), [changed, release(7, KEYS[:4]), release(7, []), release(7, KEYS * 2)]),
        (8, release(8, []), [release(8, KEYS[:1])]),
    ):
        made().emit(trigger, published)
        before = look(tmp_path)
        for other in others:
            with pytest.raises(SinkError, match=r"different rows.*was replaced.*own budget"):
                made().emit(trigger, other)
            assert look(tmp_path) == before
        made().emit(trigger, published)
        assert look(tmp_path) == before
    if connector == "duckdb":
        with pytest.raises(SinkError, match="the state is an old copy"):
            made().emit(6, release(6))
        assert look(tmp_path) == before


def test_a_file_of_another_version_of_the_library_is_the_same(tmp_path: Path) -> None:
    """Its bytes may differ, its rows do not: it is left as it is. A damaged one is another."""
    sink = make_sink("t", {"connector": "parquet", "path": "out"}, tmp_path)
    rows = release(7).append_column("x", pa.array([float("nan"), 0.0, -0.0, None, float("inf")]))
    sink.emit(7, rows)
    [file] = (tmp_path / "out").glob("trigger-*")
    pq.write_table(rows, file, compression="snappy", row_group_size=2, use_dictionary=False)
    before = file.read_bytes()
    sink.emit(7, rows)
    assert file.read_bytes() == before
    file.write_bytes(before[:-20])
    with pytest.raises(SinkError, match="different rows"):
        sink.emit(7, rows)


def test_parquet_and_json_lines_hold_the_rows(tmp_path: Path) -> None:
    """One file per trigger, also for an empty one; nothing half-written is left."""
    for connector in ("parquet", "jsonl"):
        sink = make_sink("t", {"connector": connector}, tmp_path / connector)
        sink.emit(3, release(3))
        sink.emit(4, release(4, []))
    found = {path.name: path for path in tmp_path.rglob("trigger*")}
    assert sorted(found) == [
        f"trigger-{n:012d}.{kind}" for n in (3, 4) for kind in ("jsonl", "parquet")
    ]
    for trigger, keys in ((3, KEYS), (4, [])):
        expected = release(trigger, keys)
        assert pq.read_table(found[f"trigger-{trigger:012d}.parquet"]).equals(expected)
        lines = found[f"trigger-{trigger:012d}.jsonl"].read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["release"] for row in rows] == keys
        for row, wanted in zip(rows, expected.to_pylist(), strict=True):
            assert list(row) == expected.column_names
            times = {"window_start": None, "released_at": None}
            assert row | times == wanted | times


def listed() -> pa.Table:
    """A release with a histogram and two quantiles, of which one row has none."""
    return (
        release(7, KEYS[:2])
        .append_column("h", pa.array([[1, -2], [3, 4]]))
        .append_column("q", pa.array([[0.5, 1e-300], None], pa.list_(pa.field("l", pa.float64()))))
    )


def test_lists_are_published(tmp_path: Path) -> None:
    """As lists, and a trigger given twice is there once."""
    for connector, (options, _) in PLACES.items():
        for _ in range(2):
            made = make_sink("t", {"connector": connector, **options}, tmp_path)
            made.emit(7, listed())
    expected = [([1, -2], [0.5, 1e-300]), ([3, 4], None)]
    [parquet] = tmp_path.rglob("*.parquet")
    assert [(row["h"], row["q"]) for row in pq.read_table(parquet).to_pylist()] == expected
    [lines] = tmp_path.rglob("*.jsonl")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["h"], row["q"]) for row in rows] == expected
    with duckdb.connect(str(tmp_path / "x" / "it's here.duckdb")) as database:
        assert database.sql('SELECT h, q FROM "my ""table"').fetchall() == expected


def test_lists_of_a_parquet_file_are_the_same_release(tmp_path: Path) -> None:
    """Parquet gives what is in a list another name."""
    pq.write_table(listed(), tmp_path / "x.parquet")
    assert release_digest(pq.read_table(tmp_path / "x.parquet")) == release_digest(listed())
    other = listed().drop_columns("q").append_column("q", pa.array([[0.5], [1e-300]]))
    assert release_digest(other) != release_digest(listed())


def test_lists_are_arrays_in_postgres() -> None:
    """As COPY reads them."""
    assert [postgres._postgres_type(listed().schema.field(n).type) for n in ("h", "q")] == [
        "bigint[]",
        "double precision[]",
    ]
    texts = postgres._as_text(listed()).to_pylist()
    assert [tuple(row.values())[-2:] for row in texts] == [
        ("{1, -2}", "{0.5, 1e-300}"),
        ("{3, 4}", None),
    ]


def test_standard_output_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines each time; what was printed before a crash cannot be taken back."""
    sink = make_sink("t", {"connector": "stdout"}, Path())
    sink.emit(3, release(3))
    first = capsys.readouterr().out
    assert [json.loads(line)["release"] for line in first.splitlines()] == KEYS
    sink.emit(3, release(3))
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "out", [io.TextIOWrapper(io.BytesIO(), "latin-1"), io.StringIO()], ids=["latin-1", "notebook"]
)
def test_standard_output_takes_every_letter(out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key must not stop the run whose release it is in."""
    monkeypatch.setattr("sys.stdout", out)
    make_sink("t", {"connector": "stdout"}, Path()).emit(3, release(3, ["日本"]))
    data = out.getvalue() if isinstance(out, io.StringIO) else out.buffer.getvalue().decode()
    assert json.loads(data)["release"] == "日本"


def test_what_has_no_end_is_published(tmp_path: Path) -> None:
    """Numbers and times, as texts in JSON and as DuckDB reads them in Parquet."""
    with duckdb.connect() as database:
        rows = database.sql(
            "SELECT x::DOUBLE AS x, x::FLOAT AS y, t::TIMESTAMP_S AS t FROM (VALUES"
            " ('inf', 'infinity'), ('-inf', '-infinity'), ('nan', '2024-01-01'), ('0.5', NULL),"
            " (NULL, NULL)) AS v(x, t)"
        ).to_arrow_table()
        for connector in ("parquet", "jsonl"):
            make_sink("t", {"connector": connector}, tmp_path / connector).emit(1, rows)
        (file,) = tmp_path.rglob("*.parquet")
        assert database.sql(f"SELECT t::TEXT FROM '{file}'").fetchall() == [
            ("infinity",),
            ("-infinity",),
            ("2024-01-01 00:00:00",),
            (None,),
            (None,),
        ]
    (file,) = tmp_path.rglob("*.jsonl")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    assert [line["x"] for line in lines] == ["Infinity", "-Infinity", "NaN", 0.5, None]
    assert [line["y"] for line in lines] == ["Infinity", "-Infinity", "NaN", 0.5, None]


@pytest.mark.parametrize("table", ["release", "t rows", "select", "main"])
def test_tables_of_any_name(table: str, tmp_path: Path) -> None:
    """The sink's own names do not get in the way."""
    sink = make_sink("t", {"connector": "duckdb", "path": "main.db", "table": table}, tmp_path)
    sink.emit(1, release(1))
    sink.emit(1, release(1))
    with duckdb.connect(str(tmp_path / "main.db")) as database:
        assert database.sql(f'FROM "{table}"').to_arrow_table().num_rows == len(KEYS)


def test_a_database_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    """The error says what to do; the release is still in the state."""
    (tmp_path / "t").write_text("this is no database, but it is long enough to be looked at" * 99)
    sink = make_sink("t", {"connector": "duckdb"}, tmp_path)
    with pytest.raises(SinkError, match=r"(?s)could not be written.*release is kept.*run again"):
        sink.emit(1, release(1))


def test_an_unknown_connector_is_refused(tmp_path: Path) -> None:
    """With the known ones."""
    with pytest.raises(PlanError, match="Use parquet, jsonl"):
        make_sink("t", {"connector": "pigeon"}, tmp_path)


@pytest.mark.parametrize("connector", ["parquet", "jsonl", "duckdb"])
def test_another_pipelines_releases_are_not_replaced(connector: str, tmp_path: Path) -> None:
    """Their triggers have the same numbers."""

    def sink(pipeline: str) -> Sink:
        made = make_sink("t", {"connector": connector, "path": "out"}, tmp_path)
        made.open(pipeline, [])
        return made

    sink("one").emit(1, release(1))
    sink("one").emit(2, release(2))
    with pytest.raises(SinkError, match=r"another pipeline.*Nothing was written.*to another value"):
        sink("two")


def test_an_empty_folder_of_another_pipeline_is_told_by_its_mark(tmp_path: Path) -> None:
    """There is no release in it yet, and the file that names its pipeline is hidden."""
    first, second = (make_sink("t", {"connector": "jsonl", "path": "out"}, tmp_path) for _ in "ab")
    first.open("one", [])
    with pytest.raises(SinkError, match=r"belongs to another pipeline.*hidden file \.pipeline"):
        second.open("two", [])


def test_a_table_of_two_pipelines_is_found_when_it_is_written_too(tmp_path: Path) -> None:
    """Both were opened before there was a table, which has one name in all letters; and columns
    are told apart by their names.
    """
    sinks = [make_sink(name, {"connector": "duckdb", "path": "out"}, tmp_path) for name in "tT"]
    for number, sink in enumerate(sinks):
        sink.open(str(number), [])
    sinks[0].emit(1, release(1))
    with pytest.raises(SinkError, match="another pipeline"):
        sinks[1].emit(1, release(1))
    with pytest.raises(SinkError, match="could not be written"):
        sinks[0].emit(2, release(2).rename_columns({"n": "m"}))
    with duckdb.connect(str(tmp_path / "out")) as database:
        assert database.sql("FROM t").to_arrow_table().num_rows == len(KEYS)
