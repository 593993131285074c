"""One release in memory: which rows a page of keys has."""

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

Key = tuple[str | None, ...]  # the columns of a key as texts
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
WHOLE = np.iinfo(np.int64).min  # stands for the window of a stream without windows


@dataclass(frozen=True, slots=True)
class Columns:
    """Which released columns are what, and their types in DuckDB."""

    keys: tuple[str, ...]
    key_types: tuple[str, ...]
    aggregates: tuple[str, ...]
    has_deviation: tuple[bool, ...]
    is_whole: tuple[bool, ...]  # a whole number


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys to list, in which order."""

    window: int  # its start in microseconds, or WHOLE
    search: str
    order: str  # "key", or an aggregate
    descending: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A release by columns. Immutable but for what it remembers of its own order."""

    trigger: int
    window: NDArray[np.int64]
    keys: tuple[pa.ChunkedArray, ...]  # texts
    values: tuple[NDArray[np.float64], ...]
    deviations: tuple[NDArray[np.float64] | None, ...]
    columns: Columns
    _orders: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _scales: dict[int, list[list[float]]] = field(default_factory=dict)
    _found: dict[Selection, NDArray[np.int64]] = field(default_factory=dict)

    def select(self, selection: Selection) -> NDArray[np.int64]:
        """The numbers of the rows, in order."""
        rows = self._found.get(selection)
        if rows is None:
            order = self._order(selection.order)
            if selection.descending:
                order = order[::-1]
            keep = self.window == selection.window
            if selection.search:
                keep &= self._matches(selection.search)
            rows = order[keep[order]]
            if len(self._found) >= 32:
                self._found.clear()
            self._found[selection] = rows
        return rows

    def keys_of(self, rows: NDArray[np.int64]) -> list[Key]:
        """The keys of some rows."""
        columns = [column.take(pa.array(rows)).to_pylist() for column in self.keys]
        return list(zip(*columns, strict=True)) if columns else [()] * len(rows)

    def find(self, wanted: Sequence[Key], window: int) -> dict[Key, int]:
        """The rows of some keys in a window."""
        if not self.columns.keys:
            rows = np.flatnonzero(self.window == window)
        else:
            first = pa.array([key[0] for key in wanted], pa.string())
            among = pc.is_in(self.keys[0], value_set=first).to_numpy()
            rows = np.flatnonzero((self.window == window) & among)
        found = dict(zip(self.keys_of(rows), rows.tolist(), strict=True))
        return {key: found[key] for key in wanted if key in found}

    def scale(self, window: int) -> list[list[float]]:
        """The smallest and largest end of an error bar of each aggregate, zero included."""
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

    def cells(self, row: int) -> list[dict[str, Any]]:
        """The released values of a row and their noise."""
        return [
            {"value": number(values[row], whole), "sd": None if sd is None else number(sd[row])}
            for values, sd, whole in zip(
                self.values, self.deviations, self.columns.is_whole, strict=True
            )
        ]

    def _order(self, by: str) -> NDArray[np.int64]:
        order = self._orders.get(by)
        if order is None:
            if by in self.columns.aggregates:
                values = self.values[self.columns.aggregates.index(by)]
                # What is no number is smallest; ties are in the order of the release, either way.
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


def identify(key: Key) -> str:
    """A short name for a key: 128 bits of the SHA-256 of its texts as a JSON array."""
    return hashlib.sha256(_encoded(key).encode()).hexdigest()[:32]


def mark_of(name: str) -> np.uint64:
    """The first 64 bits of a short name."""
    return np.uint64(int(name[:16], 16))


def number(value: float, whole: bool = False) -> float | int | None:
    """A number as JSON has it; null for what is none."""
    if not np.isfinite(value):
        return None
    return int(value) if whole else float(value)
