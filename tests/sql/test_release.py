"""What is computed from released values: moments and their deviations, HAVING, ORDER BY, LIMIT."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpsqlp.sql import Query, connect
from sql.scripts import query


def released(compiled: Query, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The release query over these rows; missing columns are filled in."""
    connection = connect()
    processes = range(len(compiled.processes))
    columns = [
        "window_number BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, trigger BIGINT",
        "final BOOLEAN, position BIGINT, key_0 VARCHAR",
        *(f"p{n} DOUBLE, p{n}_sd DOUBLE" for n in processes),
    ]
    connection.execute(f"CREATE TABLE released ({', '.join(columns)})")
    filled = [{"window_number": 0, "trigger": 1, "final": False} | row for row in rows]
    filled.sort(key=lambda row: (row["window_number"], row["trigger"], str(row.get("key_0"))))
    for position, row in reversed([*enumerate(filled)]):
        full = row | {"position": position}
        marks = ", ".join("?" for _ in full)
        connection.execute(
            f"INSERT INTO released ({', '.join(full)}) VALUES ({marks})", list(full.values())
        )
    answer = connection.sql(compiled.release_sql)
    names = answer.columns
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


BOUNDS = "contribution_bounds_per_row => (-5, 10)"


@pytest.mark.parametrize(
    ("aggregate", "formula"),
    [
        ("AVG", lambda s, n, q: s / n),
        ("VARIANCE", lambda s, n, q: (q - s * s / n) / (n - 1)),
        ("VAR_POP", lambda s, n, q: q / n - (s / n) ** 2),
        ("STDDEV", lambda s, n, q: math.sqrt((q - s * s / n) / (n - 1))),
        ("STDDEV_SAMP", lambda s, n, q: math.sqrt((q - s * s / n) / (n - 1))),
        ("STDDEV_POP", lambda s, n, q: math.sqrt(q / n - (s / n) ** 2)),
    ],
)
def test_moments_and_their_deviation(aggregate: str, formula: Any) -> None:
    """Value and first-order deviation of a formula, the latter against finite differences."""
    compiled = query(f"c, {aggregate}(b, {BOUNDS}) AS m")
    values = {"sum": 410.0, "count": 90.0, "squares": 4300.0}
    deviations = {"sum": 3.0, "count": 0.5, "squares": 20.0}
    kinds = ["sum", "count", "squares"][: len(compiled.processes)]
    assert [p.name for p in compiled.processes] == [f"m_{kind}" for kind in kinds]
    row: dict[str, Any] = {"key_0": "k"}
    row |= {f"p{n}": values[kind] for n, kind in enumerate(kinds)}
    row |= {f"p{n}_sd": deviations[kind] for n, kind in enumerate(kinds)}
    (got,) = released(compiled, [row])
    at = [values[kind] for kind in ("sum", "count", "squares")]
    variance = 0.0
    for n, kind in enumerate(kinds):
        up, down = list(at), list(at)
        up[n] += 1e-4
        down[n] -= 1e-4
        slope = (formula(*up) - formula(*down)) / 2e-4
        variance += (slope * deviations[kind]) ** 2
    assert got["m"] == pytest.approx(formula(*at))
    assert got["m_sd"] == pytest.approx(math.sqrt(variance), rel=1e-5)


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
            {"key_0": "b", "p0": 500.0, "p1": 4.0, "p2": -5.0, **sd},
        ],
    )
    assert [empty[name] for name in ("m", "m_sd", "v", "v_sd", "s", "s_sd")] == [None] * 6
    assert (wild["m"], wild["v"], wild["s"], wild["s_sd"]) == (10.0, 0.0, 0.0, None)


def test_squares_are_of_clamped_values() -> None:
    """A value far below the bounds is clamped before it is squared; NaN is absent."""
    compiled = query(f"c, VAR_POP(b, {BOUNDS}) AS v")
    squares = compiled.processes[2]
    assert (squares.lower, squares.upper) == (0.0, 100.0)
    connection = connect()
    connection.execute(
        "CREATE TABLE s AS SELECT 'u' AS unit, 1 AS a, CAST(b AS DOUBLE) AS b, 'k' AS c,"
        " TIMESTAMP '2024-01-01' AS ts, true AS e"
        " FROM (VALUES ('-100'), ('3'), ('100'), ('nan'), ('-inf'), (NULL)) AS t(b)"
    )
    rows = connection.sql(f"SELECT value_1 FROM ({compiled.row_sql})").fetchall()
    assert [value for (value,) in rows] == [25.0, 9.0, 100.0, None, 25.0, None]


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
    """Whatever the columns are called."""
    compiled = query("c, COUNT(*) AS position")
    rows = [{"key_0": key, "p0": count} for key, count in (("b", 1.0), ("c", 2.0), ("a", 3.0))]
    assert [row["c"] for row in released(compiled, rows)] == ["a", "b", "c"]


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
