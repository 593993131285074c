"""One release in memory, with the queries of a page of keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Key = tuple[str | None, ...]  # the key columns as texts
Cell = dict[str, Any]  # value, sd
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
WHOLE_STREAM = np.iinfo(np.int64).min  # the window start of a query without windows


@dataclass(frozen=True, slots=True)
class Columns:
    """The released columns and their DuckDB types."""

    keys: tuple[str, ...]
    key_types: tuple[str, ...]
    aggregates: tuple[str, ...]
    has_deviation: tuple[bool, ...]
    is_integer: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys to list, and their order."""

    window: int  # start in microseconds, or WHOLE_STREAM
    search: str
    order: str  # "key" or the name of an aggregate
    descending: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A release by columns. Immutable, except for caches of its sort orders and scales."""

    trigger: int
    window: NDArray[np.int64]
    keys: tuple[pa.ChunkedArray, ...]  # texts
    values: tuple[NDArray[np.float64], ...]
    deviations: tuple[NDArray[np.float64] | None, ...]
    columns: Columns
    _orders: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _scales: dict[int, list[list[float]]] = field(default_factory=dict)
    _selected: dict[Selection, NDArray[np.int64]] = field(default_factory=dict)

    def select(self, selection: Selection) -> NDArray[np.int64]:
        """The selected row numbers, in order."""
        rows = self._selected.get(selection)
        if rows is None:
            order = self._order(selection.order)
            if selection.descending:
                order = order[::-1]
            keep = self.window == selection.window
            if selection.search:
                keep &= self._matches(selection.search)
            rows = order[keep[order]]
            if len(self._selected) >= 32:
                self._selected.clear()
            self._selected[selection] = rows
        return rows

    def keys_of(self, rows: NDArray[np.int64]) -> list[Key]:
        """The keys of some rows."""
        columns = [column.take(pa.array(rows)).to_pylist() for column in self.keys]
        return list(zip(*columns, strict=True)) if columns else [()] * len(rows)

    def find(self, wanted: Sequence[Key], window: int) -> dict[Key, int]:
        """The row numbers of some keys in a window."""
        if not self.columns.keys:
            rows = np.flatnonzero(self.window == window)
        else:
            first = pa.array([key[0] for key in wanted], pa.string())
            among = pc.is_in(self.keys[0], value_set=first).to_numpy()
            rows = np.flatnonzero((self.window == window) & among)
        found = dict(zip(self.keys_of(rows), rows.tolist(), strict=True))
        return {key: found[key] for key in wanted if key in found}

    def scale(self, window: int) -> list[list[float]]:
        """For each aggregate, the range that all error bars and zero span."""
        scale = self._scales.get(window)
        if scale is None:
            inside = self.window == window
            scale = self._scales[window] = []
            for values, deviations in zip(self.values, self.deviations, strict=True):
                around = 0.0 if deviations is None else 2 * deviations[inside]
                low, high = values[inside] - around, values[inside] + around
                low, high = low[np.isfinite(low)], high[np.isfinite(high)]
                scale.append([float(low.min(initial=0.0)), float(high.max(initial=0.0))])
        return scale

    def cells(self, row: int) -> list[Cell]:
        """The released values of a row and their standard deviations."""
        return [
            {"value": number(values[row], integer), "sd": None if sd is None else number(sd[row])}
            for values, sd, integer in zip(
                self.values, self.deviations, self.columns.is_integer, strict=True
            )
        ]

    def _order(self, by: str) -> NDArray[np.int64]:
        order = self._orders.get(by)
        if order is None:
            if by in self.columns.aggregates:
                values = self.values[self.columns.aggregates.index(by)]
                # NaN sorts lowest. The sort is stable: ties keep the order of the release.
                order = np.argsort(np.nan_to_num(values, nan=-np.inf), kind="stable")
            elif self.keys:
                names = [f"key_{number}" for number in range(len(self.keys))]
                table = pa.table(dict(zip(names, self.keys, strict=True)))
                order = pc.sort_indices(table, [(name, "ascending") for name in names]).to_numpy()
            else:
                order = np.arange(len(self.window))
            self._orders[by] = order
        return order

    def _matches(self, search: str) -> NDArray[np.bool_]:
        found = np.zeros(len(self.window), bool)
        for column in self.keys:
            hits = pc.match_substring(column, search, ignore_case=True)
            found |= pc.fill_null(hits, False).to_numpy()
        return found


def key_id(key: Key) -> str:
    """The id of a key: 128 bits of the SHA-256 of its texts as a JSON array."""
    return hashlib.sha256(_encoded(key).encode()).hexdigest()[:32]


def id_prefix(name: str) -> np.uint64:
    """The first 64 bits of a key's id."""
    return np.uint64(int(name[:16], 16))


def as_number(start_us: int | None) -> int:
    """A window's start as `Release.window` has it."""
    return int(WHOLE_STREAM) if start_us is None else start_us


def number(value: float, integer: bool = False) -> float | int | None:
    """A number as JSON; null if it is not finite."""
    if not np.isfinite(value):
        return None
    return int(value) if integer else float(value)
