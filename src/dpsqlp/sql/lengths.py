"""Lengths of time in SQL: intervals, and the windows of GROUP BY."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlglot import exp

from dpsqlp.sql.calendar import DAY_US, WEEKDAYS, is_zone
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import Calendar, CalendarUnit, Emit, Hop, Length, Tumble, Window

_SECOND = 10**6
_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": _SECOND,
    "MINUTE": 60 * _SECOND,
    "HOUR": 3600 * _SECOND,
    "DAY": DAY_US,
    "WEEK": 7 * DAY_US,
}
_ALIASES = {"MIN": "MINUTE", "SEC": "SECOND", "US": "MICROSECOND", "MS": "MILLISECOND"}
_TRUNCATED = ("SECOND", "MINUTE", "HOUR", "DAY")
_CALENDAR_MONTHS: dict[Fraction, CalendarUnit] = {
    Fraction(1): "month",
    Fraction(3): "quarter",
    Fraction(12): "year",
}
_IN_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SESSIONS = ("SESSION", "SESSION_START", "SESSIONIZE")


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A window of GROUP BY, its timestamp, and where its timestamp is put into a time zone."""

    window: Window
    timestamp: exp.Expr
    zoned: exp.Expr | None = None


def interval_us(text: Text, node: exp.Expr) -> int:
    """The length of a fixed, positive interval."""
    if not isinstance(node, exp.Interval):
        raise text.refuse(
            node, "An interval is expected here", "Write, for example, INTERVAL 15 MINUTES."
        )
    parts = _parts(node)
    total = Fraction(0)
    for amount, unit in parts or []:
        name = _unit(unit)
        if name in ("MONTH", "YEAR", "QUARTER", "DECADE", "CENTURY", "MILLENNIUM"):
            raise text.refuse(
                node,
                f"An interval in {name.lower()}s has no fixed length",
                "Give it in days or less, for example INTERVAL 30 DAYS. Windows may be one MONTH,"
                " QUARTER or YEAR.",
            )
        if name not in _UNITS:
            parts = None
            break
        total += amount * _UNITS[name]
    if not parts:
        raise text.refuse(
            node, "The interval cannot be read", "Write, for example, INTERVAL 15 MINUTES."
        )
    if total <= 0 or total.denominator != 1:
        raise text.refuse(
            node,
            "An interval is a positive whole number of microseconds",
            "Give a longer interval.",
        )
    return int(total)


def _parts(node: exp.Interval) -> list[tuple[Fraction, str]] | None:
    """(amount, unit) pairs: INTERVAL 1 DAY, INTERVAL '1' DAY, INTERVAL '1 day 2 hours'."""
    amount, unit = node.this, node.args.get("unit")
    if amount is None:
        return None
    words = str(amount.name).split()
    if isinstance(unit, exp.Var):
        words = [*words, unit.name]
    if not isinstance(amount, exp.Literal) or len(words) % 2 or not words:
        return None
    try:
        return [(Fraction(n), u) for n, u in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        return None


def _unit(word: str) -> str:
    word = word.upper()
    word = word[:-1] if word.endswith("S") and word not in _ALIASES else word
    return _ALIASES.get(word, word)


def length_of(text: Text, node: exp.Expr, beside: Window | None) -> Length:
    """A length in a calendar's items if it is one of them, else a fixed one. The calendar has the
    zone and the first day of the week of the window that the length is beside; beside fixed windows
    a week is 7 days, as theirs is.
    """
    if isinstance(beside, Calendar):
        return _calendar(node, beside.zone, beside.weekday) or interval_us(text, node)
    calendar = _calendar(node, "UTC", 0)
    if calendar is None or calendar.unit == "week":
        return interval_us(text, node)
    return calendar


def times_of(node: exp.Expr, calendar: Calendar) -> int | None:
    """How many items of a calendar an interval is; None if it is no whole number of them."""
    parts = _parts(node) if isinstance(node, exp.Interval) else None
    if parts is None or len(parts) != 1:
        return None
    amount, unit = parts[0][0], _unit(parts[0][1])
    one = {"day": "DAY", "week": "WEEK"}.get(calendar.unit)
    if one is None:
        times = amount * _IN_MONTHS.get(unit, 0) / _IN_MONTHS[calendar.unit.upper()]
    else:
        times = amount * _UNITS.get(unit, 0) / _UNITS[one]
    return int(times) if times > 0 and times.denominator == 1 else None


def _calendar(node: exp.Expr, zone: str, weekday: int) -> Calendar | None:
    """The calendar whose items are as long as an interval, if there is one."""
    parts = _parts(node) if isinstance(node, exp.Interval) else None
    if parts is None or len(parts) != 1:
        return None
    [(amount, word)] = parts
    unit = _unit(word)
    if unit in _IN_MONTHS and amount * _IN_MONTHS[unit] in _CALENDAR_MONTHS:
        return Calendar(_CALENDAR_MONTHS[amount * _IN_MONTHS[unit]], zone)
    if amount == 1 and unit == "WEEK":
        return Calendar("week", zone, weekday)
    if zone != "UTC" and unit in _UNITS and amount * _UNITS[unit] == DAY_US:
        return Calendar("day", zone)
    return None


def as_window(text: Text, node: exp.Expr) -> WindowCall | None:
    """The window that a grouping expression stands for; None if none."""
    if isinstance(node, exp.AtTimeZone):
        call = as_window(text, node.this)
        return None if call is None else _in_zone(text, call, node.args["zone"], None)
    call = _call(text, node)
    if call is not None and isinstance(call.timestamp, exp.AtTimeZone):
        inner = replace(call, timestamp=call.timestamp.this)
        return _in_zone(text, inner, call.timestamp.args["zone"], call.timestamp)
    return call


def _in_zone(text: Text, call: WindowCall, zone: exp.Expr, zoned: exp.Expr | None) -> WindowCall:
    """The window by the clock of a time zone, which the timestamp or the window is put into."""
    name = zone.name if isinstance(zone, exp.Literal) and zone.is_string else ""
    if not is_zone(name):
        raise text.refuse(
            zone,
            f"The time zone {name!r} is not known" if name else "A time zone is a text",
            "Write its name in the tz database, for example 'Europe/Berlin', or 'UTC'.",
        )
    window = call.window
    if call.zoned is not None or (isinstance(window, Calendar) and window.zone != "UTC"):
        raise text.refuse(zone, "The window has two time zones", "Leave one out.")
    if isinstance(window, Calendar):
        return WindowCall(replace(window, zone=name), call.timestamp, zoned)
    if name == "UTC":
        return WindowCall(window, call.timestamp, zoned)
    if window != Tumble(DAY_US):
        raise text.refuse(
            zone,
            "In a time zone, windows are days, weeks, months, quarters or years",
            "Leave AT TIME ZONE out: shorter windows are counted in UTC. For longer ones use, for"
            " example, TUMBLE(ts, INTERVAL 1 WEEK) AT TIME ZONE 'Europe/Berlin'.",
        )
    return WindowCall(Calendar("day", name), call.timestamp, zoned)


def _call(text: Text, node: exp.Expr) -> WindowCall | None:
    if isinstance(node, exp.Anonymous):
        name = str(node.this).upper()
        if name in _SESSIONS:
            raise text.refuse(
                node,
                "Session windows open and close by the data, so they cannot be protected",
                "Use TUMBLE(ts, INTERVAL ...) or HOP(ts, hop, size).",
            )
        if name == "TUMBLE":
            return _tumble(text, node)
        if name == "HOP":
            return _hop(text, node)
        if name == "TO_DATE" and len(node.expressions) == 1:
            return WindowCall(Tumble(DAY_US), node.expressions[0])
        return None
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        call = WindowCall(_truncation(text, node), node.this)
        zone = node.args.get("zone")
        return call if zone is None else _in_zone(text, call, zone, None)
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        is_date = node.to.this == exp.DType.DATE
        return WindowCall(Tumble(DAY_US), node.this) if is_date else None
    if isinstance(node, exp.Date | exp.TsOrDsToDate) and node.this is not None:
        return WindowCall(Tumble(DAY_US), node.this)
    return None


def _tumble(text: Text, node: exp.Anonymous) -> WindowCall:
    if len(node.expressions) != 2:
        raise text.refuse(
            node, "TUMBLE takes a timestamp and a size", "Write TUMBLE(ts, INTERVAL 1 DAY)."
        )
    timestamp, size = node.expressions
    if isinstance(size, exp.Interval) and isinstance(size.args.get("unit"), exp.Week):
        weekday = _weekday(text, size, size.args["unit"].this.name)
        if size.this is None or size.this.name != "1":
            raise text.refuse(
                size, "A window has one week", "Write TUMBLE(ts, INTERVAL 1 WEEK(SUNDAY))."
            )
        return WindowCall(Calendar("week", weekday=weekday), timestamp)
    calendar = _calendar(size, "UTC", 0)
    return WindowCall(Tumble(interval_us(text, size)) if calendar is None else calendar, timestamp)


def _hop(text: Text, node: exp.Anonymous) -> WindowCall:
    if len(node.expressions) != 3:
        raise text.refuse(
            node,
            "HOP takes a timestamp, a hop and a size",
            "Write HOP(ts, INTERVAL 1 HOUR, INTERVAL 1 DAY).",
        )
    timestamp, hop, size = node.expressions
    for length in (hop, size):
        if _calendar(length, "UTC", 0) not in (None, Calendar("week")):
            raise text.refuse(
                length,
                "Windows of a calendar do not overlap: HOP has fixed lengths",
                "Use TUMBLE(ts, INTERVAL 1 MONTH), or HOP(ts, INTERVAL 7 DAYS, INTERVAL 28 DAYS).",
            )
    window = Hop(size_us=interval_us(text, size), hop_us=interval_us(text, hop))
    if window.hop_us > window.size_us:
        raise text.refuse(
            node,
            "The hop is longer than the window, which would leave out records",
            "The order is HOP(ts, hop, size): exchange the two intervals.",
        )
    return WindowCall(window, timestamp)


def _truncation(text: Text, node: exp.TimestampTrunc | exp.DateTrunc) -> Tumble | Calendar:
    unit = node.args.get("unit")
    if isinstance(unit, exp.Week):
        return Calendar("week", weekday=_weekday(text, node, unit.this.name))
    name = _unit("" if unit is None else unit.name)
    if name in _TRUNCATED:
        return Tumble(_UNITS[name])
    if name in _IN_MONTHS:
        return Calendar(_CALENDAR_MONTHS[Fraction(_IN_MONTHS[name])])
    if name in ("WEEK", "ISOWEEK"):
        return Calendar("week")
    named = re.fullmatch(r"WEEK\((\w+)\)", name)
    if named:
        return Calendar("week", weekday=_weekday(text, node, named[1]))
    raise text.refuse(
        node,
        f"A window of a {name.lower()} is not supported",
        "Truncate to second, minute, hour, day, week, month, quarter or year, or use TUMBLE(ts,"
        " INTERVAL ...).",
    )


def _weekday(text: Text, node: exp.Expr, name: str) -> int:
    if name.upper() not in WEEKDAYS:
        raise text.refuse(
            node, f"There is no day {name}", "Write, for example, DATE_TRUNC('week(sunday)', ts)."
        )
    return WEEKDAYS.index(name.upper())


def lateness_text(emit: Emit) -> str | None:
    """How long windows stay open after their end, in words."""
    if not emit.lateness_us:
        return None
    if emit.calendar is None:
        return duration(emit.lateness_us)
    times = emit.late_triggers
    return f"{times} {emit.calendar.unit}{'' if times == 1 else 's'}"


def size_text(window: Window) -> str:
    """The length of a window in words."""
    return length_text(window if isinstance(window, Calendar) else window.size_us)


def length_text(length: Length) -> str:
    """A length in words."""
    if isinstance(length, int):
        return duration(length)
    day = WEEKDAYS[length.weekday].capitalize()
    start = f" from {day}" if length.unit == "week" else ""
    return f"1 {length.unit}{start}" + ("" if length.zone == "UTC" else f" ({length.zone})")


def duration(us: int) -> str:
    """A length of time in words, exactly."""
    for name in ("DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"):
        count, rest = divmod(us, _UNITS[name])
        if not rest:
            return f"{count} {name.lower()}{'' if count == 1 else 's'}"
    raise AssertionError("microseconds divide everything")
