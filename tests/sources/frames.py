"""Columns of every type that Arrow, pandas, Polars and Python have, pushed into columns of every
type that a source may declare. A program: what would end its process is seen by its parent.

Prints a line before each frame, and one for each that is neither taken as it should be nor refused
in words. A value's fate is its own: pushed with others, as when it is pushed alone.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from dpsqlp.errors import SourceError
from dpsqlp.sources.python_frames import PythonSource
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.storage import LocalStorage
from state.disks import FakeDisk
from support.databases import shared_database
from support.pipelines import at

DECLARED = (
    *("TEXT", "BIGINT", "UTINYINT", "DOUBLE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NS"),
    *("BOOLEAN", "DATE", "TIME", "INTERVAL", "BLOB", "BIT", "DECIMAL(10, 2)", "HUGEINT"),
    *("UUID", "JSON", "ENUM('a', 'b')", "BIGINT[]", "TEXT[]", "BIGINT[2]", "TEXT[2][]"),
    *("MAP(TEXT, BIGINT)", "MAP(TEXT, BIGINT)[]", "STRUCT(a BIGINT, b TEXT)"),
    "STRUCT(a MAP(TEXT, BIGINT[]), b BIGINT[2])",
)
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 678_901)
INTS, FLOATS = [1, None, 0, 7], [1.0, None, math.nan, math.inf]
PAIRS = [[("a", 1), ("b", None)], None, [], [("a", 2)]]
DICTS = [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "2"}]


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    """An extension type that nobody has registered."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialised: bytes) -> Celsius:
        return cls()


class Odd:
    """An object that no table has a type for."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no items")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def arrow() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Arrow arrays, a type each; the values of some are out of the range of all others."""

    def of(values: list[Any], kind: pa.DataType) -> Callable[[], Any]:
        return lambda: pa.array(values, kind)

    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        yield str(kind), of([*INTS, -1], kind)
    for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        yield str(kind), of([*INTS, 2**kind.bit_width - 1], kind)
    for kind in (pa.float32(), pa.float64()):
        yield str(kind), of([*FLOATS, -0.0], kind)
    yield "halffloat", of([np.float16(1.5), None, np.float16("nan")], pa.float16())
    yield "bool", of([True, None, False], pa.bool_())
    yield "null", of([None, None, None], pa.null())
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield str(kind), of(["a", None, "", "7", "2024-01-02", "[1]", '{"a": 1}', "ü\0"], kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield str(kind), of([b"a", None, b"", b"\xff\x00", b"7"], kind)
    yield "fixed_size_binary", of([b"ab", None, b"\xff\x00"], pa.binary(2))
    texts = pa.array([b"a", b"\xff", None, b"b"], pa.binary())
    yield "invalid utf8", lambda: pa.Array.from_buffers(pa.string(), 4, texts.buffers())
    yield (
        "invalid utf8 in lists",
        lambda: pa.ListArray.from_arrays(
            pa.array([0, 1, 2, 4]), pa.Array.from_buffers(pa.string(), 4, texts.buffers())
        ),
    )
    edges = [0, None, 1, 2**63 - 1, -(2**63)]
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "Asia/Kolkata"):
            kind = pa.timestamp(unit, zone)
            yield str(kind), partial(pa.array(edges, pa.int64()).view, kind)
        kind = pa.duration(unit)
        yield str(kind), partial(pa.array(edges, pa.int64()).view, kind)
    times = [0, None, 1, 2**31 - 1, -(2**31)]
    for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")):
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        yield str(kind), partial(pa.array(times, whole).view, kind)
    days = [0, None, 1, 2**31 - 1, -(2**31)]
    yield "date32", lambda: pa.array(days, pa.int32()).view(pa.date32())
    yield "date64", lambda: pa.array([0, None, 86_400_000, 2**63 - 1]).view(pa.date64())
    spans = [(1, 2, 3), None, (0, 0, 0), (2**31 - 1, -(2**31), 2**63 - 1)]
    yield "month_day_nano", of(spans, pa.month_day_nano_interval())
    yield "decimal32", of([Decimal("1.25"), None], pa.decimal32(5, 2))
    yield "decimal64", of([Decimal("1.25"), None], pa.decimal64(12, 2))
    yield "decimal128", of([Decimal("1.25"), None, Decimal(-7)], pa.decimal128(38, 2))
    yield "decimal128 negative scale", of([Decimal(1200), None], pa.decimal128(5, -2))
    yield "decimal256", of([Decimal(10) ** 60, None, Decimal(7)], pa.decimal256(76, 2))
    for made in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        lists = [[1, None], None, [], [3, 4]]
        yield str(made(pa.int64())), of(lists, made(pa.int64()))
        yield str(made(pa.string())), of([["a", None], None, []], made(pa.string()))
    yield "fixed_size_list", of([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2))
    yield "fixed_size_list 0", of([[], None], pa.list_(pa.int64(), 0))
    yield "map", of(PAIRS, pa.map_(pa.string(), pa.int64()))
    yield "map of int", of([[(1, "x")], None], pa.map_(pa.int64(), pa.string()))
    yield "map twice the key", of([[("a", 1), ("a", 2)], [("b", 1)]], pa.map_("string", "int64"))
    yield "list of map", of([PAIRS[:1], None, []], pa.list_(pa.map_(pa.string(), pa.int64())))
    yield "struct", of(DICTS, pa.struct([("a", pa.int64()), ("b", pa.string())]))
    yield "struct without fields", of([{}, None], pa.struct([]))
    yield (
        "struct twice the name",
        lambda: pa.StructArray.from_arrays(
            [pa.array([1, 2]), pa.array(["x", None])], names=["a", "a"]
        ),
    )
    parts = [pa.array([1, 2, None]), pa.array(["x", None, "z"])]
    which = pa.array([0, 1, 0], pa.int8())
    yield "sparse union", lambda: pa.UnionArray.from_sparse(which, parts)
    yield (
        "dense union",
        lambda: pa.UnionArray.from_dense(which, pa.array([0, 0, 1], "int32"), parts),
    )
    yield "dictionary", lambda: pa.array(["a", None, "b", "a"]).dictionary_encode()
    yield "dictionary of int", lambda: pa.array([1, None, 7]).dictionary_encode()
    yield (
        "dictionary of list",
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array([[1], [2, None]])),
    )
    yield (
        "dictionary of null",
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])),
    )
    ends = pa.array([1, 3], pa.int32())
    yield "run_end_encoded", lambda: pa.RunEndEncodedArray.from_arrays(ends, pa.array(["a", None]))
    yield "run_end_encoded int", lambda: pa.RunEndEncodedArray.from_arrays(ends, pa.array([1, 7]))
    yield "uuid", of([uuid.UUID(int=7).bytes, None], pa.uuid())
    yield "json", of(['{"a": 1}', None, "no json"], pa.json_())
    yield "bool8", lambda: pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], "int8"))
    yield (
        "opaque",
        lambda: pa.ExtensionArray.from_storage(
            pa.opaque(pa.int64(), "kind", "vendor"), pa.array([1, None])
        ),
    )
    yield (
        "tensor",
        lambda: pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int64(), [2]),
            pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
        ),
    )
    yield "extension", lambda: pa.ExtensionArray.from_storage(Celsius(), pa.array(FLOATS))
    yield "chunks", lambda: pa.chunked_array([[1], [], [None, 7]])
    yield "no chunk", lambda: pa.chunked_array([], pa.int64())
    yield "sliced", lambda: pa.array([[1], [2], None, [4, None]]).slice(1)


def pandas() -> Iterator[tuple[str, Callable[[], Any]]]:
    """pandas' series."""
    for kind in ("Int64", "UInt8", "Float32", "boolean", "string", "object", "category"):
        values = {"boolean": [True, None, False], "string": ["a", None, "7"]}.get(
            kind, [1, None, 7]
        )
        yield kind, partial(pd.Series, values, dtype=kind)
    for kind in ("int8", "uint64", "float16", "float64", "bool", "complex128", "str"):
        yield kind, partial(pd.Series([1, 0, 7]).astype, kind)
    for kind in ("string[pyarrow]", "int64[pyarrow]", "timestamp[ns][pyarrow]"):
        yield kind, partial(pd.Series, [None, None], dtype=kind)
    days = ["2024-01-02", None, "2261-01-01"]
    for unit in ("s", "ms", "us", "ns"):
        yield f"M8[{unit}]", partial(pd.Series(days).astype, f"M8[{unit}]")
        yield f"m8[{unit}]", partial(pd.Series([1, None]).astype, f"m8[{unit}]")
    yield "tz", lambda: pd.Series(pd.to_datetime(days)).dt.tz_localize("Europe/Berlin")
    yield "period", lambda: pd.Series(pd.period_range("2024", periods=2, freq="M"))
    yield "interval", lambda: pd.Series(pd.interval_range(0, 2))
    yield "sparse", lambda: pd.Series(pd.arrays.SparseArray([0, 0, 7]))
    yield "category of intervals", lambda: pd.Series(pd.cut([1, 2, 9], 2))
    yield "category of times", lambda: pd.Series(pd.to_datetime(days)).astype("category")
    for name, values in PYTHON.items():
        yield f"object {name}", partial(pd.Series, values, dtype=object)


def polars() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Polars' series."""
    given: dict[str, tuple[list[Any], Any]] = {
        "Int128": ([1, None, -(2**120)], pl.Int128),
        "Int8": (INTS, pl.Int8),
        "UInt64": ([2**64 - 1, None], pl.UInt64),
        "Float32": (FLOATS, pl.Float32),
        "Boolean": ([True, None], pl.Boolean),
        "String": (["a", None, "7"], pl.String),
        "Binary": ([b"a", None, b"\xff"], pl.Binary),
        "Null": ([None, None], pl.Null),
        "Date": ([MOMENT.date(), None], pl.Date),
        "Time": ([MOMENT.time(), None], pl.Time),
        "Datetime": ([MOMENT, None], pl.Datetime("ns")),
        "Datetime tz": ([MOMENT, None], pl.Datetime("us", "Asia/Kolkata")),
        "Duration": ([dt.timedelta(1), None], pl.Duration("ms")),
        "Decimal": ([Decimal("1.25"), None], pl.Decimal(20, 2)),
        "Categorical": (["a", None, "b"], pl.Categorical),
        "Enum": (["a", None, "b"], pl.Enum(["a", "b"])),
        "Object": ([Odd(), None], pl.Object),
        "List": ([[1, None], None, []], pl.List(pl.Int64)),
        "Array": ([[1, None], None], pl.Array(pl.Int64, 2)),
        "Array of Array": ([[["a", "b"]], None], pl.Array(pl.Array(pl.String, 2), 1)),
        "Struct": (DICTS, pl.Struct({"a": pl.Int64, "b": pl.String})),
        "List of Struct": ([[{"a": 1}], None], pl.List(pl.Struct({"a": pl.Int64}))),
        "List of Categorical": ([["a", None]], pl.List(pl.Categorical)),
    }
    for name, (values, kind) in given.items():
        yield name, partial(pl.Series, values, dtype=kind)


PYTHON: dict[str, list[Any]] = {
    "nothing": [],
    "None": [None, pd.NA, pd.NaT, math.nan, np.datetime64("NaT")],
    "int": [1, None, -(2**70), 2**63, 10**5000, np.int8(7), True],
    "float": [0.5, None, math.nan, math.inf, np.float16(2), 1e308, 1j],
    "text": ["a", None, "", "\ud800", "7", "[1]", np.str_("x"), "x\0y"],
    "bytes": [b"a", None, b"\xff", bytearray(b"b"), memoryview(b"c")],
    "decimal": [Decimal("1.25"), None, Decimal("NaN"), Decimal("Infinity"), Decimal("1e999")],
    "time": [
        *(
            MOMENT,
            None,
            MOMENT.date(),
            MOMENT.time(),
            dt.timedelta.max,
            MOMENT.replace(tzinfo=dt.UTC),
        ),
        *(dt.datetime.min, dt.datetime.max, np.datetime64(2**62, "D"), np.timedelta64(1, "Y")),
        *(pd.Timestamp(MOMENT, tz="Asia/Kolkata"), pd.Period("2024-01"), np.datetime64(7, "ns")),
    ],
    "uuid": [uuid.UUID(int=7), None, str(uuid.UUID(int=8))],
    "list": [
        [1, None],
        None,
        [],
        (3, 4),
        ["a"],
        ["a", "b"],
        [[1]],
        [None],
        [[None]],
        [10**5000],
        "ab",
    ],
    "array": [
        *(np.array([1, 2]), None, np.array([1.5, np.nan]), np.array([[1, 2]]), np.array(7)),
        *(
            np.array(["a", None], object),
            np.array([1, 2], ">i8"),
            np.arange(4)[::2],
            np.array([1j]),
        ),
        *(
            np.array(["2024-01-02"], "M8[D]"),
            pa.array([1, None]),
            pl.Series([1, 2]),
            pd.Series([1]),
        ),
        np.array([("a", 1)], [("x", "U1"), ("y", "i8")]),
    ],
    "map": [
        *({"a": 1}, None, {}, {"a": None}, {None: 1}, {1: 1}, {"a": "x"}, {"a": 2**70}),
        *(
            [("a", 1), ("a", 2)],
            [("a", 1)],
            [None],
            [("a",)],
            [("a", 1, 2)],
            [(None, 1)],
            [("a", None)],
            ["ab"],
            [{}],
        ),
        *([[None]], [{"a": 1}, None], [[("a", 1)]], [[("a", [1])]], np.array([None], object)),
    ],
    "struct": [
        *DICTS,
        {"a": {"k": [1, None]}, "b": [1, 2]},
        {"a": [None], "b": None},
        {"A": 1},
        (1, "x"),
    ],
    "odd": [
        Odd(),
        object(),
        None,
        set(),
        {1, 2},
        iter([1]),
        range(2),
        int,
        "a",
        [Odd()],
        {"a": Odd()},
    ],
}


def read(frames: Sequence[Any], kinds: Mapping[str, str]) -> list[Any]:
    """What a trigger reads of frames that are pushed, as texts."""
    columns = tuple(kinds.items())
    source = PythonSource(SourceDef("s", columns, {}), LocalStorage(Path("/state"), FakeDisk()))
    for frame in frames:
        source.push(frame)
    texts = ", ".join(f"CAST({name} AS TEXT)" for name in kinds)
    with duckdb.connect() as database:
        source.read(source.cut(None, at(1)), database)
        return database.sql(f"SELECT {texts} FROM s").fetchall()


def frames(column: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """A column under many names, in the frames that can hold it."""
    columns = dict.fromkeys(names, column)
    if isinstance(column, pa.Array | pa.ChunkedArray):
        yield "table", pa.table(columns)
        return
    if isinstance(column, pd.Series):
        yield "frame", pd.DataFrame(columns)
    if isinstance(column, pl.Series):
        yield "frame", pl.DataFrame(columns)
    yield "dictionary", columns


def row(frame: Any, number: int) -> Any:
    """A frame's row as a frame."""
    if isinstance(frame, dict):
        return {name: column[number : number + 1] for name, column in frame.items()}
    return frame[number : number + 1]


def check(where: str, frame: Any, length: int) -> tuple[int, int]:
    """Push a frame, then its rows one by one: how many of its columns are taken and refused."""
    kinds = {f"c{number}": kind for number, kind in enumerate(DECLARED)}
    while kinds:
        try:
            together = read([frame], kinds)
            break
        except SourceError as refusal:
            named = re.search(r"The column (c\d+) is declared", str(refusal))
            if named is None:  # all of it
                return 0, len(DECLARED)
            del kinds[named[1]]
    else:
        return 0, len(DECLARED)
    alone = read([row(frame, number) for number in range(length)], kinds) if length else together
    if together != alone:
        different = [
            (kind, one, other)
            for kind, one, other in zip(
                kinds.values(), zip(*together, strict=True), zip(*alone, strict=True), strict=True
            )
            if one != other
        ]
        print(f"WRONG {where}: together and alone {different}"[:1000])
    return len(kinds), len(DECLARED) - len(kinds)


def main(group: str) -> None:
    """All frames of a group in all declared columns."""
    groups: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Any]]]]] = {
        "arrow": arrow,
        "pandas": pandas,
        "polars": polars,
        "python": lambda: ((name, partial(list, values)) for name, values in PYTHON.items()),
    }
    taken = refused = 0
    for name, make in groups[group]():
        column = make()
        for form, frame in frames(column, [f"c{number}" for number in range(len(DECLARED))]):
            where = f"{group} {name} as {form}"
            print("trying", where, flush=True)
            try:
                counts = check(where, frame, len(column))
            except Exception as error:
                print(f"WRONG {where}: {type(error).__name__}: {str(error)[:300]!r}")
            else:
                taken, refused = taken + counts[0], refused + counts[1]
                print(*counts)
    print("ended", taken, refused)


if __name__ == "__main__":
    with shared_database():
        main(sys.argv[1])
