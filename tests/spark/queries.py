"""Queries that every engine must answer with the same bytes, over records that are hard to read."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from support.fake_clock import START
from support.pipelines import HOUR, MINUTE, replay

QUARTER = 15 * MINUTE
YEAR = 365 * 24 * HOUR
COLUMNS = {
    "unit": ("TEXT", pa.string()),
    "id": ("BIGINT", pa.int32()),  # stored narrower than declared
    "part": ("INTEGER", pa.int32()),
    "born": ("DATE", pa.date32()),
    "weight": ("DOUBLE", pa.float64()),
    "k": ("TEXT", pa.string()),
    "code": ("INTEGER", pa.int32()),
    "day": ("DATE", pa.date32()),
    "price": ("DECIMAL(9, 2)", pa.decimal128(9, 2)),
    "flag": ("BOOLEAN", pa.bool_()),
    "x": ("DOUBLE", pa.float64()),
    "ts": ("TIMESTAMP", pa.timestamp("us")),
}
SCHEMA = pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items()])
NAN, INF = float("nan"), float("inf")
KEYS = ["a", "a", "b", "B", "é", "e\u0301", "日本", "", " a", "a\0b", None]
VALUES = [0.5, 1.25, 3.0, -1.0, 100.0, -100.0, -0.0, 1e300, 5e-324, NAN, INF, -INF, None]
WEIGHTS = [0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, 1e-300, None]
AGES = [-YEAR, YEAR, None]  # a record's time besides those that the query looks at


def records(start: int, stop: int, seed: int, count: int = 300) -> pa.Table:
    """Records of 40 units between two moments, some twice, some a year away, some full of nulls."""
    dice = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        number = dice.randrange(40)
        rows.append(
            {
                "unit": dice.choice([f"u{number}", f"u{number}" + "ü" * 17, "", None, "u1", "u2"]),
                "id": dice.choice([number, -number, 2**31 - 1, None]),
                "part": dice.choice([1, 2, 2, None]),
                "born": dice.choice([date(1970, 1, 1) + timedelta(number - 5), None]),
                "weight": dice.choice([*WEIGHTS, float(number), float(number)]),
                "k": dice.choice(KEYS),
                "code": dice.choice([1, 1, 2, -3, -(2**31), None]),
                "day": dice.choice([date(2024, 2, 29), date(1969, 12, 31), date(1, 1, 1), None]),
                "price": dice.choice([Decimal("1.00"), Decimal("-0.01"), Decimal("9999999.99")]),
                "flag": dice.choice([True, True, False, None]),
                "x": dice.choice(VALUES),
                "ts": dice.choice([dice.randrange(start, stop)] * 12 + AGES),
            }
        )
        if rows[-1]["ts"] in (YEAR, -YEAR):
            rows[-1]["ts"] += start
        if dice.random() < 0.1:
            rows.append(rows[-1])
    return pa.Table.from_pylist(rows, SCHEMA)


@dataclass(frozen=True)
class Case:
    """A query, and what its triggers read."""

    select: str = "k, COUNT(*) AS n"
    group: str = "k, TUMBLE(ts, INTERVAL 30 MINUTES)"
    unit: str = "unit"
    options: str = ""
    mechanism: str = "tree"
    rows: str = "FROM s"
    ctes: str = ""
    public: str = ""
    after: str = ""  # HAVING and so on
    emit: str | None = None  # a replay, unless it says otherwise
    interval: int = QUARTER
    triggers: int = 3
    arrive: bool = False  # by the clock, in files that arrive, instead of a replay
    missed: tuple[int, ...] = ()  # triggers that come too late and run empty

    @property
    def sql(self) -> str:
        """The script."""
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        follow = ", follow = true" if self.arrive else ""
        span = replay(START, START + self.triggers * self.interval, self.interval // MINUTE)
        group = f" GROUP BY {self.group}" if self.group else ""
        return (
            f"CREATE SOURCE s ({columns}) WITH (connector = 'files', path = 'in/*.parquet'"
            f"{follow});\n{self.public}\n"
            f"CREATE SINK t WITH (connector = 'python') AS {self.ctes} SELECT WITH"
            f" DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3, privacy_unit_column ="
            f" {self.unit}, max_rows_contributed = 6, max_rows_per_group = 3, mechanism ="
            f" '{self.mechanism}'{self.options}) {self.select} {self.rows}{group} {self.after}"
            f" {self.emit or span};\n"
        )

    def files(self, seed: int = 1) -> list[pa.Table]:
        """What arrives before each trigger; in a replay, all there is."""
        if not self.arrive:
            begin, end = START - self.interval, START + (self.triggers + 1) * self.interval
            return [records(begin, end, seed), records(begin, end, seed + 1)]
        ends = [START + number * self.interval for number in range(1, self.triggers + 1)]
        return [records(end - 4 * self.interval, end + self.interval, seed + end) for end in ends]


def bounded(name: str, alias: str, low: float = -2, high: float = 8) -> str:
    """An aggregate of x."""
    return f"{name}(x, contribution_bounds_per_row => ({low}, {high})) AS {alias}"


PLACES = (
    "CREATE PUBLIC TABLE places AS SELECT * FROM (VALUES ('a', 'Alpha', 1), ('日本', 'Nippon', 2),"
    " ('é', NULL, 3), ('nobody', 'Nowhere', 4)) AS t(k, name, code);"
)
LIVE = f"EMIT EVERY INTERVAL {QUARTER // MINUTE} MINUTES"
LATE = f"{LIVE} ALLOW LATENESS INTERVAL 30 MINUTES"
ENDING = ", privacy_unit_period = INTERVAL 30 MINUTES"  # with the window, which has a closing
RARE = "CASE WHEN flag THEN k ELSE concat(k, code, part) END AS key"  # many keys of few units
BY_RARE = "key, TUMBLE(ts, INTERVAL 30 MINUTES)"

CASES = {
    "counts": Case(select="k, COUNT(*) AS n, COUNT(x) AS m, COUNT(DISTINCT unit) AS units"),
    "sums": Case(
        select=f"k, {bounded('SUM', 'total')}, {bounded('AVG', 'mean', 0, 1)},"
        f" {bounded('VARIANCE', 'v')}"
    ),
    "moments": Case(select=f"k, {bounded('VARIANCE', 'v')}, {bounded('STDDEV', 'sd')}"),
    "bins": Case(select=f"k, {bounded('HISTOGRAM', 'bins')}, {bounded('MEDIAN', 'middle')}"),
    "keys only": Case(select="k, flag", group="k, flag, TUMBLE(ts, INTERVAL 30 MINUTES)"),
    "hop": Case(group="k, HOP(ts, INTERVAL 15 MINUTES, INTERVAL 30 MINUTES)"),
    "calendar": Case(  # triggers at local midnights
        group="k, DATE_TRUNC('day', ts) AT TIME ZONE 'Europe/Berlin'",
        options=", privacy_unit_period = INTERVAL 1 DAY",
        emit="EMIT EVERY INTERVAL 1 DAY ALLOW LATENESS INTERVAL 1 DAY ON EVENT TIME FROM TIMESTAMP"
        " '2024-10-04' TO TIMESTAMP '2024-10-06'",
        interval=24 * HOUR,
        triggers=2,
    ),
    "hour": Case(
        select="k, DATE_TRUNC('hour', ts) AS hour, COUNT(*) AS n",
        group="k, hour",
        interval=2 * QUARTER,
    ),
    "date": Case(
        select="CAST(ts AS DATE) AS day, code, COUNT(*) AS n", group="ALL", interval=12 * HOUR
    ),
    "no window": Case(
        group="k",
        options=", timestamp_column = ts",
        emit="EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME FROM TIMESTAMP '2024-10-04 00:00:00'"
        " FOR 3 TRIGGERS",
    ),
    "total by the clock": Case(
        select="COUNT(*) AS n, COUNT(DISTINCT unit) AS units",
        group="",
        emit=f"{LIVE} FOR 3 TRIGGERS",
        arrive=True,
    ),
    "late": Case(emit=LATE, arrive=True, triggers=4),
    "late, periods, missed": Case(
        emit=LATE,
        arrive=True,
        triggers=5,
        missed=(2, 3),
        options=ENDING,
    ),
    "late, threshold": Case(
        select=f"k, COUNT(*) AS n, {bounded('SUM', 'total')}, COUNT(DISTINCT unit) AS units",
        emit=LATE,
        arrive=True,
        triggers=4,
        options=", release = 'threshold'",
    ),
    "unit of an integer": Case(unit="id"),
    "unit of two columns": Case(unit="(unit, part)"),
    "unit of a date": Case(unit="born"),
    "unit of a double": Case(unit="weight"),
    "unit of a date and an integer": Case(unit="(born, id)"),
    "keys of numbers and dates": Case(
        select="code, day, COUNT(*) AS n", group="code, day, TUMBLE(ts, INTERVAL 30 MINUTES)"
    ),
    "keys of decimals": Case(
        select="price, COUNT(*) AS n", group="price, TUMBLE(ts, INTERVAL 30 MINUTES)"
    ),
    "public keys": Case(
        select="k, COUNT(*) AS n, COUNT(DISTINCT unit) AS units",
        public="CREATE PUBLIC TABLE names AS SELECT k FROM (VALUES ('a'), ('日本'), ('no')) t(k);",
        options=", group_selection_strategy = PUBLIC_GROUPS, public_groups = names",
    ),
    "public table": Case(
        select="name, COUNT(*) AS n",
        public=PLACES,
        rows="FROM s LEFT JOIN places USING (k)",
        group="name, TUMBLE(ts, INTERVAL 30 MINUTES)",
    ),
    "where, case, with": Case(
        ctes="WITH loud AS (SELECT unit, ts, x, CASE WHEN code > 0 THEN upper(k) WHEN flag THEN"
        " 'flag' END AS k FROM s WHERE (x > 0 OR x IS NULL) AND coalesce(part, 1) <> 3)",
        select=f"k, COUNT(*) AS n, {bounded('SUM', 'total')}",
        rows="FROM loud",
    ),
    "periods": Case(options=", privacy_unit_period = INTERVAL 15 MINUTES"),
    "threshold": Case(
        select=f"k, COUNT(*) AS n, {bounded('SUM', 'total')}",
        group="k, TUMBLE(ts, INTERVAL 1 HOUR)",
        options=", release = 'threshold'",
        triggers=4,
    ),
    "blt": Case(
        select=f"k, COUNT(*) AS n, {bounded('SUM', 'total')}",
        mechanism="blt",
        options=", min_privacy_units_per_group = 3",
    ),
    "blt, threshold": Case(mechanism="blt", options=", release = 'threshold'"),
    "having, order, limit": Case(
        select=f"k, COUNT(*) AS n, {bounded('AVG', 'mean')}",
        after="HAVING COUNT(*) > 3 ORDER BY n DESC, k LIMIT 3",
    ),
    "few votes": Case(
        select="CASE WHEN flag THEN '' ELSE k END AS key, COUNT(*) AS n",
        group="key, TUMBLE(ts, INTERVAL 2 HOURS)",  # the first key takes votes until it is out
        options=", max_selections_contributed = 1",
        triggers=8,
    ),
    "late spending": Case(options=", group_selection_spending = 'late'"),
    "closing": Case(
        select=f"{RARE}, COUNT(*) AS n, {bounded('AVG', 'mean')}",
        group=BY_RARE,
        mechanism="blt",
        options=f"{ENDING}, max_contribution_norm = 4",
        triggers=4,
    ),
    "diagnostics": Case(
        select=f"{RARE}, COUNT(*) AS n",
        group=BY_RARE,
        options=f"{ENDING}, diagnostics_share = 0.1",
        triggers=4,
    ),
    "closing, late": Case(
        select=f"{RARE}, COUNT(*) AS n",
        group=BY_RARE,
        emit=LATE,
        arrive=True,
        triggers=6,
        missed=(4,),  # the last trigger of a window
        options=f"{ENDING}, max_selections_contributed = 1, min_privacy_units_per_group = 2",
    ),
    "closing, once": Case(
        select=f"{RARE}, COUNT(*) AS n, COUNT(DISTINCT unit) AS units",
        group="key",
        emit=f"{LIVE} FOR 3 TRIGGERS",
        arrive=True,
        options=", min_privacy_units_per_group = 2",
    ),
}
SPARED = (  # for `make parity`
    *("date", "late", "unit of a date and an integer", "late spending", "blt, threshold"),
    *("total by the clock", "threshold", "moments"),
)
THREE = ("closing", "late, threshold", "public table")  # where not all are run
