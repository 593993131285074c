"""Canonical bytes: one byte string per tuple of scalars, whatever the Arrow type and the engine.

A tuple is the concatenation of its scalars. Each is a tag and a self-delimiting payload, so the
encoding is injective and preserves order (nulls first; except for decimals):

    null      00
    boolean   01  00 | 01
    integer   02  8 bytes, big-endian, offset by 2^63; from 2^63 on: 03, 8 bytes
    float     04  8 bytes, order-preserving; -0.0 is 0.0, every NaN is one
    decimal   an integer if it is one of at most 18 digits, else 05, digits, E, power of ten
    text      06  UTF-8 with 00 written as 00 ff, then 00 00
    bytes     07  as text
    date      08  days, 8 bytes
    timestamp 09  seconds, 8 bytes; nanoseconds, 4 bytes (UTC)
    time      0a  nanoseconds, 8 bytes

Widths and physical layouts (int8 or int64, string or dictionary, milliseconds or nanoseconds) make
no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpsqlp.errors import BatchError

_SIGN = np.uint64(1 << 63)
_BINARY_TAGS = {"decimal": 5, "text": 6, "bytes": 7}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Many byte strings: row r is data[offsets[r] : offsets[r + 1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: NDArray[np.int64]) -> Encoded:
        """The byte strings of these rows."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = _offsets(lengths)
        data = np.empty(offsets[-1], np.uint8)
        _gather(self.data, self.offsets, rows, data, offsets)
        return Encoded(data, offsets)

    def order(self) -> NDArray[np.int64]:
        """The positions of the byte strings in ascending order; of equal ones, in any order. Fast
        if a few runs of them are in order.
        """
        words = np.empty(len(self), np.uint64)
        _words(self.data, self.offsets, words)
        order = np.argsort(words, kind="stable")
        ordered = words[order]
        if (ordered[1:] != ordered[:-1]).all() or _ascend(self.data, self.offsets, order):
            return order
        return np.asarray(pc.sort_indices(self.to_arrow()), np.int64)

    def to_arrow(self) -> pa.Array:
        """As an Arrow array of large binaries."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    @classmethod
    def from_list(cls, items: Sequence[bytes]) -> Encoded:
        """From Python byte strings."""
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return cls(np.frombuffer(b"".join(items), np.uint8), _offsets(lengths))

    @classmethod
    def concatenate(cls, parts: Sequence[Encoded]) -> Encoded:
        """The strings of all parts, in order."""
        lengths = [np.diff(part.offsets) for part in parts]
        data = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
        return cls(
            np.concatenate([np.empty(0, np.uint8), *data]),
            _offsets(np.concatenate([np.empty(0, np.int64), *lengths])),
        )


def kind_of(column_type: pa.DataType) -> str:
    """The canonical kind of an Arrow type; `null` fits every kind."""
    t = column_type
    if pa.types.is_dictionary(t):
        return kind_of(t.value_type)
    if isinstance(t, pa.BaseExtensionType):
        return kind_of(t.storage_type)
    checks = {
        "null": pa.types.is_null,
        "boolean": pa.types.is_boolean,
        "integer": pa.types.is_integer,
        "float": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "text": lambda t: (
            pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)
        ),
        "bytes": lambda t: (
            pa.types.is_binary(t)
            or pa.types.is_large_binary(t)
            or pa.types.is_binary_view(t)
            or pa.types.is_fixed_size_binary(t)
        ),
        "date": pa.types.is_date,
        "timestamp": pa.types.is_timestamp,
        "time": pa.types.is_time,
    }
    for kind, check in checks.items():
        if check(t):
            return kind
    raise BatchError(
        f"A column of type {t} cannot identify a unit or a key."
        " Use a scalar: text, bytes, integer, float, decimal, boolean, date, time or timestamp."
    )


def encode(columns: Sequence[pa.Array], rows: int) -> Encoded:
    """The canonical bytes of every row's tuple."""
    if (
        len(columns) == 1
        and pa.types.is_signed_integer(columns[0].type)
        and not columns[0].null_count
    ):
        return _encode_integers(columns[0])  # the common case: all rows have one length
    pieces = [piece for column in columns for piece in _pieces(column)]
    lengths = np.zeros(rows, np.int64)
    for piece in pieces:
        piece.measure(lengths)
    offsets = _offsets(lengths)
    data = np.empty(offsets[-1], np.uint8)
    cursor = offsets[:-1].copy()
    for piece in pieces:
        piece.write(data, cursor)
    return Encoded(data, offsets)


def _encode_integers(column: pa.Array) -> Encoded:
    numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    data = np.empty(9 * len(numbers), np.uint8)
    _write_integers(numbers.view(np.uint64), data)
    return Encoded(data, np.arange(0, len(data) + 1, 9))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A tag (none if 255) and the low `width` bytes of a word, big-endian; nulls by tag 0."""

    tags: NDArray[np.uint8]
    words: NDArray[np.uint64]
    width: int

    def measure(self, lengths: NDArray[np.int64]) -> None:
        _measure_fixed(self.tags, self.width, lengths)

    def write(self, data: NDArray[np.uint8], cursor: NDArray[np.int64]) -> None:
        _write_fixed(self.tags, self.words, self.width, data, cursor)


@dataclass(frozen=True, slots=True)
class _Variable:
    """A tag, then escaped bytes and a terminator; tag 0 is null."""

    tags: NDArray[np.uint8]
    source: NDArray[np.uint8]
    source_offsets: NDArray[np.integer]

    def measure(self, lengths: NDArray[np.int64]) -> None:
        _measure_variable(self.tags, self.source, self.source_offsets, lengths)

    def write(self, data: NDArray[np.uint8], cursor: NDArray[np.int64]) -> None:
        _write_variable(self.tags, self.source, self.source_offsets, data, cursor)


def _pieces(column: pa.Array) -> list[_Fixed | _Variable]:
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):  # Arrow cannot unify dictionaries with nulls
            column = column.cast(column.type.value_type)
        column = column.combine_chunks()
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = kind_of(column.type)
    rows = len(column)
    valid = (
        np.ones(rows, bool)
        if column.null_count == 0
        else column.is_valid().to_numpy(zero_copy_only=False)
    )

    def tagged(tag: int) -> NDArray[np.uint8]:
        return np.where(valid, np.uint8(tag), np.uint8(0))

    def numbers(target: pa.DataType) -> NDArray[np.int64]:
        filled = column.cast(target, safe=False) if column.type != target else column
        if filled.null_count:
            filled = filled.fill_null(0)
        return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def biased(values: NDArray[np.int64]) -> NDArray[np.uint64]:
        return values.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN

    match kind:
        case "null":
            return [_Fixed(np.zeros(rows, np.uint8), np.zeros(rows, np.uint64), 8)]
        case "boolean":
            return [_Fixed(tagged(1), numbers(pa.uint8()).astype(np.uint64), 1)]
        case "integer" if column.type == pa.uint64():
            words = numbers(pa.uint64()).astype(np.uint64, copy=False)
            large = words >= _SIGN
            tags = np.where(large & valid, np.uint8(3), tagged(2))
            return [_Fixed(tags, np.where(large, words, words ^ _SIGN), 8)]
        case "integer":
            return [_Fixed(tagged(2), biased(numbers(pa.int64())), 8)]
        case "float":
            floats = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
            # + 0.0 turns -0.0 into 0.0
            floats = np.where(np.isnan(floats), np.nan, floats) + 0.0
            bits = floats.view(np.uint64)
            return [_Fixed(tagged(4), np.where(bits >= _SIGN, ~bits, bits ^ _SIGN), 8)]
        case "date":
            days = column.cast(pa.date32(), safe=False).cast(pa.int32()).fill_null(0)
            return [_Fixed(tagged(8), biased(days.to_numpy(zero_copy_only=False)), 8)]
        case "timestamp":
            per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
            ticks = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            seconds, rest = np.divmod(ticks, per_second)
            nanoseconds = (rest * (10**9 // per_second)).astype(np.uint64)
            return [
                _Fixed(tagged(9), biased(seconds), 8),
                _Fixed(np.where(valid, np.uint8(255), np.uint8(254)), nanoseconds, 4),
            ]
        case "time":
            ticks = column.cast(pa.time64("ns")).cast(pa.int64()).fill_null(0)
            return [_Fixed(tagged(10), biased(ticks.to_numpy(zero_copy_only=False)), 8)]
        case "decimal":
            return _decimal_pieces(column, valid)
        case _:
            return [_variable(column, tagged(_BINARY_TAGS[kind]))]


def _decimal_pieces(column: pa.Array, valid: NDArray[np.bool_]) -> list[_Fixed | _Variable]:
    """Digits and power of ten, from the unscaled number: Arrow's text depends on the scale."""
    makers = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
    unscaled = column.view(makers[column.type.bit_width](column.type.precision, 0))
    padded = unscaled.cast(pa.string()).fill_null("0")
    digits = pc.replace_substring_regex(padded, r"([1-9])0+$", r"\1")
    zeros = pc.subtract(pc.utf8_length(padded), pc.utf8_length(digits))
    power = zeros.to_numpy(zero_copy_only=False).astype(np.int64) - column.type.scale
    power = np.where(pc.equal(digits, "0").to_numpy(zero_copy_only=False), 0, power)
    length = pc.utf8_length(pc.utf8_ltrim(digits, "-")).to_numpy(zero_copy_only=False)
    small = (power >= 0) & (length + power <= 18)
    integers = pc.if_else(pa.array(small), digits, "0").cast(pa.int64())
    integers = integers.to_numpy(zero_copy_only=False) * 10 ** np.where(small, power, 0)
    text = pc.binary_join_element_wise(digits, pa.array(power).cast(pa.string()), "E")
    skip = np.uint8(254)
    tags = np.where(valid, np.where(small, np.uint8(2), skip), np.uint8(0))
    return [
        _Fixed(tags, integers.view(np.uint64) ^ _SIGN, 8),
        _variable(text, np.where(valid & ~small, np.uint8(_BINARY_TAGS["decimal"]), skip)),
    ]


def _variable(column: pa.Array, tags: NDArray[np.uint8]) -> _Variable:
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    source_offsets: NDArray[np.integer] = np.frombuffer(offsets, "i8" if wide else "i4")
    source = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return _Variable(tags, source, source_offsets[column.offset : column.offset + len(column) + 1])


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


# Tags 254 and 255 are never written: 254 means an empty encoding, 255 a payload without a tag.


@numba.njit(nogil=True, cache=True)
def _write_integers(words, data):  # type: ignore[no-untyped-def]
    for r in range(len(words)):
        word = words[r] ^ _SIGN
        data[9 * r] = 2
        for k in range(8):
            data[9 * r + 1 + k] = (word >> np.uint64(56 - 8 * k)) & np.uint64(255)


@numba.njit(nogil=True, cache=True)
def _measure_fixed(tags, width, lengths):  # type: ignore[no-untyped-def]
    for r in range(len(tags)):
        if tags[r] == 0:
            lengths[r] += 1
        elif tags[r] == 255:
            lengths[r] += width
        elif tags[r] != 254:
            lengths[r] += 1 + width


@numba.njit(nogil=True, cache=True)
def _write_fixed(tags, words, width, data, cursor):  # type: ignore[no-untyped-def]
    for r in range(len(tags)):
        if tags[r] == 254:
            continue
        at = cursor[r]
        if tags[r] != 255:
            data[at] = tags[r]
            at += 1
        if tags[r] != 0:
            word = words[r]
            if width == 8:  # a constant number of bytes compiles to one store
                for k in range(8):
                    data[at + k] = (word >> np.uint64(56 - 8 * k)) & np.uint64(255)
            else:
                for k in range(width):
                    data[at + k] = (word >> np.uint64(8 * (width - 1 - k))) & np.uint64(255)
            at += width
        cursor[r] = at


@numba.njit(nogil=True, cache=True)
def _measure_variable(tags, source, offsets, lengths):  # type: ignore[no-untyped-def]
    for r in range(len(tags)):
        if tags[r] == 254:
            continue
        lengths[r] += 1
        if tags[r] != 0:
            lengths[r] += offsets[r + 1] - offsets[r] + 2
            for k in range(offsets[r], offsets[r + 1]):
                if source[k] == 0:
                    lengths[r] += 1


@numba.njit(nogil=True, cache=True)
def _write_variable(tags, source, offsets, data, cursor):  # type: ignore[no-untyped-def]
    for r in range(len(tags)):
        if tags[r] == 254:
            continue
        at = cursor[r]
        data[at] = tags[r]
        at += 1
        if tags[r] != 0:
            for k in range(offsets[r], offsets[r + 1]):
                data[at] = source[k]
                at += 1
                if source[k] == 0:
                    data[at] = 255
                    at += 1
            data[at] = 0
            data[at + 1] = 0
            at += 2
        cursor[r] = at


@numba.njit(nogil=True, cache=True)
def _gather(data, offsets, rows, out, out_offsets):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        source = offsets[rows[k]]
        for at in range(out_offsets[k], out_offsets[k + 1]):
            out[at] = data[source]
            source += 1


@numba.njit(nogil=True, cache=True)
def _words(data, offsets, words):  # type: ignore[no-untyped-def]
    """The eight bytes of each string after those that all strings share, big-endian, padded with
    zeros: they are in the order of the strings, but for equal ones.
    """
    rows = len(words)
    shared = offsets[1] - offsets[0] if rows else 0
    for row in range(1, rows):
        shared = min(shared, offsets[row + 1] - offsets[row])
        for k in range(shared):
            if data[offsets[row] + k] != data[offsets[0] + k]:
                shared = k
                break
    for row in range(rows):
        word = np.uint64(0)
        for k in range(offsets[row] + shared, offsets[row] + shared + 8):
            byte = data[k] if k < offsets[row + 1] else 0
            word = (word << np.uint64(8)) | np.uint64(byte)
        words[row] = word


@numba.njit(nogil=True, cache=True)
def _ascend(data, offsets, order):  # type: ignore[no-untyped-def]
    """Whether the strings are in ascending order."""
    for k in range(1, len(order)):
        a, b = offsets[order[k - 1]], offsets[order[k]]
        length_a = offsets[order[k - 1] + 1] - a
        length_b = offsets[order[k] + 1] - b
        shared = min(length_a, length_b)
        at = 0
        while at < shared and data[a + at] == data[b + at]:
            at += 1
        if at < shared:
            if data[a + at] > data[b + at]:
                return False
        elif length_a > length_b:
            return False
    return True
