"""Standard input and pushed frames: spooled, read twice, never stopped by a record."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.errors import SourceError, StateError
from dpsqlp.sources.columns import declared_schema
from dpsqlp.sources.files import FileSource
from dpsqlp.sources.python_frames import PythonSource, as_table
from dpsqlp.sources.spool import sweep_spools
from dpsqlp.sources.standard_input import StandardInput
from dpsqlp.sql import connect
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.storage import LocalStorage
from state.disks import FakeDisk
from support.databases import shared_database
from support.pipelines import at
from support.processes import WAIT_SECONDS, until

COLUMNS = (("unit", "VARCHAR"), ("a \"b' c", "INTEGER"), ("ts", "TIMESTAMP"))
SOURCE = SourceDef("s", COLUMNS, {})
NAME = COLUMNS[1][0]

PAIRS = pa.map_(pa.string(), pa.int64())
TEXTS = pa.array([b"a", b"\xff", b"b"], pa.binary())


@pytest.fixture(scope="module", autouse=True)
def one_database() -> Iterator[None]:
    with shared_database():
        yield


def read(source: PythonSource | StandardInput, records: Any) -> list[tuple[Any, ...]]:
    with connect() as database:
        source.read(json.loads(json.dumps(records)), database)
        quoted = NAME.replace('"', '""')
        return database.sql(f'SELECT unit, "{quoted}", CAST(ts AS VARCHAR) FROM s').fetchall()


def standard_input(storage: LocalStorage, data: bytes) -> StandardInput:
    source = StandardInput(SOURCE, storage, lambda: 0, io.BytesIO(data))
    assert source.ended.wait(WAIT_SECONDS)
    return source


def line(unit: Any, value: Any, ts: Any = None) -> bytes:
    return json.dumps({"unit": unit, NAME: value, "ts": ts}).encode()


def test_lines_are_spooled_and_read_twice(tmp_path: Path) -> None:
    """What one trigger took is there for another process, and the next trigger has the rest."""
    storage = LocalStorage(tmp_path)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        source = StandardInput(SOURCE, storage, lambda: 0, stream)
        os.write(writing, line("u", 1, "2024-01-01") + b"\n" + line("v", 2)[:9])
        until(lambda: source._arrived)
        first = source.cut(None, at(1))
        os.write(writing, line("v", 2)[9:])
        os.close(writing)
        assert source.ended.wait(WAIT_SECONDS)
        assert not source.exhausted
        second = source.cut(None, at(2))
        assert source.exhausted
    again = standard_input(storage, b"")
    for _ in range(2):
        assert read(again, first) == [("u", 1, "2024-01-01 00:00:00")]
        assert read(again, second) == [("v", 2, None)]
    assert read(again, None) == []


def test_a_line_belongs_to_the_trigger_that_is_due_after_it(tmp_path: Path) -> None:
    """By when it came, however late the cut is made; the end of the input too."""
    times = iter([10, 20, 21])
    stream = Mock(read=Mock(side_effect=[line("u", 1) + b"\n", line("v", 2), b""]))
    source = StandardInput(SOURCE, LocalStorage(tmp_path), lambda: next(times), stream)
    assert source.ended.wait(WAIT_SECONDS)
    found = []
    for trigger, time in enumerate([9, 10, 19, 20, 21], 1):
        found.append(read(source, source.cut(None, at(trigger, time))))
        assert source.exhausted == (time == 21)
    assert found == [[], [("u", 1, None)], [], [], [("v", 2, None)]]  # it ends with the input


def test_a_clock_that_goes_back_leaves_no_line_behind(tmp_path: Path) -> None:
    """Lines keep their order; none waits for a time that the clock has taken back."""
    times = iter([50, 20, 21])
    stream = Mock(read=Mock(side_effect=[line("u", 1) + b"\n", line("v", 2) + b"\n", b""]))
    source = StandardInput(SOURCE, LocalStorage(tmp_path), lambda: next(times), stream)
    assert source.ended.wait(WAIT_SECONDS)
    assert read(source, source.cut(None, at(1, 30))) == []
    assert not source.exhausted
    assert len(read(source, source.cut(None, at(2, 60)))) == 2
    assert source.exhausted


def test_a_line_is_no_object(tmp_path: Path) -> None:
    """Millions of them would keep other threads from running, and so from cutting their sources."""
    data = b"".join(line(f"u{number}", number) + b"\n" for number in range(100_000))
    source = standard_input(LocalStorage(tmp_path), data)
    assert len(source._arrived) <= len(data) // 65_536 + 2
    records = source.cut(None, at(1))
    with patch.object(pa, "array", side_effect=AssertionError), connect() as database:
        source.read(records, database)
        assert database.sql("SELECT count(*) FROM s").fetchall() == [(100_000,)]


def test_broken_lines_become_nulls(tmp_path: Path) -> None:
    """No line stops a run or changes another."""
    lines = [
        b"no json",
        b"\xff\xfe",
        b"[1]",
        b"",
        b'{"unit": "x"',
        line("u", "x", "never"),
        b"null",
    ]
    source = standard_input(LocalStorage(tmp_path), b"\n".join([*lines, line("v", 1)]))
    rows = read(source, source.cut(None, at(1)))
    assert [row for row in rows if row[0] is not None] == [("u", None, None), ("v", 1, None)]


def test_the_offset_of_another_source_is_refused(tmp_path: Path) -> None:
    """It would be forgotten, and the other source begin again."""
    pushed = PythonSource(SOURCE, LocalStorage(tmp_path))
    for source in (pushed, standard_input(LocalStorage(tmp_path), b"")):
        with pytest.raises(SourceError, match="connector it had"):
            source.cut({"taken": ["a"]}, at(1))  # type: ignore[arg-type]


class Endless(io.RawIOBase):
    """One line of so many bytes, and one after it."""

    def __init__(self, size: int) -> None:
        self.left = [*[b"x" * (1 << 16)] * (size >> 16), b"\n", line("v", 1)]

    def read(self, size: int = -1) -> bytes:
        return self.left.pop(0) if self.left else b""


def test_a_line_that_is_too_long_is_left_out_as_in_a_file(tmp_path: Path) -> None:
    """Nobody waits for it."""
    lines = [line("x" * (size - len(line("", 1))), 1) for size in (1_999_999, 2_000_000, 2_000_001)]
    data = b"\n".join([line("u", 1), *lines, line("v", 1)])
    (tmp_path / "a.jsonl").write_bytes(data)
    pushed = standard_input(LocalStorage(tmp_path / "state"), data)
    files = FileSource(SourceDef("s", COLUMNS, {"path": "a.jsonl"}), None, tmp_path)
    rows = read(pushed, pushed.cut(None, at(1)))
    assert [len(row[0] or "") for row in rows] == [1, 1_999_999 - len(line("", 1)), 1]
    with connect(folders=files.folders()) as database:
        files.read(files.complete(files.cut(files.initial_offset(), at(1))), database)
        assert database.sql("SELECT unit FROM s").fetchall() == [row[:1] for row in rows]


def test_a_line_without_end_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    """One sender would stall everybody's records."""
    stream = Endless(1 << 30)
    tracemalloc.start()
    try:
        source = StandardInput(SOURCE, LocalStorage(tmp_path), lambda: 0, stream)  # type: ignore[arg-type]
        assert source.ended.wait(WAIT_SECONDS)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert read(source, source.cut(None, at(1))) == [("v", 1, None)]


def test_a_frame_of_any_kind(tmp_path: Path) -> None:
    """Arrow tables and batches, dictionaries, pandas and Polars where they are installed."""
    columns = {"UNIT": ["u"], NAME: [1], "ts": ["2024-01-01"], "more": [None]}
    frames: list[Any] = [columns, pa.table(columns), pa.table(columns).to_batches()[0]]
    for name in ("pandas", "polars"):
        try:
            frames.append(__import__(name).DataFrame(columns))
        except ImportError:
            continue
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    for trigger, frame in enumerate(frames):
        source.push(frame)
        source.push(frame)
        records = source.cut(None, at(trigger))
        for _ in range(2):
            assert read(source, records) == [("u", 1, "2024-01-01 00:00:00")] * 2


def test_values_of_another_type_become_nulls(tmp_path: Path) -> None:
    """A frame's bad values are the record's own loss."""
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    source.push({"unit": ["u", "v"], NAME: ["x", "5"], "ts": ["never", "2024-01-01"]})
    source.push({"unit": [1, 2], NAME: [2.0**60, 3.0], "ts": [None, None]})
    assert read(source, source.cut(None, at(1))) == [
        ("u", None, None),
        ("v", 5, "2024-01-01 00:00:00"),
        ("1", None, None),
        ("2", 3, None),
    ]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ([1, 2], "Arrow, pandas or Polars"),
        ({"unit": ["private"]}, "lack the columns"),
        ({"unit": ["private"], NAME: [1, 2], "ts": [None]}, "no table"),
    ],
)
def test_what_is_no_table_is_refused(frame: Any, words: str, tmp_path: Path) -> None:
    """The caller is told what to hand over, without a record in the text."""
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    with pytest.raises(SourceError, match=words) as refused:
        source.push(frame)
    assert "private" not in str(refused.value)
    assert read(source, source.cut(None, at(1))) == []


@pytest.mark.parametrize("kind", ["stdin", "python"])
def test_a_full_disk_keeps_what_was_handed_over(kind: str) -> None:
    """Records that could not be spooled are the next attempt's."""
    disk = FakeDisk()
    storage = LocalStorage(Path("/state"), disk)
    source: PythonSource | StandardInput
    if kind == "stdin":
        source = standard_input(storage, line("u", 1))
    else:
        source = PythonSource(SOURCE, storage)
        source.push({"unit": ["u"], NAME: [1], "ts": [None]})
    disk.room = 3
    with pytest.raises(StateError, match=r"No space left.*Make room"):
        source.cut(None, at(1))
    disk.room = None
    assert read(source, source.cut(None, at(1))) == [("u", 1, None)]


def test_spools_are_forgotten(tmp_path: Path) -> None:
    """After the trigger, or after a crash that no intent remembers; a lost one is refused."""
    storage = LocalStorage(tmp_path)
    source = PythonSource(SOURCE, storage)
    ranges = [source.cut(None, at(trigger)) for trigger in range(3)]
    source.acknowledge(ranges[0])
    source.acknowledge(None)
    assert storage.list() == ["spool/1.arrow", "spool/2.arrow"]
    sweep_spools(storage, [ranges[2], None])
    assert storage.list() == ["spool/2.arrow"]
    sweep_spools(storage, [])
    with pytest.raises(StateError, match=r"are missing.*Restore the whole state folder"):
        read(source, ranges[2])


def test_another_spool_of_the_same_name_is_refused(tmp_path: Path) -> None:
    """A crash before the cut leaves a spool, and the next attempt spools under the same name."""
    storage = LocalStorage(tmp_path)
    source = PythonSource(SOURCE, storage)
    source.push({"unit": ["u"], NAME: [1], "ts": [None]})
    before = storage.get(source.cut(None, at(1))["spool"])
    source.push({"unit": ["v"], NAME: [2], "ts": [None]})
    records = source.cut(None, at(1))
    assert before is not None
    storage.put(records["spool"], [before])
    with pytest.raises(StateError, match=r"are not those of the cut.*Nothing was released"):
        read(source, records)


@pytest.mark.parametrize("data", [b"", b'{"unit": "a"}\n'])
def test_one_trigger_runs_after_the_end_with_lines_or_without(data: bytes, tmp_path: Path) -> None:
    """Whether the last trigger runs must not show whether somebody sent a line."""
    source = standard_input(LocalStorage(tmp_path), data)
    assert source.ended.wait(WAIT_SECONDS)
    assert not source.exhausted
    source.cut(None, at(1))
    assert source.exhausted


def units(source: PythonSource, values: Any) -> list[str | None]:
    count = len(values)
    source.push({"unit": values, NAME: [1] * count, "ts": [None] * count})
    return [unit for unit, _, _ in read(source, source.cut(None, at(1)))]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (0.5, "0.5"),
        (2**63, str(2**63)),
        (-(2**70), str(-(2**70))),
        ("x", "x"),
        (b"a", "a"),
        (Decimal("1.25"), "1.25"),
        ([1], "[1]"),
        (None, None),
        (pd.NA, None),
        (float("nan"), "nan"),
        ("\ud800", "?"),
        (Decimal("Infinity"), "Infinity"),
        pytest.param(10**5000, None, id="digits"),
        ([10**5000], None),
    ],
)
@pytest.mark.parametrize("one", [7, 7.0, Decimal("7"), "7", np.int64(7)])
def test_one_value_does_not_change_the_others(
    one: Any, other: Any, text: str | None, tmp_path: Path
) -> None:
    """Whoever sends a number of another kind renames nobody, and makes nobody two units."""
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    alone = units(source, [one, one])
    mixed = units(source, [one, other, one])
    assert mixed == [alone[0], text, alone[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["VARCHAR", "BIGINT", "BOOLEAN", "TIMESTAMP", "DOUBLE", "INTERVAL"]
)
@pytest.mark.parametrize(
    "other",
    [
        "x",
        b"\x00",
        2**70,
        0.5,
        Decimal("1.25"),
        True,
        3,
        timedelta.max,
        np.datetime64(2**62, "D"),
        np.datetime64("2024-01-01", "D"),
    ],
)
def test_a_cast_depends_on_its_value_alone(kind: str, other: Any) -> None:
    source = SourceDef("s", (("u", kind),), {})
    moment = datetime(2024, 1, 1, 0, 0, 0, 500_000)
    ones = [True, 2.5, 7, "7", b"\x00a", moment, moment.replace(tzinfo=UTC), np.float32(7)]
    ones += [timedelta(1), 2**63, Decimal("7"), np.datetime64(1, "ns")]

    def read_as(values: list[Any]) -> list[Any]:
        column: list[Any] = as_table({"u": values}, source, declared_schema(source))[
            "u"
        ].to_pylist()
        return column

    alone = read_as([other])
    for one in ones:
        assert read_as([one, other]) == read_as([one]) + alone


def test_decimals_keep_their_own_digits(tmp_path: Path) -> None:
    """Arrow would give all of them as many as the longest has."""
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    assert units(source, [Decimal("7"), Decimal("1.25")]) == ["7", "1.25"]


def test_a_number_is_the_same_text_whatever_its_columns_type(tmp_path: Path) -> None:
    """One null makes pandas' integers floats."""
    source = PythonSource(SOURCE, LocalStorage(tmp_path))
    for column in (
        pa.array([7, 8]),
        pa.array([7.0, 8.0]),
        pd.Series([7, 8]),
        pd.Series([7.0, 8.0]),
    ):
        assert units(source, column) == ["7", "8"]
    assert units(source, pd.Series([7, None, 0.5])) == ["7", None, "0.5"]
    floats = [x * 10.0**n for n in range(-320, 309, 7) for x in (1.0, -1.7, 9.99)]
    assert units(source, floats) == units(source, [*floats, "x"])[:-1]


def test_json_is_json(tmp_path: Path) -> None:
    """Arrow hands it over as text, of which `[1]` is a letter."""
    source = PythonSource(SourceDef("s", (("j", "JSON"),), {}), LocalStorage(tmp_path))
    source.push({"j": ["[10, 20]", '{"Page": 1}', "no json", None]})
    with connect() as database:
        source.read(source.cut(None, at(1)), database)
        found = database.sql("SELECT CAST(j[1] AS TEXT), CAST(j.Page AS TEXT) FROM s").fetchall()
    assert found == [("20", None), (None, "1"), (None, None), (None, None)]


@pytest.mark.slow
@pytest.mark.parametrize("group", ["arrow", "pandas", "polars", "python"])
def test_every_frame_is_taken_or_refused_in_words(group: str) -> None:
    """And what becomes of a value does not depend on the others. In a process of its own: Arrow
    aborts on some of these."""
    command = [sys.executable, str(Path(__file__).with_name("frames.py")), group]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, (lines[-1], ran.stderr[-500:])
    assert [line for line in lines if line.startswith("WRONG")] == []
    _, taken, refused = lines[-1].split()
    assert int(taken) > 10 * int(refused)


@pytest.mark.parametrize(
    ("kind", "poison"),
    [
        ("BIGINT[]", None),
        ("BIGINT[2]", None),
        ("MAP(TEXT, BIGINT)", [None]),
        ("MAP(TEXT, BIGINT)", {None: 1}),
        ("MAP(TEXT, BIGINT)[]", [[None]]),
        ("STRUCT(a MAP(TEXT, BIGINT))", {"a": [None]}),
    ],
)
def test_a_null_in_a_nested_column_is_its_own_loss(kind: str, poison: Any) -> None:
    """Of the values of a dictionary; one of them ended the process."""
    good = {"B": [1, 2], "M": {"k": 1}, "S": {"a": {"k": 1}}}[kind[0]]
    good = [good] if kind.startswith("MAP") and kind.endswith("[]") else good
    source = SourceDef("s", (("u", kind),), {})
    column = as_table({"u": [good, poison, good]}, source, declared_schema(source)).column("u")
    assert [value is None for value in column.to_pylist()] == [False, True, False]
    assert column[0] == column[2]


def test_a_frame_with_a_column_twice_is_refused() -> None:
    source = SourceDef("s", (("u", "BIGINT"),), {})
    with pytest.raises(SourceError, match="the column u twice"):
        as_table(pa.table({"u": [1], "U": [2]}), source, declared_schema(source))


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.floats() | st.booleans(),
        lambda inner: st.lists(inner) | st.dictionaries(st.none() | st.text(), inner),
        max_leaves=6,
    ),
    st.sampled_from(["BIGINT[]", "MAP(TEXT, BIGINT)", "STRUCT(k TEXT[])[]", "TEXT", "BIGINT[2]"]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_value_leaves_the_others_as_they_are(value: Any, kind: str) -> None:
    source = SourceDef("s", (("u", kind),), {})
    schema = declared_schema(source)
    other = {"T": "x", "M": {"a": 1}, "S": [{"k": ["x"]}], "B": [1, 2]}[kind[0]]
    alone = as_table({"u": [other]}, source, schema).to_pylist()
    assert as_table({"u": [other, value, other]}, source, schema).to_pylist()[::2] == alone * 2


@pytest.mark.parametrize(
    ("kind", "column", "bad"),
    [
        ("MAP(TEXT, BIGINT)", pa.array([[("a", 1)], [("a", 1), ("a", 2)]] * 2, PAIRS), [1, 3]),
        ("TEXT", pa.array([0, 2**62, 1], pa.int64()).view(pa.timestamp("s", "UTC")), [1]),
        ("TEXT", pa.array([0, -(2**63) + 2, 1], pa.int64()).view(pa.timestamp("us")), [1]),
        ("TEXT", pa.Array.from_buffers(pa.string(), 3, TEXTS.buffers()), [1]),
        ("BIGINT", pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "no", "2"])), [1]),
    ],
    ids=["twice a key", "far", "first", "utf8", "json"],
)
def test_a_value_that_stops_the_database_is_its_own_loss(
    kind: str, column: pa.Array, bad: list[int]
) -> None:
    source = SourceDef("s", (("u", kind),), {})
    read = as_table(pa.table({"u": column}), source, declared_schema(source)).column("u")
    assert [n for n, value in enumerate(read.to_pylist()) if value is None] == bad
