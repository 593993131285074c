"""Canonical bytes: the twin's, injective, ordered, and blind to Arrow's physical types."""

from __future__ import annotations

import datetime
import itertools
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsqlp.entropy.canonical import Encoded, encode, kind_of
from dpsqlp.errors import BatchError
from reference.twin import canonical

# Hypothesis builds its table of characters in the first draw.
SLOW_FIRST_DRAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ARROW = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "float": st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324]),
    "text": st.text(max_size=40) | st.text("\0\1aé\U0001f600", max_size=5),
    "bytes": st.binary(max_size=40) | st.lists(st.sampled_from([0, 1, 255])).map(bytes),
}


def texts(encoded: Encoded) -> list[bytes]:
    return [
        encoded.data[start:stop].tobytes() for start, stop in itertools.pairwise(encoded.offsets)
    ]


def of(column: Any) -> list[bytes]:
    return texts(encode([column], len(column)))


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=3)))
    row = st.tuples(*(st.none() | SCALARS[kind] for kind in kinds))
    return kinds, draw(st.lists(row, max_size=12))


def arrays(kinds: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [
        pa.array([row[position] for row in rows], ARROW[kind])
        for position, kind in enumerate(kinds)
    ]


def comparable(scalar: Any) -> tuple[Any, ...]:
    """Nulls first, NaN last, -0.0 equal to 0.0; text by code point, as UTF-8 sorts."""
    if scalar is None:
        return (0,)
    if isinstance(scalar, float) and math.isnan(scalar):
        return (2,)
    return (1, scalar)


@SLOW_FIRST_DRAW
@given(tables())
def test_equals_the_twin(table: tuple[tuple[str, ...], list[tuple[Any, ...]]]) -> None:
    """Random tuples of every kind the twin knows, with nulls."""
    kinds, rows = table
    got = texts(encode(arrays(kinds, rows), len(rows)))
    assert got == [canonical(row, kinds) for row in rows]


@SLOW_FIRST_DRAW
@given(tables())
def test_bytes_are_equal_and_ordered_as_the_values(
    table: tuple[tuple[str, ...], list[tuple[Any, ...]]],
) -> None:
    """Injective: two rows share their bytes iff they are equal. Comparing bytes compares rows."""
    kinds, rows = table
    got = texts(encode(arrays(kinds, rows), len(rows)))
    values = [tuple(comparable(scalar) for scalar in row) for row in rows]
    for (a, value_a), (b, value_b) in itertools.combinations(zip(got, values, strict=True), 2):
        assert (a == b) == (value_a == value_b)
        assert (a < b) == (value_a < value_b)


@SLOW_FIRST_DRAW
@given(tables(), st.randoms(use_true_random=False))
def test_rows_do_not_see_each_other(
    table: tuple[tuple[str, ...], list[tuple[Any, ...]]], dice: Any
) -> None:
    """Another order of rows, or slices of a longer array, give every row the same bytes."""
    kinds, rows = table
    whole = texts(encode(arrays(kinds, rows), len(rows)))
    order = list(range(len(rows)))
    dice.shuffle(order)
    shuffled = arrays(kinds, [rows[k] for k in order])
    assert texts(encode(shuffled, len(rows))) == [whole[k] for k in order]
    cut = dice.randint(0, len(rows))
    columns = arrays(kinds, rows)
    for part, expected in ((slice(0, cut), whole[:cut]), (slice(cut, None), whole[cut:])):
        pieces = [column[part] for column in columns]
        assert texts(encode(pieces, len(expected))) == expected
    chunked = [pa.chunked_array([c[:cut], c[cut:]], c.type) for c in columns]
    assert texts(encode(chunked, len(rows))) == whole


def test_tuples_with_the_same_concatenation_differ() -> None:
    """Scalars delimit themselves: where one ends and the next begins shows."""
    left = pa.array(["a", "ab", "", "a\0", "a", None, "", "\0"])
    right = pa.array(["bc", "c", "abc", "b", "\0b", "", None, ""])
    assert len(set(texts(encode([left, right], 8)))) == 8
    kinds = [pa.array([1]), pa.array([1.0]), pa.array(["1"]), pa.array([b"1"]), pa.array([True])]
    kinds += [pa.array([1], pa.date32()), pa.array([1], pa.timestamp("s"))]
    kinds += [pa.array([1], pa.time64("ns")), pa.nulls(1)]
    assert len({of(column)[0] for column in kinds}) == len(kinds)


INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]


@pytest.mark.parametrize("arrow", INTEGERS, ids=str)
def test_integers_of_every_width(arrow: pa.DataType) -> None:
    """int8 to uint64 give the same bytes, up to the ends of each type; uint64 past int64 too."""
    limits = np.iinfo(arrow.to_pandas_dtype())
    values = [int(limits.min), 0, 1, 100, int(limits.max) // 2, int(limits.max), None]
    assert of(pa.array(values, arrow)) == [canonical((v,), ("integer",)) for v in values]


def test_large_unsigned_integers_sort_above_all_others() -> None:
    """2^63 - 1 < 2^63 < 2^64 - 1, across tags."""
    got = of(pa.array([0, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], pa.uint64()))
    assert got == sorted(set(got))
    assert got[1] == of(pa.array([2**63 - 1]))[0]


STRINGS = ["", "a", "a\0b", "\0", "é", "\U0001f600", "longer than twelve bytes", "x" * 5000, None]


@pytest.mark.parametrize("arrow", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_of_every_layout(arrow: pa.DataType) -> None:
    """string, large_string and string_view, plain, as dictionary, sliced and chunked."""
    expected = [canonical((v,), ("text",)) for v in STRINGS]
    column = pa.array(STRINGS, pa.string()).cast(arrow)
    assert of(column) == expected
    assert of(column[2:7]) == expected[2:7]
    assert of(pa.chunked_array([column[:3], column[3:3], column[3:]])) == expected
    assert of(column[:0]) == []


@pytest.mark.parametrize("index", [pa.int8(), pa.uint16(), pa.int32(), pa.int64()], ids=str)
@pytest.mark.parametrize("value", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_dictionaries(index: pa.DataType, value: pa.DataType) -> None:
    """Indices, order and unused or repeated entries of a dictionary do not show."""
    words = pa.array(["unused", "b", "a", "a", None], pa.string()).cast(value)
    column = pa.DictionaryArray.from_arrays(pa.array([2, None, 1, 3, 4, 1], index), words)
    kind = "bytes" if value == pa.binary() else "text"
    plain = [b"a", None, b"b", b"a", None, b"b"]
    expected = [
        canonical((v if v is None or kind == "bytes" else v.decode(),), (kind,)) for v in plain
    ]
    assert of(column) == expected
    assert of(column[1:4]) == expected[1:4]
    other = pa.array(["b", "z"]).cast(value).dictionary_encode().cast(column.type)
    assert of(pa.chunked_array([column, other]))[-2] == expected[2]


def test_dictionaries_of_numbers_and_times() -> None:
    """A dictionary of any scalar decodes to that scalar."""
    for plain in (
        pa.array([5, None, 5, -7]),
        pa.array([0.5, None, math.nan, -0.0]),
        pa.array([1, None, 1, 2], pa.timestamp("ms")),
    ):
        assert of(plain.dictionary_encode()) == of(plain)


@pytest.mark.parametrize(
    "arrow", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)], ids=str
)
def test_bytes_of_every_layout(arrow: pa.DataType) -> None:
    """binary, large, view and fixed size."""
    values = [b"abc", b"\0\0\0", b"a\0b", None, b"\xff\xff\xff"]
    expected = [canonical((v,), ("bytes",)) for v in values]
    column = pa.array(values, arrow)
    assert of(column) == expected
    assert of(column[1:4]) == expected[1:4]
    assert of(column[:0]) == []


@pytest.mark.parametrize("arrow", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_of_every_width(arrow: pa.DataType) -> None:
    """One NaN, one zero, and the same bytes for a value that every width holds."""
    values = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 2.0**-14, None]
    numbers = np.array([0.0 if v is None else v for v in values], arrow.to_pandas_dtype())
    column = pa.array(numbers, arrow, mask=np.array([v is None for v in values]))
    assert of(column) == [canonical((v,), ("float",)) for v in values]
    assert of(column)[0] == of(column)[1]
    assert of(column[5:8]) == of(column)[5:8]


def test_every_nan_is_one() -> None:
    """Quiet, signalling, negative and with a payload."""
    bits = np.array([0x7FF8 << 48, 0x7FF0 << 48 | 1, 0xFFF8 << 48, 0x7FF8 << 48 | 12345], np.uint64)
    assert set(of(pa.array(bits.view(np.float64)))) == {b"\x04\xff\xf8" + bytes(6)}


NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def timestamp_bytes(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, 10**9)
    return b"\x09" + struct.pack(">QI", seconds + 2**63, rest)


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("unit", NANOSECONDS)
def test_timestamps_of_every_unit_and_zone(unit: str, zone: str | None) -> None:
    """Seconds to nanoseconds, with and without a zone, before and after 1970."""
    ticks = [0, 1, -1, 10**9 + 7, -(10**9) - 7, 2**63 - 1, -(2**63), None]
    expected = [b"\0" if t is None else timestamp_bytes(t * NANOSECONDS[unit]) for t in ticks]
    column = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
    assert of(column) == expected
    assert of(column[2:5]) == expected[2:5]
    ordered = [t for t in ticks if t is not None]
    assert sorted(expected[:-1]) == [expected[ticks.index(t)] for t in sorted(ordered)]


@pytest.mark.parametrize("arrow", [pa.date32(), pa.date64()], ids=str)
def test_dates(arrow: pa.DataType) -> None:
    """Days, whatever they are stored in."""
    days = [0, 1, -1, 20_000, -700_000, None]
    epoch = datetime.date(1970, 1, 1)
    values = [None if d is None else epoch + datetime.timedelta(d) for d in days]
    expected = [b"\0" if d is None else b"\x08" + struct.pack(">Q", d + 2**63) for d in days]
    assert of(pa.array(values, arrow)) == expected
    assert of(pa.array(values, arrow)[1:3]) == expected[1:3]


@pytest.mark.parametrize(
    "arrow", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str
)
def test_times(arrow: pa.DataType) -> None:
    """Nanoseconds since midnight."""
    seconds = [0, 1, 86_399, None]
    ticks = [None if s is None else s * 10**9 // NANOSECONDS[arrow.unit] for s in seconds]
    expected = [
        b"\0" if s is None else b"\x0a" + struct.pack(">Q", s * 10**9 + 2**63) for s in seconds
    ]
    storage = pa.int32() if arrow.bit_width == 32 else pa.int64()
    assert of(pa.array(ticks, storage).cast(arrow)) == expected


DECIMALS = [
    pa.decimal32(9, 2),
    pa.decimal32(9, 4),
    pa.decimal64(18, 4),
    pa.decimal128(38, 2),
    pa.decimal128(38, 10),
    pa.decimal256(76, 20),
]


WHOLE = ["0", "1", "-1", "10", "100", "-99000"]
BROKEN = ["0.5", "-0.5", "0.25", "12345.6", "-0.01"]


@pytest.mark.parametrize("arrow", DECIMALS, ids=str)
def test_decimals_of_every_width_and_scale(arrow: pa.DataType) -> None:
    """The number shows, its width and scale do not; whole numbers equal integers."""
    assert of(pa.array(map(Decimal, WHOLE), arrow)) == of(pa.array(map(int, WHOLE)))
    column = pa.array([*map(Decimal, BROKEN), None], arrow)
    assert of(column) == of(pa.array([*map(Decimal, BROKEN), None], pa.decimal128(9, 2)))
    assert of(column[3:]) == of(column)[3:]
    for text in of(column)[:-1]:  # delimits itself
        assert text[0] == 5
        assert text.index(b"\0") == len(text) - 2


@pytest.mark.parametrize("word", ["0.0000001", "-0.0000001", "0.00000012", "1E-20", "-123E-20"])
def test_small_decimals_of_every_scale(word: str) -> None:
    """Below 10^-6 too, where Arrow's text form switches to an exponent."""
    types = [pa.decimal128(38, 20), pa.decimal128(38, 25), pa.decimal256(76, 60)]
    (found,) = {of(pa.array([Decimal(word)], arrow))[0] for arrow in types}
    assert found[0] == 5


@pytest.mark.parametrize("digits", [17, 18, 19, 20, 30])
def test_large_decimals(digits: int) -> None:
    """On both sides of 18 digits, and with a scale below zero."""
    values = [Decimal(10 ** (digits - 1)), -Decimal(10 ** (digits - 1))]
    types = [pa.decimal128(38, 0), pa.decimal256(76, 10), pa.decimal128(30, -8)]
    found = [of(pa.array(values, arrow)) for arrow in types]
    assert found[0] == found[1] == found[2]
    assert (found[0] == of(pa.array(map(int, values), pa.int64()))) if digits <= 18 else True
    assert {text[0] for text in found[0]} == ({2} if digits <= 18 else {5})


@SLOW_FIRST_DRAW
@given(
    st.lists(
        st.none()
        | st.decimals(-(10**20), 10**20, allow_nan=False, allow_infinity=False, places=9)
        | st.decimals(-1, 1, allow_nan=False, allow_infinity=False, places=9),
        max_size=8,
    )
)
def test_decimals_are_injective(values: list[Decimal | None]) -> None:
    """Equal bytes iff equal numbers, also between two scales."""
    narrow = of(pa.array(values, pa.decimal128(38, 9)))
    assert narrow == of(pa.array(values, pa.decimal256(70, 30)))
    for (a, value_a), (b, value_b) in itertools.combinations(zip(narrow, values, strict=True), 2):
        assert (a == b) == (value_a == value_b)


def test_extension_types_are_their_storage() -> None:
    """A UUID is its sixteen bytes."""
    values = [uuid.UUID(int=1), None, uuid.UUID(int=2**128 - 1)]
    storage = pa.array([v and v.bytes for v in values], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    assert kind_of(column.type) == "bytes"
    assert of(column) == [canonical((v and v.bytes,), ("bytes",)) for v in values]
    assert of(column[1:]) == of(column)[1:]
    assert of(pa.chunked_array([column, column])) == of(column) * 2


def test_nulls_have_no_type() -> None:
    """A null is one byte, whatever its column."""
    columns = [pa.nulls(2, arrow) for arrow in (*INTEGERS, *DECIMALS, pa.null(), pa.string())]
    columns += [pa.nulls(2, arrow) for arrow in (pa.timestamp("us"), pa.date64(), pa.float16())]
    for column in columns:
        assert of(column) == [b"\0", b"\0"]


@pytest.mark.parametrize(
    "arrow",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.string()),
        pa.struct([("x", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int32(), pa.duration("ms")),
        pa.run_end_encoded(pa.int32(), pa.int64()),
    ],
    ids=str,
)
def test_what_is_no_scalar_is_refused(arrow: pa.DataType) -> None:
    """The error names the type and says what to use."""
    with pytest.raises(BatchError, match=r"cannot identify .* Use a scalar"):
        kind_of(arrow)
    if not pa.types.is_dictionary(arrow):
        with pytest.raises(BatchError, match="cannot identify"):
            encode([pa.array([], arrow)], 0)


STRING_LISTS = st.lists(st.binary(max_size=9), max_size=8)


@SLOW_FIRST_DRAW
@given(STRING_LISTS, st.data())
def test_take_and_concatenate(items: list[bytes], data: st.DataObject) -> None:
    """take, concatenate, from_list and to_arrow are what they are on lists."""
    encoded = Encoded.from_list(items)
    assert len(encoded) == len(items)
    assert texts(encoded) == items
    assert encoded.to_arrow().to_pylist() == items
    rows = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=12)) if items else []
    taken = encoded.take(np.array(rows, np.int64))
    assert texts(taken) == [items[row] for row in rows]
    assert taken.to_arrow().to_pylist() == [items[row] for row in rows]
    parts = data.draw(st.lists(STRING_LISTS, max_size=4))
    joined = Encoded.concatenate([encoded, *map(Encoded.from_list, parts)])
    assert texts(joined) == [*items, *itertools.chain.from_iterable(parts)]


_TAILS = st.binary(max_size=12) | st.lists(st.sampled_from(b"\0a\xff"), max_size=10).map(bytes)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(prefix=st.binary(max_size=20), tails=st.lists(_TAILS, max_size=30))
def test_order_is_that_of_the_bytes(prefix: bytes, tails: list[bytes]) -> None:
    """Also where strings share a prefix, differ by trailing zeros alone, or are equal."""
    items = [prefix + tail for tail in tails]
    order = Encoded.from_list(items).order()
    assert [items[position] for position in order] == sorted(items)
    assert sorted(order) == list(range(len(items)))


def test_concatenate_nothing_and_parts_of_a_longer_buffer() -> None:
    """No parts are no strings; bytes before and after a part's own stay out."""
    assert texts(Encoded.concatenate([])) == []
    data = np.frombuffer(b"..abc..", np.uint8)
    part = Encoded(data, np.array([2, 3, 5]))
    assert texts(Encoded.concatenate([part, part])) == [b"a", b"bc"] * 2
    assert texts(part.take(np.array([1]))) == [b"bc"]


def test_no_columns_is_the_empty_tuple() -> None:
    """One group for all rows."""
    assert texts(encode([], 3)) == [b"", b"", b""]
