"""Releases in hand: one, or all that a pipeline has made, as a frame or a plot.

What is here reads released rows alone.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsqlp.errors import DpsqlpError
from dpsqlp.sinks.formats import from_json_rows
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.release import FIXED

ARCHIVE = ".releases"  # ends the name of a folder beside a sink's state
_SHOWN_ROWS = 20
_BAND = 2  # standard deviations of noise to each side


@dataclass(frozen=True, slots=True, repr=False)
class _Rows:
    """Released rows, as an Arrow table."""

    table: pa.Table

    def to_pandas(self) -> Any:
        """The rows as a pandas frame."""
        _require("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The rows as a Polars frame."""
        return _require("polars").from_arrow(self.table)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def _html(self, caption: str) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.table.column_names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(v))}</td>" for v in row.values()) + "</tr>"
            for row in self.table.slice(0, _SHOWN_ROWS).to_pylist()
        )
        more = len(self) - _SHOWN_ROWS
        note = f"<p>and {more} more rows</p>" if more > 0 else ""
        return f"<p>{caption}</p><table><tr>{head}</tr>{rows}</table>{note}"


@dataclass(frozen=True, slots=True, repr=False)
class Release(_Rows):
    """The rows that one call released. `trigger` is the last that ran.

    `diagnostics` has the noisy numbers of each open window, with `diagnostics_share`.
    """

    trigger: int
    diagnostics: pa.Table | None = None

    def __repr__(self) -> str:
        columns = ", ".join(self.table.column_names)
        return f"Release(trigger={self.trigger}, rows={len(self)}, columns=[{columns}])"

    def _repr_html_(self) -> str:
        return self._html(f"trigger {self.trigger}")


@dataclass(frozen=True, slots=True, repr=False)
class History(_Rows):
    """The rows of all releases, by trigger: one row for each release of a key in a window."""

    def plot(self, key: Mapping[str, object], value: str | None = None, *, ax: Any = None) -> Any:
        """Draw one key over time, a line for each window, in a band of two standard deviations.

        `key` has the value of each key column; `value` names an aggregate, by default the first.
        Returns matplotlib's axes. The band is of the noise alone: rows that the bounds on a unit
        drop are in no band.
        """
        rows = self._rows_of(key)
        values = [name for name in self.table.column_names if f"{name}_sd" in rows.column_names]
        value = values[0] if value is None and values else value
        if value not in values:
            raise DpsqlpError(
                f"There is no aggregate {value}. Name one of {', '.join(values) or 'none'}."
            )
        if ax is None:
            _, ax = _require("matplotlib.pyplot").subplots()
        for start in pc.unique(rows.column("window_start")).to_pylist():
            inside = [row for row in rows.to_pylist() if row["window_start"] == start]
            times = [row["released_at"] for row in inside]
            at = [_number(row[value]) for row in inside]
            around = [_BAND * _number(row[f"{value}_sd"]) for row in inside]
            (line,) = ax.plot(times, at, marker=".")
            low = [x - d for x, d in zip(at, around, strict=True)]
            high = [x + d for x, d in zip(at, around, strict=True)]
            ax.fill_between(times, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        ax.set_xlabel("released at (UTC)")
        ax.set_ylabel(value)
        ax.set_title(", ".join(str(part) for part in key.values()))
        return ax

    def _rows_of(self, key: Mapping[str, object]) -> pa.Table:
        """The rows of one key."""
        rows = self.table
        for name, wanted in key.items():
            if name not in rows.column_names:
                raise DpsqlpError(f"There is no column {name}. Name the key columns.")
            column = rows.column(name)
            if wanted is None:
                rows = rows.filter(pc.is_null(column))
            else:
                rows = rows.filter(pc.equal(column, pa.scalar(wanted, column.type)))
        if not len(rows):
            raise DpsqlpError("No release has this key. Look it up in `.table`.")
        points = rows.select(["window_start", "trigger"]).group_by(["window_start", "trigger"])
        if len(points.aggregate([])) < len(rows):
            raise DpsqlpError("Several keys have these values. Give each key column its value.")
        return rows

    def __repr__(self) -> str:
        columns = ", ".join(self.table.column_names)
        return f"History(rows={len(self)}, columns=[{columns}])"

    def _repr_html_(self) -> str:
        return self._html(f"{len(self)} rows")


def read(place: str | os.PathLike[str], *, sink: str | None = None) -> History:
    """All releases that are kept in a place: a state that Python or a run with a dashboard has
    made, the folder of a parquet or jsonl sink, or the file of a duckdb sink.

    `sink` names one sink of several, which for a DuckDB file is its table.
    """
    path = Path(place)
    if path.is_file():
        return History(_in_order(_duckdb_table(path, sink)))
    archives = {folder.name.removesuffix(ARCHIVE): folder for folder in path.glob(f"*{ARCHIVE}")}
    if archives:
        path = archives[_choose(sink, sorted(archives), path)]
    return History(_in_order(_folder(path)))


def _folder(path: Path) -> pa.Table:
    """The rows of a folder with a file for each trigger."""
    files = sorted(path.glob("trigger-*.parquet"))
    if files:
        tables = [pq.read_table(file) for file in files]
        return pa.concat_tables(tables, promote_options="permissive")
    files = sorted(path.glob("trigger-*.jsonl"))
    if not files:
        raise DpsqlpError(
            f"{path} has no releases. Give a state that dpsqlp.open or a run with --dashboard has"
            " made, the folder of a parquet or jsonl sink, or a DuckDB file."
        )
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    return from_json_rows([json.loads(line) for line in lines])


def _duckdb_table(path: Path, name: str | None) -> pa.Table:
    try:
        with duckdb.connect(str(path), read_only=True) as database:
            found = database.execute(
                "SELECT table_name, list(column_name) FROM duckdb_columns()"
                " WHERE NOT internal GROUP BY 1 ORDER BY 1"
            ).fetchall()
            names = [table for table, columns in found if set(columns) >= set(FIXED)]
            table = quote_identifier(_choose(name, names, path))
            return database.sql(f"FROM {table}").to_arrow_table()
    except duckdb.Error as error:
        raise DpsqlpError(
            f"{path} cannot be read as a DuckDB file: {error}. Close programs that write to it."
        ) from error


def _choose(name: str | None, names: Sequence[str], place: Path) -> str:
    """The sink of this name, or the only one."""
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        got = "none was named" if name is None else f"got {name!r}"
        raise DpsqlpError(
            f"{place} has the releases of {', '.join(names) or 'no sink'}; {got}. Give one as"
            " sink='...'."
        )
    return name


def _in_order(table: pa.Table) -> pa.Table:
    """The rows by trigger, in the order of each release."""
    if not table.num_rows:
        return table
    position = pa.array(range(table.num_rows))
    ordered = table.append_column("position", position).sort_by(
        [("trigger", "ascending"), ("position", "ascending")]
    )
    return ordered.select(table.column_names)


def _require(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise DpsqlpError(
            f"{package} is not installed. Run `pip install {package}`, or use `.table` (Arrow)."
        ) from None


def _number(value: object) -> float:
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
