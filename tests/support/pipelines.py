"""Small pipelines on real files, and what the twin makes of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.local import LocalEngine
from dpsqlp.engines.runner import run_side_by_side
from dpsqlp.engines.script import open_engine
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import UnavailableError
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import GridTime
from dpsqlp.sql import compile_script
from dpsqlp.sql.query import Calendar, Hop, Query, Tumble
from reference.twin import Row, Twin, canonical
from support.fake_clock import FakeClock

MINUTE = 60_000_000
HOUR = 60 * MINUTE
EPOCH = datetime(1970, 1, 1)
SECRET = Secret(bytes(range(32)), bytes(range(16)))
SCHEMA = pa.schema(
    [("unit", pa.string()), ("k", pa.string()), ("x", pa.float64()), ("ts", pa.timestamp("us"))]
)
Record = tuple[str | None, str | None, float | None, int | None]  # unit, k, x, microseconds


def script(
    *,
    select: str = "k, COUNT(*) AS n, SUM(x, contribution_bounds_per_row => (-2, 8)) AS total",
    source: str = "connector = 'files', path = 'in/*.parquet'",
    window: str | None = "TUMBLE(ts, INTERVAL 1 HOUR)",
    emit: str = "EMIT EVERY INTERVAL 15 MINUTES",
    options: str = "",
    public: str = "",
    sink: str = "connector = 'python'",
    group: str = "k",
) -> str:
    """A script with one sink; the budget is so large that a few units make a key appear."""
    groups = ", ".join(part for part in (group, window) if part)
    return (
        f"CREATE SOURCE s (unit TEXT, k TEXT, x DOUBLE, ts TIMESTAMP) WITH ({source});\n{public}\n"
        f"CREATE SINK t WITH ({sink}) AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40,"
        " delta = 1e-3, privacy_unit_column = unit, max_rows_contributed = 6, max_rows_per_group"
        f" = 3, mechanism = 'tree'{options}) {select} FROM s GROUP BY {groups} {emit};\n"
    )


def replay(start: int, stop: int, every: int = 15) -> str:
    """EMIT on event time between two moments."""
    low, high = (datetime.fromtimestamp(at / 1e6, UTC).replace(tzinfo=None) for at in (start, stop))
    return (
        f"EMIT EVERY INTERVAL {every} MINUTES ON EVENT TIME FROM TIMESTAMP '{low}' TO TIMESTAMP"
        f" '{high}'"
    )


def at(trigger: int, time: int = 1 << 62) -> GridTime:
    """A grid time with all the time in the world."""
    return GridTime(trigger, time, math.inf)


class Collected(Sink):
    """Keeps releases in memory."""

    def __init__(self) -> None:
        self.releases: list[pa.Table] = []
        self._trigger: int | None = None  # of the last one

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Remember a release, in place of an earlier one of this trigger."""
        if trigger == self._trigger:
            self.releases.pop()
        self.releases.append(release)
        self._trigger = trigger


def made(folder: Path, sql: str, **options: Any) -> LocalEngine:
    """The engine of a script's sink, its state in `folder`."""
    (sink,) = compile_script(sql, folder=str(folder)).sinks
    output = Collected() if sink.options.get("connector") == "python" else None
    options = {"clock": None, "threads": 2} | options
    options["output"] = options.get("output") or output
    return open_engine(
        sink,
        state=folder / options.pop("state", "state"),
        secret=folder / "secret",
        folder=folder,
        **options,
    )


def table(records: Sequence[Record]) -> pa.Table:
    """Records as an Arrow table."""
    columns = list(zip(*records, strict=True)) if records else [()] * 4
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write(path: Path, records: Sequence[Record]) -> None:
    """A Parquet file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name("." + path.name)
    pq.write_table(table(records), temporary)
    temporary.rename(path)


def step(engine: Engine) -> Progress:
    """One step; the source is cut now for the next trigger, unless that is decided."""
    if not engine.ready:
        engine.cut(engine.next_trigger)
    return engine.step()


def run_engines(
    engines: dict[str, LocalEngine],
    stop: threading.Event,
    report: Callable[[str, Progress | UnavailableError], None],
) -> None:
    """Run engines, whose fake clock is told how many threads they have."""
    clocks = [engine.clock for engine in engines.values() if isinstance(engine.clock, FakeClock)]
    if clocks:
        assert len(set(map(id, clocks))) == 1
        clocks[0].expect(sum(1 + (not e.schedule.on_event_time) for e in engines.values()))
    run_side_by_side(engines, stop, report)


def run_all(engine: LocalEngine, triggers: int | None = None) -> dict[int, list[dict[str, Any]]]:
    """Run to the end, or a number of triggers; the rows of each, from a `Collected` sink."""
    assert isinstance(engine.sink, Collected)
    stop, ran = threading.Event(), []

    def report(name: str, progress: Progress | UnavailableError) -> None:
        assert isinstance(progress, Progress)
        ran.append(progress.trigger)
        if len(ran) == triggers:
            stop.set()

    try:
        run_engines({"t": engine}, stop, report)
    finally:
        engine.close()
    assert ran == list(range(ran[0], ran[0] + len(ran))) if ran else True
    releases = engine.sink.releases[-len(ran) :] if ran else []
    return {trigger: rows.to_pylist() for trigger, rows in zip(ran, releases, strict=True)}


def windows_of(query: Query, at: int) -> list[int]:
    """The windows that contain a moment, counted one by one; for a calendar the moment."""
    window = query.window
    if window is None:
        return [0]
    if isinstance(window, Calendar):
        return [at]
    last = at // window.hop_us
    return [w for w in range(last - 50, last + 1) if at < w * window.hop_us + window.size_us]


def period_of(query: Query, at: int) -> int | None:
    """The unit period that contains a moment; for a calendar the moment."""
    if query.period is None or isinstance(query.period, Calendar):
        return None if query.period is None else at
    return at // query.period


def twin_rows(query: Query, records: Sequence[Record]) -> list[Row]:
    """What the row part of `script` yields."""
    return [
        Row(
            unit=(unit,),
            key=(key,),
            window=window,
            timestamp=at,
            values=(value,),
            period=period_of(query, at),
        )
        for unit, key, value, at in records
        if at is not None
        for window in windows_of(query, at)
    ]


def twin_run(
    engine: LocalEngine, batches: Mapping[int, Sequence[Record]], secret: Secret = SECRET
) -> dict[int, list[dict[str, Any]]]:
    """The rows that the twin releases for records given by trigger, as the sink shows them."""
    query, plan, grid = engine.query, engine.plan, engine.schedule
    twin = Twin(plan, secret.key, secret.instance)
    quanta = [calibrated.quantum for calibrated in plan.calibration.processes]
    released: dict[int, list[dict[str, Any]]] = {}
    for trigger, records in batches.items():
        found = twin.run(twin_rows(query, records), trigger)
        released[trigger] = [
            {
                "window": row.window,
                "final": row.final,
                "window_trigger": trigger - plan.windows.first(row.window),
                "released_at": EPOCH + timedelta(microseconds=grid.due(trigger)),
                "key": row.key,
                "values": [value * q for value, q in zip(row.values, quanta, strict=True)],
            }
            for row in found
        ]
    return released


def as_twin(
    query: Query, rows: dict[int, list[dict[str, Any]]], plan: Plan | None = None
) -> dict[int, list[dict[str, Any]]]:
    """Released rows in the twin's terms. A calendar's windows are numbered in the plan."""
    hop = query.window.hop_us if isinstance(query.window, Tumble | Hop) else None

    def window(row: dict[str, Any]) -> int:
        if query.window is None:
            assert row["window_start"] is None
            return 0
        if hop is None:
            assert plan is not None
            assert isinstance(plan.windows, CalendarSchedule)
            return plan.windows.starts.index((row["window_start"] - EPOCH) // timedelta(0, 0, 1))
        return int((row["window_start"] - EPOCH) // timedelta(microseconds=hop))

    return {
        trigger: [
            {
                "window": window(row),
                "final": row["final"],
                "window_trigger": row["window_trigger"],
                "released_at": row["released_at"],
                "key": canonical((row["k"],), ("text",)),
                "values": [row["n"], row["total"]],
            }
            for row in released
        ]
        for trigger, released in rows.items()
    }
