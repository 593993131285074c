"""Reads Parquet files of releases with DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpsqlp.dashboard.metadata import Metadata
from dpsqlp.dashboard.release import WHOLE_STREAM, Columns, Key, Release
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.release import FIXED

_FILES = "read_parquet(?, hive_partitioning = false)"  # a folder named `x=1` is not a column
_HEX_ESCAPE = r"\\u[0-9a-fA-F]{4}"  # DuckDB writes upper-case digits, `key_id` lower-case ones
_INTEGERS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "UBIGINT", "UINTEGER", "HUGEINT")


@dataclass(frozen=True, slots=True)
class Point:
    """The released values of one key in one window at one trigger."""

    trigger: int
    window: int  # start in microseconds, or WHOLE_STREAM
    values: tuple[float, ...]
    deviations: tuple[float | None, ...]


class ReleaseReader:
    """Queries over release files, with one thread and bounded memory."""

    def __init__(self) -> None:
        self._database = duckdb.connect(config={"threads": 1, "memory_limit": "512MB"})
        self._database.execute("SET TimeZone = 'UTC'")
        # Imports Arrow's lazy parts at startup, not while a pipeline runs.
        self._database.sql("SELECT 1").to_arrow_table().column(0).to_numpy()

    def columns(self, file: Path, metadata: Metadata | None) -> Columns:
        """The columns of a release. Raises KeyError if the file is not a release."""
        found = self._database.execute(f"DESCRIBE FROM {_FILES}", [_literal(file)]).fetchall()
        types = {name: str(kind) for name, kind, *_ in found}
        if not types.keys() >= set(FIXED):
            raise KeyError("not a release")
        types = {name: kind for name, kind in types.items() if not kind.endswith("]")}  # no lists
        if metadata is not None:
            keys = metadata.keys
            aggregates = tuple(name for name in metadata.aggregates if name in types)
        else:
            others = [name for name in types if name not in FIXED]
            aggregates = tuple(name for name in others if f"{name}_sd" in types)
            deviations = {f"{name}_sd" for name in aggregates}
            keys = tuple(name for name in others if name not in {*aggregates, *deviations})
        return Columns(
            keys=keys,
            key_types=tuple(types[name] for name in keys),
            aggregates=aggregates,
            has_deviation=tuple(f"{name}_sd" in types for name in aggregates),
            is_integer=tuple(types[name] in _INTEGERS for name in aggregates),
        )

    def release(self, trigger: int, file: Path, columns: Columns) -> Release:
        """A whole release."""
        values, deviations = _aggregate_sql(columns)
        parts = ["epoch_us(window_start) AS window"]
        parts += [f"{text} AS key_{n}" for n, text in enumerate(_key_texts(columns))]
        parts += [f"{value} AS value_{n}" for n, value in enumerate(values)]
        parts += [f"{deviation} AS sd_{n}" for n, deviation in enumerate(deviations)]
        rows = (
            self._database.sql(f"SELECT {', '.join(parts)} FROM {_FILES}", params=[_literal(file)])
            .to_arrow_table()
            .combine_chunks()
        )

        def numbers(name: str) -> NDArray[np.float64]:
            column = rows.column(name).cast(pa.float64(), safe=False)
            filled: NDArray[np.float64] = pc.fill_null(column, np.nan).to_numpy()
            return filled

        return Release(
            trigger=trigger,
            window=pc.fill_null(rows.column("window"), WHOLE_STREAM).to_numpy(),
            keys=tuple(rows.column(f"key_{n}") for n in range(len(columns.keys))),
            values=tuple(numbers(f"value_{n}") for n in range(len(values))),
            deviations=tuple(
                numbers(f"sd_{n}") if has else None for n, has in enumerate(columns.has_deviation)
            ),
            columns=columns,
        )

    def windows(self, file: Path) -> list[tuple[int, int, bool]]:
        """Start, end and `final` of each window in a release."""
        return self._database.execute(
            "SELECT coalesce(epoch_us(window_start), ?), coalesce(epoch_us(window_end), 0),"
            f" bool_or(final) FROM {_FILES} GROUP BY 1, 2",
            [int(WHOLE_STREAM), _literal(file)],
        ).fetchall()

    def id_prefixes(
        self, file: Path, columns: Columns
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """`id_prefix` of the key of each row, and the rows whose prefix may be wrong.

        Those rows have keys that DuckDB and Python write as different JSON.
        """
        texts = ", ".join(_key_texts(columns))
        found = self._database.execute(
            "SELECT ('0x' || left(sha256(json), 16))::UBIGINT AS prefix,"
            f" regexp_matches(json, '{_HEX_ESCAPE}') AS uncertain"
            f" FROM (SELECT to_json([{texts}]::VARCHAR[])::VARCHAR AS json FROM {_FILES})",
            [_literal(file)],
        ).fetchnumpy()
        return found["prefix"], np.flatnonzero(found["uncertain"])

    def points(
        self, keys: Sequence[Key], starts: Sequence[int], files: Sequence[Path], columns: Columns
    ) -> dict[Key, list[Point]]:
        """The values of some keys in some windows, ordered by trigger and window."""
        values, deviations = _aggregate_sql(columns)
        window = f"coalesce(epoch_us(window_start), {int(WHOLE_STREAM)})"
        selected = ["trigger", window, *_key_texts(columns), *values, *deviations]
        query = _key_query(selected, keys, starts, files, columns)
        rows = self._database.execute(*query).fetchall()
        found: dict[Key, list[Point]] = {key: [] for key in keys}
        begin, many = 2 + len(columns.keys), len(values)
        for row in rows:
            if row[2:begin] in found:  # equal values can have different texts
                parts = (row[at : at + many] for at in (begin, begin + many))
                found[row[2:begin]].append(Point(row[0], row[1], *parts))
        return found

    def rows_of_key(
        self, key: Key, starts: Sequence[int], files: Sequence[Path], columns: Columns
    ) -> pa.Table:
        """The released rows of a key in some windows, ordered by trigger and window."""
        query, bound = _key_query(["*"], [key], starts, files, columns)
        return self._database.sql(query, params=bound).to_arrow_table()

    def rows_at(self, file: Path, numbers: NDArray[np.int64]) -> pa.Table:
        """The released rows of some row numbers, in this order."""
        return pq.ParquetFile(file).read(use_threads=False).take(pa.array(numbers))


def _key_query(
    selected: Sequence[str],
    keys: Sequence[Key],
    starts: Sequence[int],
    files: Sequence[Path],
    columns: Columns,
) -> tuple[str, list[object]]:
    """The query of the rows of some keys in some windows, and its parameters."""
    bound: list[object] = [[_literal(file) for file in files]]
    where = ["window_start IS NULL"]
    if WHOLE_STREAM not in starts:
        where = [f"window_start IN ({', '.join('make_timestamp(?)' for _ in starts)})"]
        bound += starts
    for number, (name, kind) in enumerate(zip(columns.keys, columns.key_types, strict=True)):
        column = quote_identifier(name)
        texts = sorted({text for key in keys if (text := key[number]) is not None})
        ways = [f"{column} IS NULL"] if any(key[number] is None for key in keys) else []
        if texts and kind in ("FLOAT", "DOUBLE"):  # Parquet statistics leave out NaN
            ways.append(f"{_as_text(name)} IN ({', '.join('?' for _ in texts)})")
        elif texts:
            listed = ", ".join(f"TRY_CAST(? AS {kind})" for _ in texts)
            ways.append(f"{column} IN ({listed})")
        bound += texts
        where.append(f"({' OR '.join(ways)})")
    if len(columns.keys) > 1 and len(keys) > 1:  # only these combinations of key columns
        where.append(f"list_contains(?::VARCHAR[][], [{', '.join(_key_texts(columns))}])")
        bound.append([list(key) for key in keys])
    query = (
        f"SELECT {', '.join(selected)} FROM {_FILES} WHERE {' AND '.join(where)}"
        " ORDER BY trigger, window_start"
    )
    return query, bound


def _key_texts(columns: Columns) -> list[str]:
    """SQL of the key columns, cast to text."""
    return [_as_text(name) for name in columns.keys]


def _as_text(name: str) -> str:
    return f"CAST({quote_identifier(name)} AS VARCHAR)"


def _aggregate_sql(columns: Columns) -> tuple[list[str], list[str]]:
    """SQL of the aggregates and of their standard deviations."""
    values = [quote_identifier(name) for name in columns.aggregates]
    deviations = [
        quote_identifier(f"{name}_sd") if has else "NULL::DOUBLE"
        for name, has in zip(columns.aggregates, columns.has_deviation, strict=True)
    ]
    return values, deviations


def _literal(path: Path) -> str:
    """A file's name, escaped because DuckDB reads every name as a glob pattern."""
    return escape(str(path))
