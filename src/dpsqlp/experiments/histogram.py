"""Errors of a released histogram against the true one.

The true histogram counts every record with a unit, before any bounding. A key that was never
released counts as 0. Under the policy `threshold` a key has the value of its last release.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from dpsqlp.experiments.task import Stream


@dataclass(frozen=True, slots=True)
class Errors:
    """Norms of released minus true counts over all keys."""

    linf: float
    l1: float
    l2: float


def true_histogram(stream: Stream) -> pa.Table:
    """(key, n): the number of records of every key."""
    with duckdb.connect() as database:
        query = f"SELECT key, count(*) AS n FROM {stream.rows} GROUP BY key"
        return database.sql(query).to_arrow_table()


def released_keys(output: Path, *, counts: bool = True) -> pa.Table:
    """(key, first_trigger, n): every key of a Parquet sink's files, its first trigger and its last
    value, if there are counts.
    """
    last = ", arg_max(n, trigger) AS n" if counts else ""
    with duckdb.connect() as database:
        files = f"read_parquet('{output}/*.parquet')"
        query = f"SELECT key, min(trigger) AS first_trigger{last} FROM {files} GROUP BY key"
        return database.sql(query).to_arrow_table()


def keys_by(released: pa.Table, trigger: int) -> int:
    """The number of keys that were released at this trigger or before."""
    return int((released.column("first_trigger").to_numpy() <= trigger).sum())


def errors(truth: pa.Table, released: pa.Table) -> Errors:
    """Compare two tables of (key, n)."""
    with duckdb.connect() as database:
        database.register("truth", truth)
        database.register("released", released)
        figures = database.sql(
            """
            WITH error AS (
                SELECT abs(coalesce(released.n, 0)::DOUBLE - coalesce(truth.n, 0)) AS size
                FROM truth FULL JOIN released ON truth.key IS NOT DISTINCT FROM released.key
            )
            SELECT coalesce(max(size), 0), coalesce(sum(size), 0),
                   sqrt(coalesce(sum(size * size), 0))
            FROM error
            """
        ).fetchall()
    return Errors(*figures[0])
