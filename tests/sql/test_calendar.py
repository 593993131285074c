"""Calendars: boundaries as DuckDB has them, tables in the plan, and one T for each window."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpsqlp.core import Core, State
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.errors import PlanError, TriggerError
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule, WindowSchedule
from dpsqlp.sql import connect
from dpsqlp.sql import plan as planning
from dpsqlp.sql.calendar import DAY_US, boundaries
from dpsqlp.sql.plan import make_plan, period_grid, window_grid
from dpsqlp.sql.query import Calendar, Query
from sql.scripts import query
from support.plans import SECRET, make_batch
from support.plans import make_plan as small_plan

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_2024_25 = "ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2026-01-01'"
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu"]
ZONES += ["Australia/Lord_Howe", "Asia/Beirut", "Pacific/Auckland", "America/Santiago"]


def us(text: str) -> int:
    """A moment, in UTC unless it says otherwise."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def of(group: str, emit: str = f"INTERVAL 1 DAY {YEARS_2024_25}", options: str = "") -> Query:
    return query(group=f"GROUP BY c, {group}", emit=f"EMIT EVERY {emit}", options=options)


def months(zone: str = "Europe/Berlin", **changed: str) -> Query:
    """Months of two years, with a trigger a day and units that end with them."""
    options = ", privacy_unit_period = INTERVAL 1 MONTH" + changed.pop("options", "")
    return of(f"TUMBLE(ts, INTERVAL 1 MONTH) AT TIME ZONE '{zone}'", options=options, **changed)


def grid(compiled: Query, created: int | None = None) -> CalendarSchedule:
    found = window_grid(compiled, created)
    assert isinstance(found, CalendarSchedule)
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["day", "week", "sunday", "month", "quarter", "year"])
def test_windows_are_those_of_date_trunc(unit: Any, zone: str) -> None:
    """DuckDB's own time zones put the same moments together, edges included."""
    calendar = Calendar("week", zone, 6) if unit == "sunday" else Calendar(unit, zone)
    first, last = us("1995-01-01"), us("2030-01-01")
    starts, local = boundaries(calendar, first, last)
    assert starts[0] <= first < starts[1]
    assert starts[-2] < last <= starts[-1]
    table = CalendarSchedule(
        starts, local, tuple(range(len(starts) - 1)), tuple(range(1, len(starts)))
    )
    dice = np.random.default_rng(len(zone) + len(unit))
    near = dice.choice(np.array(starts[1:-1]), 200)
    moments = np.concatenate([near, near - 1, near + 1, dice.integers(first, last, 400)])
    shift, name = ("INTERVAL 1 DAY", "week") if unit == "sunday" else ("INTERVAL 0 DAY", unit)
    connection = connect()
    connection.register("m", pa.table({"moment": moments}))
    truncated = connection.sql(
        f"SELECT epoch_us(date_trunc('{name}', (make_timestamptz(moment) AT TIME ZONE '{zone}')"
        f" + {shift}) - {shift}) AS t FROM m"
    ).fetchnumpy()["t"]
    assert np.array(local)[table.numbers(moments)].tolist() == truncated.tolist()


def test_months_of_two_years() -> None:
    """29 February, and months that are an hour longer or shorter."""
    daily = grid(of("DATE_TRUNC('month', ts)"))
    assert [daily.length(n) for n in range(14)] == [
        *(31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
        *(31, 28),
    ]
    hourly = grid(months(emit=f"INTERVAL 1 HOUR {YEARS_2024_25}"))
    lengths = [hourly.length(n) for n in range(12)]
    assert (lengths[0], lengths[1], lengths[2], lengths[9]) == (744, 696, 743, 745)
    assert hourly.starts[2] == us("2024-03-01T00:00:00+01:00")
    assert hourly.local[2] == us("2024-03-01")
    days = grid(of("TUMBLE(ts, INTERVAL 1 DAY) AT TIME ZONE 'Europe/Berlin'",
                   f"INTERVAL 15 MINUTES {YEARS_2024_25}"))  # fmt: skip
    assert days.lengths == (92, 96, 100)
    assert days.length(90) == 92  # 31 March 2024


@pytest.mark.parametrize(
    ("group", "emit", "lengths"),
    [
        ("DATE_TRUNC('quarter', ts)", "1 DAY", (90, 91, 92)),
        ("DATE_TRUNC('year', ts)", "1 DAY", (365, 366)),
        ("DATE_TRUNC('WEEK', ts)", "1 DAY", (7,)),
        ("TUMBLE(ts, INTERVAL 12 MONTHS)", "1 MONTH", (12,)),
        ("TUMBLE(ts, INTERVAL 1 YEAR)", "1 QUARTER", (4,)),
        ("TUMBLE(ts, INTERVAL 1 WEEK) AT TIME ZONE 'Asia/Kolkata'", "1 DAY", (7,)),
        (
            "DATE_TRUNC('month', ts) AT TIME ZONE 'Asia/Kolkata'",
            "30 MINUTES",
            (1344, 1392, 1440, 1488),
        ),
        ("DATE_TRUNC('day', ts) AT TIME ZONE 'Australia/Lord_Howe'", "30 MINUTES", (47, 48, 49)),
        ("CAST(ts AS DATE)", "1 DAY", (1,)),
        ("DATE_TRUNC('month', ts) AT TIME ZONE 'Europe/Berlin'", "1 MONTH", (1,)),
    ],
)
def test_lengths(group: str, emit: str, lengths: tuple[int, ...]) -> None:
    """T for each length that occurs."""
    span = YEARS_2024_25.replace("2026-01-01", "2025-12-29") if "WEEK" in group else YEARS_2024_25
    assert window_grid(of(group, f"INTERVAL {emit} {span}")).lengths == lengths


def test_late_windows_overlap() -> None:
    """A window is open for its days and two more; FROM and TO are local."""
    late = grid(months(emit=f"INTERVAL 1 DAY ALLOW LATENESS INTERVAL 2 DAYS {YEARS_2024_25}"))
    assert late.lengths == (30, 31, 32, 33)
    january = late.starts.index(us("2024-01-01T00:00:00+01:00"))
    assert january == 1  # December is still open for two days
    assert late.open(late.begins[january] + 2) == range(0, 2)
    assert late.open(late.begins[january] + 3) == range(1, 2)
    assert late.ending(late.begins[january] + 2) == 0
    assert late.ending(late.begins[january] + 3) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_a_units_state_outlives_its_records(data: st.DataObject) -> None:
    """While a window that contains a moment is open, so is the moment's period, once it began."""
    window = data.draw(st.sampled_from(["'day', ts", "'week', ts", "'month', ts"]))
    zone = data.draw(st.sampled_from(["", " AT TIME ZONE 'Europe/Berlin'"]))
    period = data.draw(st.sampled_from(["1 DAY", "1 WEEK", "1 MONTH", "1 QUARTER", "10 DAYS"]))
    late = data.draw(st.sampled_from(["", "ALLOW LATENESS INTERVAL 36 HOURS"]))
    span = "ON EVENT TIME FROM TIMESTAMP '2024-02-10' TO TIMESTAMP '2024-04-20'"
    compiled = of(
        f"DATE_TRUNC({window}){zone}",
        f"INTERVAL 1 HOUR {late} {span}",
        f", privacy_unit_period = INTERVAL {period}",
    )
    windows = window_grid(compiled)
    periods = period_grid(compiled, windows)
    assert periods is not None
    assert periods.overlaps
    start, stop = (us(f"2024-0{month}") for month in ("2-10", "4-19"))
    moments = np.array([data.draw(st.integers(start, stop)) for _ in range(20)])
    for moment in moments:
        found = windows.numbers(np.array([moment]))[0]
        number = found if isinstance(windows, CalendarSchedule) else moment // DAY_US
        if isinstance(periods, CalendarSchedule):
            unit = int(periods.numbers(np.array([moment]))[0])
        else:
            unit = int(moment // (10 * DAY_US if period == "10 DAYS" else DAY_US))
            unit = int(moment // (7 * DAY_US)) if period == "1 WEEK" else unit
        begin, length = windows.first(int(number)), windows.length(int(number))
        for trigger in (moment // (DAY_US // 24) + 1, begin + length):
            assert trigger in range(begin + 1, begin + length + 1)
            assert unit in periods.open(int(trigger))


def test_every_window_costs_the_same() -> None:
    """s / sigma and all but sigmas and thresholds are equal; beta is divided over each T."""
    late = months(options=", group_selection_spending = 'late'")
    plan = make_plan(replace(late, mechanism="blt"))
    assert len({noise.mechanism.sensitivity for noise in plan.noises}) == 4
    [*shorter, longest] = plan.noises
    assert [noise.mechanism.triggers for noise in plan.noises] == [28, 29, 30, 31]
    assert longest.calibration.closing is not None
    for noise in shorter:
        ratio = noise.mechanism.sensitivity / longest.mechanism.sensitivity
        for own, other in zip(
            noise.calibration.processes, longest.calibration.processes, strict=True
        ):
            assert own.sigma == pytest.approx(other.sigma * ratio, rel=1e-14)
            assert own.quantum == other.quantum
        assert noise.calibration.closing == longest.calibration.closing
    for noise in plan.noises:
        selection = noise.calibration.selection
        assert selection is not None
        spent = _failure(noise.mechanism.variance, selection)
        assert spent <= selection.failure
        assert spent >= 0.2 * selection.failure  # the ceiling of the thresholds


def test_thresholds_are_those_of_each_windows_own_triggers() -> None:
    """thr(i) = ceil(mu + 1 + 1/2 + sigma b(i) z(beta / T)) with the window's own T."""
    for noise in make_plan(replace(months(), mechanism="blt")).noises:
        selection, triggers = noise.calibration.selection, noise.mechanism.triggers
        assert selection is not None
        quantile = -float(ndtri(selection.failure / triggers))
        exact = 1.5 + selection.sigma * np.sqrt(noise.mechanism.variance) * quantile
        assert selection.thresholds == tuple(np.ceil(exact).astype(int).tolist())


def _failure(variance: Any, selection: Any) -> float:
    """The sum of the chances that one unit alone passes a threshold."""
    deviations = selection.sigma * np.sqrt(variance)
    return float(ndtr(-(np.array(selection.thresholds) - 1.5) / deviations).sum())


def test_quanta_and_float_error_suit_all_lengths() -> None:
    """The quantum of a sum is the worst over all T."""
    total = "c, SUM(b, contribution_bounds_per_row => (0, 1e-3)) AS total"
    group = "GROUP BY c, DATE_TRUNC('year', ts)"
    emit = f"EMIT EVERY INTERVAL 1 DAY {YEARS_2024_25}"
    plan = make_plan(query(total, group=group, emit=emit))
    assert plan.windows.lengths == (365, 366)
    assert len({noise.calibration.processes[0].quantum for noise in plan.noises}) == 1


@pytest.mark.parametrize(
    "field", ["sigma", "process sigma", "thresholds", "mechanism", "quantum", "missing"]
)
def test_a_plan_whose_windows_do_not_fit_is_refused(field: str) -> None:
    """Windows of one length with the numbers of another."""
    plan = make_plan(months())
    short, *others = plan.shorter
    calibration = short.calibration
    selection = calibration.selection
    assert selection is not None
    changed = {
        "sigma": replace(calibration, selection=replace(selection, sigma=0.99 * selection.sigma)),
        "process sigma": replace(
            calibration,
            processes=tuple(replace(p, sigma=0.5 * p.sigma) for p in calibration.processes),
        ),
        "thresholds": replace(
            calibration,
            selection=replace(selection, thresholds=plan.calibration.selection.thresholds),  # type: ignore[union-attr]
        ),
        "quantum": replace(
            calibration, processes=tuple(replace(p, quantum=0.5) for p in calibration.processes)
        ),
    }
    broken = replace(short, calibration=changed.get(field, calibration))
    if field == "mechanism":
        broken = replace(short, mechanism=plan.mechanism)
    with pytest.raises(PlanError):
        replace(plan, shorter=tuple(others) if field == "missing" else (broken, *others))


def test_the_plan_keeps_the_table() -> None:
    """All of it is stored, read back bit for bit, and in the fingerprint."""
    plan = make_plan(months())
    assert isinstance(plan.windows, CalendarSchedule)
    assert plan.periods == plan.windows
    restored = Plan.restore(json.loads(json.dumps(plan.describe())))
    assert restored == plan
    assert restored.fingerprint == plan.fingerprint
    moved = (plan.windows.starts[0] - 1, *plan.windows.starts[1:])
    other = replace(plan.windows, starts=moved)
    assert replace(plan, windows=other, periods=other).fingerprint != plan.fingerprint


def test_the_table_decides_not_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone that changes its law moves no boundary of a plan that was made before."""
    query_before = months()
    plan = make_plan(query_before)

    def changed(*args: Any) -> Any:
        starts, local = boundaries(*args)
        return tuple(start + 3_600_000_000 for start in starts), local

    monkeypatch.setattr(planning, "boundaries", changed)
    assert months().row_sql == query_before.row_sql
    assert "timestamp_us AS window_number, timestamp_us, timestamp_us AS period_number" in (
        query_before.row_sql
    )
    moment = np.array([us("2024-03-01T00:30:00+01:00")])
    assert isinstance(plan.windows, CalendarSchedule)
    assert plan.windows.local[plan.windows.numbers(moment)[0]] == us("2024-03-01")
    restored = Plan.restore(plan.describe())
    assert restored.windows.numbers(moment) == plan.windows.numbers(moment)
    later = make_plan(months(emit=f"INTERVAL 1 DAY {YEARS_2024_25}"))
    assert isinstance(later.windows, CalendarSchedule)
    assert later.windows.local[later.windows.numbers(moment)[0]] == us("2024-02-01")


def test_triggers_at_local_midnights_by_the_clock() -> None:
    """A day of 23 hours, and the end of the table."""
    created = us("2024-03-30T12:00:00")
    compiled = months(emit="INTERVAL 1 DAY")
    plan = make_plan(compiled, created=created)
    schedule = TriggerGrid.of(compiled, plan, created)
    assert schedule.due(schedule.first) == us("2024-03-31T00:00:00+01:00")
    assert schedule.span(schedule.first + 1) == (
        us("2024-03-31T00:00:00+01:00"),
        us("2024-04-01T00:00:00+02:00"),
    )
    assert schedule.current(us("2024-03-31T22:00:00")) == schedule.first + 1
    assert schedule.current(us("2024-03-31T21:59:59")) == schedule.first
    assert schedule.last == plan.last_trigger
    assert schedule.last is not None
    assert schedule.due(schedule.last) >= created + 20 * 365 * DAY_US
    assert schedule.span(schedule.last + 1)[1] > schedule.due(schedule.last)


def test_a_trigger_past_the_table_is_refused() -> None:
    """Fail closed, before any record is looked at."""
    table = CalendarSchedule((0, 10, 20), (0, 10, 20), (0, 2), (2, 4))
    core = Core(replace(small_plan(2), windows=table), SECRET)
    state = State(trigger=4)
    with pytest.raises(TriggerError, match="calendar ends with trigger 4; got 5"):
        core.run(state, make_batch(), 5)
    assert state.trigger == 4


def test_fixed_windows_have_the_plans_they_had() -> None:
    """Nothing in a fixed plan speaks of calendars, so its noise is as it was."""
    plan = make_plan(query())
    described = plan.describe()
    assert described["windows"] == {"triggers": 24, "stride": 24}
    assert "shorter" not in described
    assert isinstance(plan.windows, WindowSchedule)


@pytest.mark.parametrize(("start", "count"), [("2024-01-01", 4), ("2024-01-15", 4)])
def test_a_replay_begins_within_a_window(start: str, count: int) -> None:
    """The first window is the one that FROM lies in."""
    span = f"ON EVENT TIME FROM TIMESTAMP '{start}' TO TIMESTAMP '2024-04-20'"
    compiled = of("DATE_TRUNC('month', ts)", f"INTERVAL 1 DAY {span}")
    table = grid(compiled)
    assert len(table.begins) == count
    schedule = TriggerGrid.of(compiled, make_plan(compiled), 0)
    assert schedule.due(schedule.first) == us(start) + DAY_US
    assert schedule.last is not None
    assert schedule.due(schedule.last) == us("2024-05-01")
