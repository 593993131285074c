"""EMIT: when releases are made, as microseconds on the public clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlglot import exp

from dpsqlp.sql.calendar import (
    FIRST_YEAR,
    LAST_YEAR,
    boundaries,
    fitting,
    local_us,
    longest_us,
    missed,
    nearest,
    nests,
    nominal_us,
    shown,
)
from dpsqlp.sql.dialect import EmitClause
from dpsqlp.sql.lengths import duration, interval_us, length_of, length_text, times_of
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import Calendar, Emit, SourceDef, Window

TRIGGERS_MAX = 2**20


def read_emit(text: Text, select: exp.Select, window: Window | None, source: SourceDef) -> Emit:
    """The EMIT clause, checked against the window and the source."""
    clause = select.args.get("emit")
    if not isinstance(clause, EmitClause):
        raise text.refuse(
            select,
            "EMIT is missing: it says when releases are made, and each costs privacy",
            "End the query with, for example, EMIT EVERY INTERVAL 15 MINUTES.",
        )
    zone = window.zone if isinstance(window, Calendar) else "UTC"
    calendar = _read_calendar(text, clause, window)
    interval = interval_us(text, clause.this) if calendar is None else nominal_us(calendar)
    lateness = clause.args.get("lateness")
    emit = Emit(
        interval_us=interval,
        on_event_time=bool(clause.args.get("event_time")),
        triggers=_read_triggers(text, clause, window),
        lateness_us=0 if lateness is None else _lateness(text, lateness, interval, calendar),
        start_us=_timestamp_us(text, clause.args.get("start"), window),
        stop_us=_timestamp_us(text, clause.args.get("stop"), window),
        calendar=calendar,
    )
    if window is None and lateness is not None:
        raise text.refuse(
            lateness,
            "Without a window nothing closes, so no record is late",
            "Leave ALLOW LATENESS out, or group by a window.",
        )
    if emit.on_event_time:
        _check_replay(text, clause, emit, window, source)
    _check_divides(text, clause, emit, window)
    if emit.on_event_time and window is not None:
        _check_on_grid(text, clause, emit, zone)
    triggers = emit.triggers
    if window is not None:
        size = longest_us(window) if isinstance(window, Calendar) else window.size_us
        triggers = size // interval + emit.late_triggers
    assert triggers is not None
    if triggers > TRIGGERS_MAX:
        raise text.refuse(
            clause,
            f"A window would have {triggers} triggers; at most {TRIGGERS_MAX} are supported",
            "Emit less often, or make the window or the lateness shorter.",
        )
    return emit


def _read_calendar(text: Text, clause: exp.Expr, window: Window | None) -> Calendar | None:
    """The calendar of the triggers, if its boundaries are not at a fixed interval."""
    if not isinstance(window, Calendar):
        return None
    length = length_of(text, clause.this, window)
    if not isinstance(length, Calendar):
        return None
    if not nests(window, length):
        raise text.refuse(
            clause.this,
            f"Triggers of {length_text(length)} miss the boundaries of windows of"
            f" {length_text(window)}",
            "Emit every day, or as often as the windows end.",
        )
    return length


def _lateness(text: Text, node: exp.Expr, interval: int, calendar: Calendar | None) -> int:
    """The lateness; with a calendar so many times its longest item."""
    if calendar is None:
        return interval_us(text, node)
    times = times_of(node, calendar)
    if times is None:
        raise text.refuse(
            node,
            f"The lateness is not a whole number of triggers, one every {length_text(calendar)}",
            f"Give it as a number of {calendar.unit.upper()}S.",
        )
    return times * interval


def _read_triggers(text: Text, clause: exp.Expr, window: Window | None) -> int | None:
    node = clause.args.get("triggers")
    if node is None:
        if window is None:
            raise text.refuse(
                clause,
                "There is neither a window nor FOR n TRIGGERS, so the number of releases would be"
                " unlimited",
                "Add FOR n TRIGGERS, or group by TUMBLE(ts, INTERVAL ...).",
            )
        return None
    if window is not None:
        raise text.refuse(
            node,
            "FOR n TRIGGERS is for queries without a window; with one, the number of triggers is"
            " (window + lateness) / interval",
            "Leave FOR n TRIGGERS out.",
        )
    if not (isinstance(node, exp.Literal) and node.is_int and int(node.name) > 0):
        raise text.refuse(
            node,
            "FOR n TRIGGERS needs a whole number above 0",
            "Write, for example, FOR 96 TRIGGERS.",
        )
    return int(node.name)


def _check_divides(text: Text, clause: exp.Expr, emit: Emit, window: Window | None) -> None:
    """Every edge of a window lies on a trigger."""
    if emit.calendar is not None:
        return
    lengths = {"lateness": emit.lateness_us}
    if window is not None and not isinstance(window, Calendar):
        lengths = {"window": window.size_us, "hop": window.hop_us, **lengths}
    for name, length in lengths.items():
        if length % emit.interval_us:
            raise text.refuse(
                clause.this,
                f"The interval ({duration(emit.interval_us)}) does not divide the {name}"
                f" ({duration(length)})",
                f"Choose an interval that fits a whole number of times into the {name}.",
            )
    if isinstance(window, Calendar):
        start = missed(window, emit.interval_us, emit.span)
        if start is not None:
            local = "" if window.zone == "UTC" else f", {shown(start, 'UTC')} UTC"
            raise text.refuse(
                clause.this,
                f"The interval ({duration(emit.interval_us)}) misses boundaries of windows of"
                f" {length_text(window)}: one is at {shown(start, window.zone)}{local}, and fixed"
                " intervals count from 1970-01-01 UTC",
                "Choose INTERVAL 1 DAY, or one that divides"
                f" {duration(fitting(window, emit.span))}.",
            )


def _check_on_grid(text: Text, clause: exp.Expr, emit: Emit, zone: str) -> None:
    """FROM and TO are triggers."""
    for name, at in (("start", emit.start_us), ("stop", emit.stop_us)):
        assert at is not None
        if emit.calendar is None:
            below = at // emit.interval_us * emit.interval_us
            near = [at] if below == at else [below, below + emit.interval_us]
            grid = f"every {duration(emit.interval_us)}, counted from 1970-01-01 UTC"
        else:
            near = nearest(boundaries(emit.calendar, at - 1, at + 1)[0], at)
            near = [at] if at in near else near
            grid = f"every {length_text(emit.calendar)}"
        if near != [at]:
            raise text.refuse(
                clause.args[name],
                f"The {name} is not on the grid of triggers: one {grid}",
                f"The nearest are TIMESTAMP '{shown(near[0], zone)}' and TIMESTAMP"
                f" '{shown(near[1], zone)}'.",
            )


def _check_replay(
    text: Text, clause: exp.Expr, emit: Emit, window: Window | None, source: SourceDef
) -> None:
    """ON EVENT TIME is for finished history, from a public start."""
    if not source.bounded:
        follows = source.connector == "files"
        what = "connector 'files' with follow = true" if follows else f"{source.connector!r}"
        raise text.refuse(
            clause.args["event_time"],
            f"ON EVENT TIME replays finished history; the source {source.name} ({what}) is"
            " unbounded, so its triggers would depend on who sends records",
            "Leave ON EVENT TIME out to emit by the clock"
            + (
                ", or set follow = false."
                if follows
                else ", or replay files or, from Python, frames."
            ),
        )
    if window is None and emit.start_us is None:
        raise text.refuse(
            clause.args["event_time"],
            "Without a window the first trigger has no public event time",
            "Write ON EVENT TIME FROM TIMESTAMP '2024-01-01 00:00:00'; do not take it from the"
            " data.",
        )
    if window is not None and (emit.start_us is None or emit.stop_us is None):
        raise text.refuse(
            clause.args["event_time"],
            "Replaying history needs its public bounds",
            "Write ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-02-01'; do not take"
            " them from the data.",
        )
    if emit.start_us is not None and emit.stop_us is not None and emit.stop_us <= emit.start_us:
        raise text.refuse(
            clause.args["stop"], "The replay stops before it starts", "Give a later TO."
        )


def _timestamp_us(text: Text, node: exp.Expr | None, window: Window | None) -> int | None:
    """A moment; without a distance from UTC, by the clock of the window's zone."""
    if node is None:
        return None
    zone = window.zone if isinstance(window, Calendar) else "UTC"
    try:
        moment = datetime.fromisoformat(node.this.name)
    except ValueError:
        raise text.refuse(
            node,
            "The timestamp cannot be read",
            f"Write it as TIMESTAMP '2024-01-01 00:00:00' ({zone}).",
        ) from None
    if isinstance(window, Calendar) and not FIRST_YEAR <= moment.year < LAST_YEAR:
        raise text.refuse(
            node,
            f"Calendars reach from {FIRST_YEAR} to {LAST_YEAR - 1}",
            "Give a timestamp in between.",
        )
    if moment.tzinfo is None:
        return local_us(moment, zone)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
