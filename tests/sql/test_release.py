"""What is computed from released values: moments and their deviations, HAVING, ORDER BY, LIMIT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsqlp.core import Core
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms.base import FloatArray
from dpsqlp.sql import Query, connect, make_plan
from dpsqlp.stages.admit import ABSENT, MicroBatch
from sql.scripts import query

MOMENTS_IN_TIME = ("window_start", "window_end", "window_local", "released_at")


def released(compiled: Query, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The release query over these rows, in the order of windows, triggers and keys, as they come
    from the core; missing columns are filled in.
    """
    connection = connect()
    processes = range(len(compiled.processes))
    columns = [
        "window_number BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, trigger BIGINT",
        "window_local TIMESTAMP",
        "released_at TIMESTAMP, window_trigger BIGINT, final BOOLEAN, position BIGINT",
        "key_0 VARCHAR",
        *(f"p{n} DOUBLE, p{n}_sd DOUBLE" for n in processes),
    ]
    connection.execute(f"CREATE TABLE released ({', '.join(columns)})")
    filled = [{"window_number": 0, "trigger": 1, "final": False} | row for row in rows]
    filled.sort(key=lambda row: (row["window_number"], row["trigger"], str(row.get("key_0"))))
    for position, row in enumerate(filled):
        full = row | {"position": position}
        marks = ", ".join("?" for _ in full)
        connection.execute(
            f"INSERT INTO released ({', '.join(full)}) VALUES ({marks})", list(full.values())
        )
    answer = connection.sql(compiled.release_sql)
    names = answer.columns
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


BOUNDS = "contribution_bounds_per_row => (-5, 10)"


LOWER, UPPER = -5.0, 10.0
DEVIATIONS = {"sum": 3.0, "count": 0.5, "squares": 20.0}

# Each aggregate from the values that count, clamped, as numpy has it.
MOMENTS = {
    "AVG": lambda x: np.mean(x),
    "VARIANCE": lambda x: np.var(x, ddof=1),
    "VAR_SAMP": lambda x: np.var(x, ddof=1),
    "VAR_POP": lambda x: np.var(x),
    "STDDEV": lambda x: np.std(x, ddof=1),
    "STDDEV_SAMP": lambda x: np.std(x, ddof=1),
    "STDDEV_POP": lambda x: np.std(x),
}


def sample() -> FloatArray:
    """Values on both sides of the bounds, more of them below the middle than above."""
    return np.random.default_rng(7).normal(0.5, 6.0, 90)


def totals(query: Query, column: FloatArray) -> list[float]:
    """What the processes of a query add up to without noise, through the core's own admission."""
    plan = make_plan(query)
    rows = len(column)
    names = pa.array([f"u{n}" for n in range(rows)])
    zeros = pa.array(np.zeros(rows, np.int64))
    values = tuple(pa.array(column) for _ in range(plan.value_columns))
    batch = MicroBatch((names,), (pa.array(["k"] * rows),), zeros, zeros, values)
    core = Core(plan, Secret(bytes(range(32)), bytes(16)))
    added = core.admit(batch, 1).values
    present = np.where(added == ABSENT, 0, added).sum(axis=0)
    quanta = [calibrated.quantum for calibrated in plan.calibration.processes]
    return [float(total) * quantum for total, quantum in zip(present, quanta, strict=True)]


def release_row(query: Query, sums: Sequence[float]) -> dict[str, Any]:
    row: dict[str, Any] = {"key_0": "k"}
    for n, (process, total) in enumerate(zip(query.processes, sums, strict=True)):
        row |= {f"p{n}": total, f"p{n}_sd": DEVIATIONS[process.kind]}
    return row


@pytest.mark.parametrize("aggregate", MOMENTS)
def test_moments_are_those_of_the_clamped_values(aggregate: str) -> None:
    """Without noise, a moment of centred sums is the moment that numpy computes."""
    compiled = query(f"c, {aggregate}(b, {BOUNDS}) AS m")
    values = sample()
    column = np.append(values, [np.nan, np.nan])  # absent
    (got,) = released(compiled, [release_row(compiled, totals(compiled, column))])
    assert got["m"] == pytest.approx(MOMENTS[aggregate](np.clip(values, LOWER, UPPER)), rel=1e-3)


@pytest.mark.parametrize("aggregate", MOMENTS)
def test_moments_and_their_deviation(aggregate: str) -> None:
    """The first-order deviation of a moment, against finite differences of its value."""
    compiled = query(f"c, {aggregate}(b, {BOUNDS}) AS m")
    kinds = ["sum", "count", "squares"][: len(compiled.processes)]
    assert [p.name for p in compiled.processes] == [f"m_{kind}" for kind in kinds]
    sums = totals(compiled, sample())

    def moment(at: Sequence[float]) -> float:
        (got,) = released(compiled, [release_row(compiled, at)])
        return float(got["m"])

    variance = 0.0
    for n, kind in enumerate(kinds):
        up, down = list(sums), list(sums)
        up[n] += 1e-3
        down[n] -= 1e-3
        variance += ((moment(up) - moment(down)) / 2e-3 * DEVIATIONS[kind]) ** 2
    (got,) = released(compiled, [release_row(compiled, sums)])
    assert got["m_sd"] == pytest.approx(math.sqrt(variance), rel=1e-5)


def test_a_sum_beside_an_average() -> None:
    """It is computed from the average's processes, exactly, and has the noise of both."""
    compiled = query(f"c, SUM(b, {BOUNDS}) AS s, AVG(b, {BOUNDS}) AS m")
    assert [p.kind for p in compiled.processes] == ["sum", "count"]
    values = sample()
    column = np.append(values, [np.nan, np.nan])
    (got,) = released(compiled, [release_row(compiled, totals(compiled, column))])
    assert got["s"] == pytest.approx(np.clip(values, LOWER, UPPER).sum(), rel=1e-3)
    assert got["s_sd"] == pytest.approx(math.hypot(3.0, 2.5 * 0.5))
    assert got["m"] == pytest.approx(got["s"] / len(values))


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0, 1e9), (0, 250_000_000), (0.0001, 0.0002), (-1, 12345.67891), (1e-70, 1e70), (-1e70, 0)],
)
def test_bounds_of_any_size_are_released(lower: float, upper: float) -> None:
    """On a row too: DuckDB reads a number with a point as a decimal, and its products overflow."""
    bounds = f"contribution_bounds_per_row => ({lower!r}, {upper!r})"
    kinds = {"a": "AVG", "s": "SUM", "v": "VARIANCE", "p": "VAR_POP", "d": "STDDEV"}
    aggregates = (f"{kind}(b, {bounds}) AS {name}" for name, kind in kinds.items())
    compiled = query(f"c, {', '.join(aggregates)}")
    middle = (lower + upper) / 2
    values = np.array([lower, middle, upper])
    (got,) = released(compiled, [release_row(compiled, totals(compiled, values))])
    assert got["a"] == pytest.approx(middle, rel=1e-6)
    assert got["s"] == pytest.approx(values.sum(), rel=1e-6)
    assert got["v"] == pytest.approx(((upper - lower) / 2) ** 2, rel=1e-6)
    for name in kinds:
        assert math.isfinite(got[f"{name}_sd"])


def test_moments_of_too_little() -> None:
    """No average of nothing, no variance below zero, no value outside the bounds."""
    compiled = query(
        f"c, AVG(b, {BOUNDS}) AS m, VARIANCE(b, {BOUNDS}) AS v, STDDEV(b, {BOUNDS}) AS s"
    )
    sd = {f"p{n}_sd": 1.0 for n in range(3)}
    empty, wild = released(
        compiled,
        [
            {"key_0": "a", "p0": 3.0, "p1": 0.2, "p2": 5.0, **sd},
            {"key_0": "b", "p0": 500.0, "p1": 4.0, "p2": -500.0, **sd},
        ],
    )
    assert [empty[name] for name in ("m", "m_sd", "v", "v_sd", "s", "s_sd")] == [None] * 6
    assert (wild["m"], wild["v"], wild["s"], wild["s_sd"]) == (10.0, 0.0, 0.0, None)


def test_squares_are_of_clamped_values() -> None:
    """A value far below the bounds is clamped before it is centred and squared; NaN is absent."""
    compiled = query(f"c, VAR_POP(b, {BOUNDS}) AS v")
    squares = compiled.processes[2]
    assert (squares.kind, squares.center, squares.bound) == ("squares", 2.5, 7.5**2 / 2)
    connection = connect()
    connection.execute(
        "CREATE TABLE s AS SELECT 'u' AS unit, 1 AS a, CAST(b AS DOUBLE) AS b, 'k' AS c,"
        " TIMESTAMP '2024-01-01' AS ts, true AS e"
        " FROM (VALUES ('-100'), ('3'), ('100'), ('nan'), ('-inf'), (NULL)) AS t(b)"
    )
    rows = connection.sql(f"SELECT value_0 FROM ({compiled.row_sql})").to_arrow_table()
    column = rows.column(0).to_pandas().to_numpy()
    added = [totals(compiled, column[n : n + 1]) for n in range(6)]
    half = 7.5**2 / 2
    assert added == [
        [-7.5, 1, half], [0.5, 1, 0.5**2 - half], [7.5, 1, half], [0, 0, 0], [-7.5, 1, half],
        [0, 0, 0],
    ]  # fmt: skip


def test_limit_per_window_and_trigger() -> None:
    """LIMIT counts within a window and trigger, after HAVING; ties go by key bytes."""
    compiled = query(
        "c, COUNT(*) AS n",
        group="GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY) HAVING COUNT(*) > 1 ORDER BY n DESC LIMIT 2",
    )
    rows = [
        {"key_0": key, "p0": value, "window_number": window, "trigger": trigger}
        for window, trigger in ((1, 7), (0, 7), (0, 8))
        for key, value in (("d", 5.0), ("b", 9.0), ("c", 5.0), ("a", 1.0))
    ]
    got = [(row["trigger"], row["c"], row["n"]) for row in released(compiled, rows)]
    top = [("b", 9), ("c", 5)]
    assert got == [(t, *row) for t in (7, 8, 7) for row in top]


def test_rows_come_in_the_order_of_keys() -> None:
    """Whatever the columns are called; with ORDER BY, where rows are equal."""
    rows = [{"key_0": key, "p0": count} for key, count in (("b", 1.0), ("c", 2.0), ("a", 1.0))]
    for order, expected in (("", "abc"), (" ORDER BY 2 DESC", "cab")):
        compiled = query(
            "c, COUNT(*) AS position", group=f"GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY){order}"
        )
        assert [row["c"] for row in released(compiled, rows)] == list(expected)


def test_rows_stay_in_the_order_in_which_they_come() -> None:
    """Many rows, some of which HAVING leaves out, on several threads: nothing sorts them again."""
    compiled = query(
        "c, COUNT(*) AS n", group="GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY) HAVING COUNT(*) > 1"
    )
    size = 400_000
    columns = {name: pa.nulls(size, pa.timestamp("us")) for name in MOMENTS_IN_TIME}
    rows = columns | {
        "window_number": np.zeros(size, np.int64),
        "trigger": np.ones(size, np.int64),
        "window_trigger": np.ones(size, np.int64),
        "final": np.zeros(size, bool),
        "position": np.arange(size),
        "key_0": pa.array(np.arange(size)).cast(pa.string()),
        "p0": np.arange(size) % 3.0,
        "p0_sd": np.ones(size),
    }
    connection = connect(config={"threads": 4})
    connection.register("released", pa.table(rows))
    found = connection.sql(compiled.release_sql).to_arrow_table().column("c").to_pylist()
    assert found == [str(k) for k in range(size) if k % 3 == 2]


@pytest.mark.parametrize("alias", ["release_rank", "window_number", "rows"])
def test_order_by_whatever_the_columns_are_called(alias: str) -> None:
    compiled = query(
        f"c, COUNT(*) AS {alias}",
        group="GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY) ORDER BY COUNT(*) DESC LIMIT 2",
    )
    rows = [{"key_0": key, "p0": count} for key, count in (("b", 1.0), ("c", 5.0), ("a", 9.0))]
    assert [row["c"] for row in released(compiled, rows)] == ["a", "c"]


def test_having_that_fails_drops_the_row() -> None:
    """An expression over released values that fails is NULL, never an abort."""
    compiled = query(group="GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY) HAVING CAST(c AS INTEGER) > 3")
    rows = [{"key_0": key, "p0": 1.0} for key in ("5", "x", "2")]
    assert [row["c"] for row in released(compiled, rows)] == ["5"]
