"""Months in a zone with daylight saving, from files to releases: as the twin, however often it
stops.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dpsqlp.engines.local import LocalEngine
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import TriggerError
from dpsqlp.schedule import CalendarSchedule
from support.fake_clock import FakeClock
from support.pipelines import SECRET, Record, as_twin, made, run_all, script, twin_run, write

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = script(
    window="TUMBLE(ts, INTERVAL 1 MONTH) AT TIME ZONE 'Europe/Berlin'",
    emit="EMIT EVERY INTERVAL 1 DAY ON EVENT TIME FROM TIMESTAMP '2024-01-25' TO TIMESTAMP"
    " '2024-05-01'",
    options=", privacy_unit_period = INTERVAL 1 MONTH, max_selections_contributed = 1",
)


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the twin's secret and instance."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


def records() -> list[Record]:
    """A few a day, some at the edges of months and days."""
    dice = random.Random(29)
    start = (datetime(2024, 1, 20, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    days = ["02-01T00:00:00+01:00", "03-01T00:00:00+01:00", "03-31T03:00:00+02:00"]
    days += ["04-01T00:00:00+02:00", "05-01T00:00:00+02:00"]
    edges = [(datetime.fromisoformat(f"2024-{at}") - EPOCH) // timedelta(0, 0, 1) for at in days]
    moments = [edge + less for edge in edges for less in (-1, 0)] * 5
    moments += [start + dice.randrange(104 * 86_400_000_000) for _ in range(1500)]
    return [
        (f"u{dice.randrange(60)}", dice.choice("aaabbcdef"), dice.uniform(-3, 9), at)
        for at in moments
    ]


def by_trigger(engine: LocalEngine, rows: list[Record]) -> dict[int, list[Record]]:
    """The rows of each local day."""
    grid = engine.schedule
    assert grid.last is not None
    spans = {trigger: grid.span(trigger) for trigger in range(grid.first, grid.last + 1)}
    return {
        trigger: [row for row in rows if row[3] is not None and begin <= row[3] < end]
        for trigger, (begin, end) in spans.items()
    }


def test_months_in_berlin_are_the_twins(tmp_path: Path) -> None:
    """January to April 2024: T = 31, 29, 31 and 30, the days of 23 hours included."""
    rows = records()
    write(tmp_path / "in" / "all.parquet", rows)
    engine = made(tmp_path, MONTHS)
    plan = engine.plan
    assert isinstance(plan.windows, CalendarSchedule)
    assert [plan.windows.length(window) for window in range(4)] == [31, 29, 31, 30]
    expected = twin_run(engine, by_trigger(engine, rows))
    released = run_all(engine)
    assert as_twin(engine.query, released, plan) == expected
    final = [trigger for trigger, part in released.items() if any(row["final"] for row in part)]
    assert final == list(plan.windows.ends)
    assert sum(row["final"] for part in released.values() for row in part) >= 8


def test_a_restart_after_every_trigger_changes_nothing(tmp_path: Path) -> None:
    """The table and the noise of each T are read back."""
    rows = records()
    whole, often = tmp_path / "whole", tmp_path / "often"
    for folder in (whole, often):
        write(folder / "in" / "all.parquet", rows)
    expected = run_all(made(whole, MONTHS))
    released: dict[int, list[dict[str, Any]]] = {}
    while len(released) < len(expected):
        engine = made(often, MONTHS)
        released |= run_all(engine, 9)
    assert released == expected


def test_the_clock_ends_with_the_calendar(tmp_path: Path) -> None:
    """A run past the table is refused, before anything is read."""
    live = MONTHS[: MONTHS.index(" ON EVENT TIME")] + ";"
    (tmp_path / "in").mkdir()
    live = live.replace("path = 'in/*.parquet'", "path = 'in/*.parquet', follow = true")
    clock = FakeClock()
    engine = made(tmp_path, live, clock=clock)
    last = engine.schedule.last
    assert last is not None
    clock.time = engine.schedule.due(last + 1)
    engine.cut(last)
    engine.step()  # the first trigger: those before the cut run empty
    engine.check_unfinished()
    engine.close()
    assert last == engine.plan.last_trigger
    object.__setattr__(engine.journal.manifest, "trigger", last)
    with pytest.raises(TriggerError, match=r"calendar of the plan ends with trigger"):
        engine.step()
