"""Values as Arrow columns that DuckDB can read.

Privacy contract: the result for a value depends on that value alone, and no value ends the process:
Arrow aborts on a null entry of a map, and DuckDB stops on times out of its range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TICKS = {
    "s": 1_000_000,
    "ms": 1000,
    "us": 1,
    "ns": 1,
}  # microseconds per tick; all nanoseconds are in range
_LAST_US = 9_223_372_022_400_000_000  # from 290309 BC to 294247
_MISSING = ("NoneType", "NAType", "NaTType")  # nulls of Python and pandas


def fitted(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array of a type; null where a value does not fit."""
    nested = pa.types.is_nested(kind)
    plain = [_plain_or_none(value, kind) for value in values] if nested else values
    try:
        return pa.array(plain, kind)
    except Exception:  # an object may raise anything
        alone = [_alone(value, kind) for value in plain]
        return pa.concat_arrays(alone) if alone else pa.nulls(0, kind)


def known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of a type that DuckDB has; null where a value is invalid for its type."""
    if isinstance(column.type, pa.JsonType):  # DuckDB stops on a text that is not JSON
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], pa.string())
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    column = pa.chunked_array([part for c in column.chunks for part in _valid(c)], column.type)
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        last = _LAST_US // _TICKS[column.type.unit]
        ticks = column.cast(pa.int64())
        inside = pc.and_(pc.greater_equal(ticks, -last), pc.less_equal(ticks, last))
        column = pc.if_else(inside, column, pa.scalar(None, column.type))
        if pa.types.is_duration(column.type):  # DuckDB looks at the value below a null
            column = column.cast(pa.duration("us"), safe=False)
    return column


def _valid(chunk: pa.Array) -> list[pa.Array]:
    """Parts of an array; a value that is invalid for its type, such as bad UTF-8, is null."""
    try:
        chunk.validate(full=True)
    except pa.ArrowInvalid:
        if len(chunk) <= 1:
            return [pa.nulls(len(chunk), chunk.type)]
        half = len(chunk) // 2
        return [*_valid(chunk.slice(0, half)), *_valid(chunk.slice(half))]
    return [chunk]


def is_missing(value: Any) -> bool:
    """Whether a value is a null of any library."""
    return type(value).__name__ in _MISSING


def _alone(value: Any, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([value], kind)
    except Exception:
        return pa.nulls(1, kind)


def _plain_or_none(value: Any, kind: pa.DataType) -> Any:
    try:
        return _plain(value, kind)
    except Exception:
        return None


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value as lists, pairs and dictionaries of Python; raises if it has another shape."""
    if is_missing(value):
        return None
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, Mapping) else _items(value)
        return [_entry(entry, kind) for entry in entries]
    if pa.types.is_struct(kind):
        if not isinstance(value, Mapping):
            raise TypeError
        return {field.name: _plain(value.get(field.name), field.type) for field in kind}
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return [_plain(item, kind.value_type) for item in _items(value)]
    return value


def _items(value: Any) -> Any:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sized):
        raise TypeError
    return value.to_pylist() if isinstance(value, pa.Array | pa.ChunkedArray) else value


def _entry(entry: Any, kind: pa.DataType) -> tuple[Any, Any]:
    key, value = _items(entry)
    if is_missing(key):
        raise ValueError
    return _plain(key, kind.key_type), _plain(value, kind.item_type)
