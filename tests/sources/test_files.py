"""Files as a source: exact ranges, rows read one by one, names of all kinds, folders that grow."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsqlp.errors import SourceError
from dpsqlp.sources.files import FileSource
from dpsqlp.sql import compile_script, connect
from dpsqlp.sql.query import SourceDef
from support.pipelines import at

COLUMNS = (("unit", "VARCHAR"), ("a", "INTEGER"), ("ts", "TIMESTAMP"))
Line = tuple[Any, Any, Any]
LINES: list[Line] = [
    ("u1", 1, "2024-01-01 00:00:01"),
    ("u2", None, "2024-01-01 00:00:02"),
    ('it\'s "quoted", here', 3, "2024-01-01 00:00:03"),
    ("ünï", -4, "2024-01-01 00:00:04"),
]
NAMES = ["plain", "it's", 'a "b"', "with space", "x[1]", "star*", "q?", "ünï", "a;--", "k=v"]


def source(folder: Path, path: str, timestamp: str | None = None, **options: Any) -> FileSource:
    made = SourceDef("s", COLUMNS, {"connector": "files", "path": path, **options})
    return FileSource(made, timestamp, folder)


def write(path: Path, lines: Sequence[Line]) -> None:
    """A file in the format that its suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        kinds = [pa.string(), pa.int32(), pa.string()]
        columns = [pa.array(c, k) for c, k in zip(zip(*lines, strict=True), kinds, strict=True)]
        rows = pa.table(columns, ["unit", "a", "ts"])
        pq.write_table(rows.set_column(2, "ts", rows["ts"].cast(pa.timestamp("us"))), path)
    elif path.suffix in (".csv", ".tsv"):
        between = "," if path.suffix == ".csv" else "\t"

        def field(value: Any) -> str:
            text = "" if value is None else str(value)
            return '"' + text.replace('"', '""') + '"' if '"' in text or between in text else text

        rows = [("unit", "a", "ts"), *lines]
        path.write_text("".join(between.join(map(field, row)) + "\n" for row in rows))
    else:
        objects = (dict(zip(("unit", "a", "ts"), line, strict=True)) for line in lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in objects))


def planned(files: FileSource, offset: Any, trigger: int) -> Any:
    """What a trigger reads, from an offset to now."""
    return files.complete(files.cut(offset, at(trigger)))


def read(files: FileSource, records: Any) -> list[tuple[Any, ...]]:
    """The rows of a range that has been through JSON, sorted."""
    with connect(folders=files.folders()) as database:
        files.read(json.loads(json.dumps(records)), database)
        rows = database.sql("SELECT unit, a, CAST(ts AS VARCHAR) FROM s").fetchall()
    return sorted(rows, key=repr)


def wanted(*lines: Line) -> list[tuple[Any, ...]]:
    return sorted(lines, key=repr)


SUFFIXES = [".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_range_reads_the_same_twice(suffix: str, tmp_path: Path) -> None:
    """Also from another object, after more files have come, and from the range alone."""
    write(tmp_path / f"1{suffix}", LINES[:2])
    write(tmp_path / f"2{suffix}", LINES[2:])
    files = source(tmp_path, f"*{suffix}", follow=True)
    records = planned(files, files.initial_offset(), 1)
    assert read(files, records) == wanted(*LINES)
    write(tmp_path / f"0{suffix}", LINES)
    assert read(source(tmp_path, f"*{suffix}", follow=True), records) == wanted(*LINES)
    assert read(files, None) == []


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_span_is_of_the_files_there_were(suffix: str, tmp_path: Path) -> None:
    """On event time the files are fixed at the first trigger; the span's edges are [low, high)."""
    write(tmp_path / f"1{suffix}", LINES)
    files = source(tmp_path, f"*{suffix}", "ts")
    second = 10**6
    midnight = 1704067200 * second
    spans = [(midnight + 2 * n * second, midnight + 2 * (n + 1) * second) for n in range(3)]
    offset, got = files.initial_offset(), []
    for trigger, span in enumerate(spans, 1):
        records = files.replay(offset, span)
        got.append(read(files, records))
        offset = json.loads(json.dumps(files.next_offset(offset, records)))
        write(tmp_path / f"late{trigger}{suffix}", LINES)
    assert got == [wanted(LINES[0]), wanted(*LINES[1:3]), wanted(LINES[3])]


def test_a_file_that_has_left_a_span_is_refused(tmp_path: Path) -> None:
    """A retry in another process does not take the times of what is there now for those of the
    records that it is to read again."""
    write(tmp_path / "1.parquet", LINES[:1])
    files = source(tmp_path, "*.parquet", "ts")
    midnight = 1704067200 * 10**6
    records = files.replay(files.initial_offset(), (midnight, midnight + 2 * 10**6))
    assert read(files, records) == wanted(LINES[0])
    write(tmp_path / "1.parquet", LINES[3:])
    for again in (files, source(tmp_path, "*.parquet", "ts")):
        with pytest.raises(SourceError, match=r"1.parquet has changed"):
            read(again, records)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "us UTC", "text", "no statistics"])
def test_a_file_without_times_in_the_span_is_not_missed(unit: str, tmp_path: Path) -> None:
    """What a Parquet file says of its times leaves out files, never records."""
    midnight = 1704067200 * 10**6
    hours: list[list[int | None]] = [[0, 3, None], [5, 1], [None, None], [2], [], [4, 4]]
    for number, file in enumerate(hours):
        times = [None if h is None else midnight + h * 3600 * 10**6 for h in file]
        ts = pa.array(times, pa.timestamp("us"))
        if unit == "text":
            ts = ts.cast(pa.string())
        elif unit == "us UTC":
            ts = ts.cast(pa.timestamp("us", "UTC"))
        elif unit != "no statistics":
            ts = ts.cast(pa.timestamp(unit))
        units = [f"{number}-{k}" for k in range(len(file))]
        table = pa.table({"unit": units, "a": pa.array([0] * len(file), pa.int64()), "ts": ts})
        statistics = unit != "no statistics"
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=1, write_statistics=statistics)
    files = source(tmp_path, "*.parquet", "ts")
    for hour in range(6):
        span = (midnight + hour * 3600 * 10**6, midnight + (hour + 1) * 3600 * 10**6)
        got = {row[0] for row in read(files, files.replay(files.initial_offset(), span))}
        assert got == {
            f"{number}-{k}"
            for number, file in enumerate(hours)
            for k, h in enumerate(file)
            if h == hour
        }


@pytest.mark.parametrize("unit", ["us", "ns", "us UTC", "int96"])
def test_no_timestamp_stops_a_run(unit: str, tmp_path: Path) -> None:
    """Years past 9999, before Christ, infinity: read, and outside of every span."""
    extremes = [2**62, -(2**62), 2**63 - 1, -(2**63) + 1, 253402300800 * 10**6, -5]
    zone = "UTC" if unit == "us UTC" else None
    kind = pa.timestamp("ns" if unit in ("ns", "int96") else "us", zone)
    midnight = 1704067200 * 10**6
    good = midnight * (1000 if kind.unit == "ns" else 1)
    for number, extreme in enumerate(extremes):
        ts = pa.array([extreme, good], kind)
        table = pa.table({"unit": ["far", "near"], "a": [0, 0], "ts": ts})
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps=unit == "int96")
    files = source(tmp_path, "*.parquet", "ts")
    got = read(files, files.replay(files.initial_offset(), (midnight, midnight + 1)))
    assert [row[0] for row in got] == ["near"] * len(extremes)


def test_times_are_those_of_the_right_column(tmp_path: Path) -> None:
    """Past a column with two leaves, and whatever the case of its name."""
    midnight = 1704067200 * 10**6
    other = pa.array([0], pa.timestamp("us"))
    table = pa.table(
        {
            "unit": ["u"],
            "pair": pa.StructArray.from_arrays([other, other], ["x", "y"]),
            "a": [0],
            "TS": pa.array([midnight], pa.timestamp("us")),
        }
    )
    pq.write_table(table, tmp_path / "1.parquet")
    pq.write_table(table.drop_columns(["pair"]), tmp_path / "2.parquet")
    files = source(tmp_path, "*.parquet", "ts")
    got = read(files, files.replay(files.initial_offset(), (midnight, midnight + 1)))
    assert [row[0] for row in got] == ["u", "u"]
    assert read(files, files.replay(files.initial_offset(), (0, 1))) == []


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_folder_that_grows_hands_out_each_file_once(suffix: str, tmp_path: Path) -> None:
    """Whatever its name sorts by, each file belongs to exactly one trigger."""
    files = source(tmp_path, f"in/**/*{suffix}", follow=True)
    dice, offset, seen = random.Random(1), files.initial_offset(), []
    names = [f"{folder}{number}" for number in range(20) for folder in ("", "deep/")]
    dice.shuffle(names)
    for trigger in range(12):
        for name in names[trigger * 4 : trigger * 4 + 4]:
            write(tmp_path / "in" / f"{name}{suffix}", LINES[:1])
        records = planned(files, offset, trigger)
        assert len(records["files"]) == len(names[trigger * 4 : trigger * 4 + 4])
        seen += [file[0] for file in records["files"]]
        offset = json.loads(json.dumps(files.next_offset(offset, records)))
        offset = files.next_offset(offset, None)
    assert sorted(seen) == sorted(str(tmp_path / "in" / f"{name}{suffix}") for name in names)


def test_a_fixed_set_does_not_grow(tmp_path: Path) -> None:
    """Without follow, what is there at the first trigger is all."""
    write(tmp_path / "1.csv", LINES)
    files = source(tmp_path, "*.csv")
    records = planned(files, files.initial_offset(), 1)
    offset = files.next_offset(files.initial_offset(), records)
    write(tmp_path / "2.csv", LINES)
    assert [Path(file[0]).name for file in records["files"]] == ["1.csv"]
    assert planned(files, offset, 2) == {"files": [], "left_behind": []}


@pytest.mark.parametrize("span", [None, (0, 1)])
def test_a_fixed_set_of_nothing_is_refused(span: tuple[int, int] | None, tmp_path: Path) -> None:
    """A typing error in a path would else run to the end; a folder that grows may begin empty."""
    files = source(tmp_path, "evnts/*.csv")
    with pytest.raises(SourceError, match=r"No file matches .*evnts/\*\.csv"):
        files.replay(files.initial_offset(), span)  # type: ignore[arg-type]
    if span is None:
        growing = source(tmp_path, "evnts/*.csv", follow=True)
        assert planned(growing, growing.initial_offset(), 1) == {"files": [], "left_behind": []}


def test_hidden_and_half_written_names_are_passed_over(tmp_path: Path) -> None:
    """They are taken once they have their own name."""
    write(tmp_path / "in" / "ok.csv", LINES)
    (tmp_path / "in" / "_temporary").mkdir()
    for name in (".1.csv", "_2.csv", "3.csv.tmp", "4.csv.part", "_temporary/5.csv", "6.writing"):
        (tmp_path / "in" / name).write_bytes((tmp_path / "in" / "ok.csv").read_bytes())
    (tmp_path / "in" / "folder.csv").mkdir()
    files = source(tmp_path, "in/**/*", follow=True)
    records = planned(files, files.initial_offset(), 1)
    assert [Path(file[0]).name for file in records["files"]] == ["ok.csv"]
    (tmp_path / "in" / "3.csv.tmp").rename(tmp_path / "in" / "3.csv")
    after = planned(files, files.next_offset(files.initial_offset(), records), 2)
    assert [Path(file[0]).name for file in after["files"]] == ["3.csv"]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_all_kinds(suffix: str, name: str, tmp_path: Path) -> None:
    """Quotes, spaces and wildcards in names of files and folders mean themselves."""
    folder = tmp_path / name
    write(folder / f"{name}{suffix}", LINES)
    write(folder / f"x1{suffix}", LINES[:1])
    write(tmp_path / "x1" / f"x1{suffix}", LINES)
    files = source(folder, f"*{suffix}")
    records = planned(files, files.initial_offset(), 1)
    assert len(records["files"]) == 2
    assert read(files, records) == wanted(*LINES, LINES[0])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_changed_or_vanished_file_is_refused(suffix: str, tmp_path: Path) -> None:
    """Another size, another time, or gone: the error says which file and what to do."""
    path = tmp_path / f"1{suffix}"
    write(path, LINES)
    files = source(tmp_path, f"*{suffix}", follow=True)
    records, data = planned(files, files.initial_offset(), 1), path.read_bytes()
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    os.utime(path, ns=(times[0], times[1] + 1000))
    with pytest.raises(SourceError, match=r"1.* has changed.*restore the file as it was"):
        read(files, records)
    path.write_bytes(data + b" ")
    os.utime(path, ns=times)
    with pytest.raises(SourceError, match=f"{path} has changed"):
        read(files, records)
    path.unlink()
    with pytest.raises(SourceError, match=f"{path} is gone"):
        read(files, records)
    path.write_bytes(data)
    os.utime(path, ns=times)
    assert read(files, records) == wanted(*LINES)


@pytest.mark.slow
def test_lines_are_read_by_themselves(tmp_path: Path) -> None:
    """A line that is broken in any way loses its own values and nobody else's."""
    good = b'u1,1,2024-01-01 00:00:01\n"a ""b"", c",2,2024-01-01 00:00:02\n'
    expected = wanted(LINES[0], ('a "b", c', 2, "2024-01-01 00:00:02"))
    (tmp_path / "good.csv").write_bytes(b"unit,a,ts\n" + good)
    files = source(tmp_path, "good.csv")
    assert read(files, planned(files, files.initial_offset(), 1)) == expected
    broken = [
        b'"never closed,1,2024-01-01',
        b'a "quote,1,',
        b"'single,1,",
        b"too,1,2024-01-01,many,fields",
        b"few",
        b"\xff\xfe,1,",
        b"nul\x00,1,",
        b"semi;colon|pipe\ttab",
        b",,",
        b"",
        b"x,9999999999,never",
        b"long" * 1_000_000,
    ]
    for number, line in enumerate(broken):
        for place, text in enumerate(
            (line + b"\n" + good, good + line, good + line + b"\n" + good)
        ):
            name = f"{number}-{place}.csv"
            (tmp_path / name).write_bytes(b"unit,a,ts\n" + text)
            files = source(tmp_path, name)
            rows = read(files, planned(files, files.initial_offset(), 1))
            for row in expected:
                assert rows.count(row) == 1 + (place == 2), (line[:40], rows)
            assert len(rows) <= 3 + 2 * (place == 2)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_no_line_end_is_part_of_the_next_line(suffix: str, tmp_path: Path) -> None:
    """After a header that ends in CR LF, a spare CR once went to the next record, whose unit became
    another one; two million of them hid it."""
    write(tmp_path / f"1{suffix}", LINES)
    lines = (tmp_path / f"1{suffix}").read_bytes().splitlines()
    for ends in (
        [b"\r\n"],
        [b"\r\n", b"\r\r\n", b"\r\r\r\n"],
        [b"\r\n", b"\r" * 2_500_000 + b"\n"],
    ):
        data = b"".join(line + ends[n % len(ends)] for n, line in enumerate(lines))
        (tmp_path / f"1{suffix}").write_bytes(data)
        files = source(tmp_path, f"1{suffix}")
        rows = read(files, planned(files, files.initial_offset(), 1))
        found = [row for row in rows if row != (None, None, None)]
        whole = [line for line in LINES if line in found]
        assert found == wanted(*whole)
        assert len(whole) >= len(LINES) - (2 if len(ends[-1]) > 9 else 0)


@pytest.mark.parametrize("join", ["JOIN w ON s.k = w.k AND {}", "JOIN w USING (k) WHERE {}"])
def test_no_record_decides_whether_another_is_read(join: str, tmp_path: Path) -> None:
    """A file's statistics leave out NaN: by them a row group without another one was skipped."""
    table = pa.table({"u": ["a", "b"], "k": ["k", "k"], "x": [1.0, float("nan")]})
    pq.write_table(table, tmp_path / "1.parquet")
    (sink,) = compile_script(
        "CREATE SOURCE s (u TEXT, k TEXT, x DOUBLE) WITH (connector = 'files', path = '*.parquet');"
        "CREATE PUBLIC TABLE w AS SELECT 'k' AS k;"
        "CREATE SINK o AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,"
        " privacy_unit_column = u, max_rows_contributed = 1) s.k, COUNT(*) AS n FROM s "
        + join.format("s.x = CAST('nan' AS DOUBLE)")
        + " GROUP BY s.k EMIT EVERY INTERVAL 1 HOUR FOR 2 TRIGGERS;"
    ).sinks
    files = FileSource(sink.query.source, None, tmp_path)
    tables = {table.name: table.rows for table in sink.query.public_tables}
    with connect(tables, folders=files.folders()) as database:
        files.read(planned(files, files.initial_offset(), 1), database)
        rows = database.sql(sink.query.row_sql).to_arrow_table()
    assert rows["unit_0"].to_pylist() == ["b"]


def test_a_list_of_texts_is_read(tmp_path: Path) -> None:
    made = SourceDef("s", (("t", "TEXT[]"),), {"connector": "files", "path": "1.jsonl"})
    (tmp_path / "1.jsonl").write_text('{"t": ["a", "b"]}\n')
    files = FileSource(made, None, tmp_path)
    with connect(folders=files.folders()) as database:
        files.read(planned(files, files.initial_offset(), 1), database)
        assert database.sql("SELECT t FROM s").fetchall() == [(["a", "b"],)]


def test_objects_are_read_by_themselves(tmp_path: Path) -> None:
    """The same for JSON Lines."""
    good = b'{"unit": "u1", "a": 1, "ts": "2024-01-01 00:00:01"}\n'
    broken = [
        b"no json",
        b'{"unit": "u1"',
        b'[{"unit": "u1"}]',
        b'"text"',
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"unit": {"deep": [1]}, "a": [], "ts": {}}',
        b'{"unit": "' + b"x" * 3_000_000 + b'"}',
        b'{"unit": "x", "a": "many", "ts": 5}',
        b'{"unit": "\x01"}',
        b"[" * 5000,
    ]
    for number, line in enumerate(broken):
        (tmp_path / f"{number}.jsonl").write_bytes(good + line + b"\n" + good)
        files = source(tmp_path, f"{number}.jsonl")
        rows = read(files, planned(files, files.initial_offset(), 1))
        assert rows.count(LINES[0]) == 2, line[:40]
        assert len(rows) <= 3


WRONG: dict[str, Any] = {
    "text": pa.array(["7", "x", None]),
    "double": pa.array([7.0, 1e300, None]),
    "huge": pa.array([7, 2**40, None]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_types_become_null(kind: str, tmp_path: Path) -> None:
    """A Parquet file whose columns may become the declared types does not stop a run, nor does it
    decide how another file is read."""
    rows = pa.table({"unit": ["a", "b", "c"], "a": WRONG[kind], "ts": ["2024-01-01", "x", None]})
    pq.write_table(rows, tmp_path / "1.parquet")
    write(tmp_path / "0.parquet", LINES[:1])
    write(tmp_path / "2.parquet", LINES[:1])
    files = source(tmp_path, "*.parquet")
    got = read(files, planned(files, files.initial_offset(), 1))
    strange = [("a", 7, "2024-01-01 00:00:00"), ("b", None, None), ("c", None, None)]
    assert got == wanted(LINES[0], LINES[0], *strange)


def test_formats_and_layouts_may_be_mixed(tmp_path: Path) -> None:
    """Columns go by name, in any order and case, with others beside them."""
    write(tmp_path / "1.parquet", LINES)
    write(tmp_path / "2.csv", LINES)
    write(tmp_path / "3.jsonl", LINES)
    (tmp_path / "4.csv").write_text("TS,more,A,Unit\r\n2024-01-01 00:00:01,?,1,u1\r\n")
    files = source(tmp_path, "*")
    rows = read(files, planned(files, files.initial_offset(), 1))
    assert rows == wanted(*LINES * 3, LINES[0])


@pytest.mark.parametrize("order", [0, 1])
def test_what_cannot_be_used_is_refused_before_it_is_read(order: int, tmp_path: Path) -> None:
    """The trigger has no intent yet, so it can run without the file."""
    numbers = pa.BufferOutputStream()
    pq.write_table(pa.table({"unit": ["u"], "a": [1], "ts": [1_704_067_200_000]}), numbers)
    bad = {
        "numbers.parquet": (numbers.getvalue().to_pybytes(), "has integers in ts.*BIGINT"),
        "half.parquet": (b"PAR1 half", "not a complete Parquet file"),
        "empty.parquet": (b"", "not a complete Parquet file"),
        "columns.csv": (b"user,a,ts\n", r"lacks the columns \['unit'\]"),
        "notes.txt": (b"hello", "has none of the suffixes"),
        "cr.csv": (b"unit,a,ts\ru,1,2024-01-01\r", "no header line that ends in a line feed"),
        os.fsdecode(b"\xff.csv"): (b"unit,a,ts\n", "�.csv has a name that is not UTF-8"),
    }
    write(tmp_path / "in" / f"{order}ok.csv", LINES)
    for name, (data, words) in bad.items():
        path = tmp_path / "in" / f"{1 - order}{name}"
        path.write_bytes(data)
        files = source(tmp_path, "in/*", follow=True)
        with pytest.raises(SourceError, match=f"{words}.*has not run.*leave it behind"):
            planned(files, files.initial_offset(), 1)
        path.unlink()
        assert len(planned(files, files.initial_offset(), 1)["files"]) == 1


def test_a_link_out_of_the_folder_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The database may not follow it; a link within the folder, or to the folder, it may."""
    for folder in ("real", "other"):
        write(tmp_path / folder / "a.csv", LINES)
    (tmp_path / "in").symlink_to("real")
    (tmp_path / "in" / "b.csv").symlink_to("a.csv")
    files = source(tmp_path, "in/**/*.csv", follow=True)
    assert read(files, planned(files, files.initial_offset(), 1)) == wanted(*LINES, *LINES)
    for link, target in (("c.csv", "../other/a.csv"), ("d", "../other")):
        (tmp_path / "in" / link).symlink_to(target)
        with pytest.raises(SourceError, match=r"is a link out of.*has not run"):
            planned(files, files.initial_offset(), 1)
        (tmp_path / "in" / link).unlink()


@pytest.mark.parametrize(
    ("suffix", "step"),
    [(".jsonl", "_check_place"), (".csv", "_shape"), (".parquet", "_shape")],
)
def test_a_file_that_has_vanished_since_it_was_listed_is_refused(
    suffix: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it passed over, who is slow to look would decide whose records are missing."""
    path = tmp_path / f"a{suffix}"
    write(path, LINES)
    before = getattr(FileSource, step)

    def gone(self: FileSource, given: Any) -> Any:
        path.unlink()
        return before(self, given)

    monkeypatch.setattr(FileSource, step, gone)
    files = source(tmp_path, "*", follow=True)
    with pytest.raises(SourceError, match=r"has vanished.*leave-behind-unprotected"):
        planned(files, files.initial_offset(), 1)


@pytest.mark.parametrize("follow", [False, True])
def test_a_file_that_changes_after_the_cut_is_refused(follow: bool, tmp_path: Path) -> None:
    """What a trigger reads is decided when it is due, not when the worker comes to it."""
    path = tmp_path / "a.jsonl"
    write(path, LINES[:1])
    files = source(tmp_path, "*", follow=follow)
    records = files.cut(files.initial_offset(), at(1))
    data, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    write(path, LINES)
    with pytest.raises(
        SourceError, match=r"has changed since its trigger was due.*leave it behind"
    ):
        files.complete(records)
    path.write_bytes(data)
    os.utime(path, ns=times)
    assert read(files, files.complete(records)) == wanted(LINES[0])


@pytest.mark.parametrize("follow", [False, True])
def test_a_folder_is_no_pattern(follow: bool, tmp_path: Path) -> None:
    """It would be followed for ever, without a file."""
    write(tmp_path / "in" / "1.csv", LINES)
    files = source(tmp_path, "in", follow=follow)
    with pytest.raises(SourceError, match=r"is a folder.*path = 'in/\*.parquet'"):
        planned(files, files.initial_offset(), 1)


def test_only_the_sources_folder_can_be_read(tmp_path: Path) -> None:
    """The database may read the folder above the first wildcard, and no other."""
    write(tmp_path / "in" / "1.csv", LINES)
    write(tmp_path / "other.csv", LINES)
    files = source(tmp_path, "in/*.csv")
    assert files.folders() == [str(tmp_path / "in")]
    with connect(folders=files.folders()) as database, pytest.raises(duckdb.Error):
        database.sql(f"FROM '{tmp_path}/other.csv'").fetchall()


@pytest.mark.parametrize(
    ("column", "kind", "has"),
    [
        (pa.array([b"x"]), "BIGINT", "BLOB"),
        (pa.array([True]), "DATE", "BOOLEAN"),
        (pa.array([date(2024, 1, 1)]), "DOUBLE", "DATE"),
        (pa.array([[1]]), "BIGINT", r"BIGINT\[\]"),
        (pa.array([{"a": 1}]), "BIGINT", r"STRUCT\(a BIGINT\)"),
        (pa.array([1]), "TEXT[]", "BIGINT"),
        (pa.array([1.5]), "UUID", "DOUBLE"),
    ],
)
def test_a_column_that_can_never_be_read_is_refused(
    column: pa.Array, kind: str, has: str, tmp_path: Path
) -> None:
    """The schema of a file is public; without it there would be no rows and no word of why."""
    pq.write_table(pa.table({"c": column}), tmp_path / "a.parquet")
    source = FileSource(SourceDef("s", (("c", kind),), {"path": "*.parquet"}), None, tmp_path)
    with pytest.raises(SourceError, match=rf"has {has} in c.*null on every row; declare the type"):
        planned(source, source.initial_offset(), 1)


@pytest.mark.parametrize("kind", ["TEXT", "JSON", "BIGINT", "BOOLEAN", "DECIMAL(5, 1)", "UTINYINT"])
@pytest.mark.parametrize("column", [pa.array([1]), pa.array([1.5]), pa.array(["x"]), pa.nulls(1)])
def test_a_column_that_may_be_read_is_taken(column: pa.Array, kind: str, tmp_path: Path) -> None:
    """Though of this one nothing fits: what is in a file is not looked at."""
    pq.write_table(pa.table({"c": column}), tmp_path / "a.parquet")
    source = FileSource(SourceDef("s", (("c", kind),), {"path": "*.parquet"}), None, tmp_path)
    assert len(planned(source, source.initial_offset(), 1)["files"]) == 1
