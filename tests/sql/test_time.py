"""Time arithmetic: T, strides, window numbers, and how long a unit's state must live."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.schedule import WindowSchedule
from dpsqlp.sql import Emit, Hop, Query, Tumble, connect
from dpsqlp.sql.plan import period_grid, window_grid
from sql.scripts import query

DAY = 86_400_000_000
HOUR = DAY // 24


@pytest.mark.parametrize(
    ("group", "emit", "triggers", "stride"),
    [
        ("TUMBLE(ts, INTERVAL 1 DAY)", "INTERVAL 1 DAY", 1, 1),
        ("TUMBLE(ts, INTERVAL 1 DAY)", "INTERVAL 15 MINUTES", 96, 96),
        (
            "TUMBLE(ts, INTERVAL 1 DAY)",
            "INTERVAL 15 MINUTES ALLOW LATENESS INTERVAL 1 HOUR",
            100,
            96,
        ),
        ("DATE_TRUNC('minute', ts)", "INTERVAL 500 MILLISECONDS", 120, 120),
        ("HOP(ts, INTERVAL 1 HOUR, INTERVAL 1 DAY)", "INTERVAL 30 MINUTES", 48, 2),
        ("HOP(ts, INTERVAL 2 DAYS, INTERVAL 3 DAYS)", "INTERVAL '1 day'", 3, 2),
        ("TUMBLE(ts, INTERVAL '1 day 12 hours')", "INTERVAL 1.5 HOURS", 24, 24),
    ],
)
def test_triggers_and_stride(group: str, emit: str, triggers: int, stride: int) -> None:
    """T = (window + lateness) / interval; windows follow each other by the hop."""
    compiled = query(group=f"GROUP BY c, {group}", emit=f"EMIT EVERY {emit}")
    assert window_grid(compiled) == WindowSchedule(triggers, stride)


def test_no_window() -> None:
    """FOR n TRIGGERS is T of the one window."""
    compiled = query(group="GROUP BY c", emit="EMIT EVERY INTERVAL 1 HOUR FOR 5 TRIGGERS")
    assert window_grid(compiled) == WindowSchedule(5, None)
    assert period_grid(compiled, window_grid(compiled)) is None


STAMPS = [0, 1, -1, DAY - 1, DAY, -DAY, -DAY - 1, 5 * HOUR, 7 * DAY + 3, None, 2**62, -(2**62)]


@pytest.mark.parametrize(
    ("hop", "size"), [(DAY, DAY), (HOUR, DAY), (7 * HOUR, DAY), (2 * HOUR, 3 * HOUR)]
)
def test_window_numbers(hop: int, size: int) -> None:
    """A record is in every window that contains its timestamp, before 1970 too."""
    tumbles = hop == size
    call = f"TUMBLE(ts, INTERVAL {size} MICROSECONDS)"
    if not tumbles:
        call = f"HOP(ts, INTERVAL {hop} MICROSECONDS, INTERVAL {size} MICROSECONDS)"
    compiled = query(
        group=f"GROUP BY c, {call}",
        options=f", privacy_unit_period = INTERVAL {5 * HOUR} MICROSECONDS",
    )
    batch = pa.table(
        {
            "unit": [str(n) for n in range(len(STAMPS))],
            "a": pa.nulls(len(STAMPS), pa.int32()),
            "b": pa.nulls(len(STAMPS), pa.float64()),
            "c": pa.nulls(len(STAMPS), pa.string()),
            "ts": pa.array(STAMPS, pa.timestamp("us")),
            "e": pa.nulls(len(STAMPS), pa.bool_()),
        }
    )
    connection = connect()
    connection.register("s", batch)
    rows = connection.sql(compiled.row_sql).fetchall()
    got = sorted((int(unit), number) for unit, _, number, _, _ in rows if number is not None)
    wanted = []
    for position, stamp in enumerate(STAMPS):
        if stamp is None:
            continue
        last = stamp // hop
        first = (stamp - size) // hop + 1
        wanted += [(position, number) for number in range(first, last + 1)]
        assert all(n * hop <= stamp < n * hop + size for n in range(first, last + 1))
    assert got == sorted(wanted)
    for unit, _, _, stamp, period in rows:
        assert stamp == STAMPS[int(unit)]
        assert period == (None if stamp is None else stamp // (5 * HOUR))


PLAIN = query()


def made(size: int, hop: int, lateness: int, period: int) -> Query:
    """A query with these lengths in intervals."""
    window = Tumble(size) if hop == size else Hop(size, hop)
    return replace(PLAIN, window=window, emit=Emit(1, lateness_us=lateness), period=period)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 6), st.integers(1, 15))
def test_a_units_state_outlives_its_records(size: int, hop: int, late: int, period: int) -> None:
    """While a window that contains a record is open, so is the record's period, once it began;
    and no period stays open longer than its latest record needs."""
    hop = min(hop, size)
    compiled = made(size, hop, late, period)
    windows, periods = window_grid(compiled), period_grid(compiled, window_grid(compiled))
    assert periods is not None
    longest = 0
    for stamp in range(
        math.lcm(period, hop) + period
    ):  # in intervals: a record between two triggers
        number = stamp // period
        for window in range((stamp - size) // hop + 1, stamp // hop + 1):
            first = windows.first(window)
            for trigger in range(max(first, number * period) + 1, first + windows.triggers + 1):
                assert window in windows.open(trigger)
                assert number in periods.open(trigger)
                longest = max(longest, trigger - periods.first(number))
    assert longest == periods.triggers


def test_event_time_is_left_to_the_reader_only_for_the_sources_own_column() -> None:
    """Where another name could stand behind it, every record is read and judged by its row."""
    assert query().event_column == "ts"
    assert query(rows="FROM s AS v(unit, a, b, c, ts, e)").event_column is None
    assert query(ctes="WITH r AS (SELECT * FROM s)", rows="FROM r").event_column is None
    shifted = "GROUP BY c, TUMBLE(ts + INTERVAL 1 HOUR, INTERVAL 1 DAY)"
    assert query(group=shifted).event_column is None
