"""Arrow columns from canonical bytes: the inverse of `canonical.encode`, for given types."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded, kind_of

_SIGN = np.uint64(1 << 63)


def decode(encoded: Encoded, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """One array per column of the tuples, of the given types."""
    cursor = encoded.offsets[:-1].copy()
    return [_column(encoded.data, cursor, column_type) for column_type in types]


def _column(data: NDArray[np.uint8], cursor: NDArray[np.int64], target: pa.DataType) -> pa.Array:
    """Read the scalar at every row's cursor, and advance the cursors."""
    kind = kind_of(target)
    tags = data[cursor] if len(cursor) else np.empty(0, np.uint8)
    null = tags == 0
    if kind in ("text", "bytes", "decimal"):
        texts = _texts(data, cursor, tags)
        if kind == "decimal":
            return _decimals(texts, data, cursor, tags, target)
        array = pa.Array.from_buffers(
            pa.large_binary(),
            len(texts),
            [_bitmap(~null), pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)],
        )
        return array.cast(pa.large_string() if kind == "text" else pa.large_binary()).cast(target)
    words = _words(data, cursor, tags)
    signed = (words ^ _SIGN).view(np.int64)
    match kind:
        case "boolean":
            return pa.array(words.astype(bool), mask=null).cast(target)
        case "integer" if target == pa.uint64():
            return pa.array(np.where(tags == 3, words, words ^ _SIGN), pa.uint64(), mask=null)
        case "integer":
            return pa.array(signed, mask=null).cast(target)
        case "float":
            floats = np.where(words >= _SIGN, words ^ _SIGN, ~words).view(np.float64)
            return pa.array(floats, mask=null).cast(target)
        case "date":
            return pa.array(signed.astype(np.int32), pa.date32(), mask=null).cast(target)
        case "time":
            return pa.array(signed, pa.time64("ns"), mask=null).cast(target)
        case "timestamp":
            per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[target.unit]
            nanoseconds = _tail(data, cursor, tags).astype(np.int64)
            ticks = signed * per_second + nanoseconds // (10**9 // per_second)
            return pa.array(ticks, mask=null).cast(target)
        case _:
            return pa.nulls(len(cursor), target)


def _words(
    data: NDArray[np.uint8], cursor: NDArray[np.int64], tags: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    words = np.zeros(len(cursor), np.uint64)
    _read(data, cursor, tags, words)
    return words


def _tail(
    data: NDArray[np.uint8], cursor: NDArray[np.int64], tags: NDArray[np.uint8]
) -> NDArray[np.uint64]:
    """The four bytes of nanoseconds that follow a timestamp's seconds."""
    words = np.zeros(len(cursor), np.uint64)
    _read_tail(data, cursor, tags, words)
    return words


def _texts(data: NDArray[np.uint8], cursor: NDArray[np.int64], tags: NDArray[np.uint8]) -> Encoded:
    """Unescaped texts; the cursors of rows with other tags do not move."""
    lengths = np.zeros(len(cursor) + 1, np.int64)
    _measure(data, cursor, tags, lengths)
    offsets = np.cumsum(lengths)
    out = np.empty(offsets[-1], np.uint8)
    _unescape(data, cursor, tags, out, offsets)
    return Encoded(out, offsets)


def _decimals(
    texts: Encoded,
    data: NDArray[np.uint8],
    cursor: NDArray[np.int64],
    tags: NDArray[np.uint8],
    target: pa.DataType,
) -> pa.Array:
    """Decimals from digits, or from integers where they have at most 18 digits."""
    integers = (_words(data, cursor, np.where(tags == 2, tags, 255)) ^ _SIGN).view(np.int64)
    digits = np.where(
        tags == 2, integers.astype(str), [text.decode() for text in texts.to_arrow().to_pylist()]
    )
    return pa.array(digits, pa.string(), mask=tags == 0).cast(target)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


@numba.njit(nogil=True, cache=True)
def _read(data, cursor, tags, words):  # type: ignore[no-untyped-def]
    """Fixed-width payloads: one byte after tag 1, eight after the others; tag 255 is skipped."""
    for r in range(len(cursor)):
        if tags[r] == 255:
            continue
        at = cursor[r] + 1
        width = 0 if tags[r] == 0 else (1 if tags[r] == 1 else 8)
        for k in range(width):
            words[r] = (words[r] << np.uint64(8)) | np.uint64(data[at + k])
        cursor[r] = at + width


@numba.njit(nogil=True, cache=True)
def _read_tail(data, cursor, tags, words):  # type: ignore[no-untyped-def]
    for r in range(len(cursor)):
        if tags[r] != 0:
            for k in range(4):
                words[r] = (words[r] << np.uint64(8)) | np.uint64(data[cursor[r] + k])
            cursor[r] += 4


@numba.njit(nogil=True, cache=True)
def _measure(data, cursor, tags, lengths):  # type: ignore[no-untyped-def]
    for r in range(len(cursor)):
        if 5 <= tags[r] <= 7:
            at = cursor[r] + 1
            while data[at] != 0 or data[at + 1] != 0:
                at += 2 if data[at] == 0 else 1
                lengths[r + 1] += 1


@numba.njit(nogil=True, cache=True)
def _unescape(data, cursor, tags, out, offsets):  # type: ignore[no-untyped-def]
    for r in range(len(cursor)):
        if tags[r] == 0:
            cursor[r] += 1
        elif 5 <= tags[r] <= 7:
            at = cursor[r] + 1
            for k in range(offsets[r], offsets[r + 1]):
                out[k] = data[at]
                at += 2 if data[at] == 0 else 1
            cursor[r] = at + 2
