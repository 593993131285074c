"""Calendars: days, weeks, months, quarters and years in a time zone, as tables of moments.

A calendar becomes a table once, when the plan is made. The plan keeps the table, so nobody asks a
time zone database afterwards: neither an engine nor a later version of this one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

if TYPE_CHECKING:
    from dpsqlp.sql.query import Calendar

DAY_US = 86_400 * 10**6
YEAR_US = 1461 * DAY_US // 4
YEARS = 20  # by the clock, a table reaches this far from the pipeline's creation
WEEKDAYS = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")
FIRST_YEAR, LAST_YEAR = 1900, 2200  # time zones before and after are not known
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_LONGEST_DAYS = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
_SPAN_YEARS_PROBED = (2000, 2045)


def is_zone(name: str) -> bool:
    """Whether a time zone has this name on every machine."""
    return name == "UTC" or ("/" in name and name in available_timezones())


def boundaries(
    calendar: Calendar, start: int, stop: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first moments of the calendar's items that reach from one moment to another, and of the
    next item; and what the zone's clock shows then, as if that were UTC. A day that the zone left
    out has no item.
    """
    zone = ZoneInfo(calendar.zone)
    moments: list[int] = []
    local: list[int] = []
    for day in _days(calendar, _date(zone, start)):
        moment = _midnight(day, zone)
        if moments and moment == moments[-1]:
            local[-1] = _days_us(day)
            continue
        if len(moments) > 1 and moments[1] <= start:  # the first item is over
            del moments[0], local[0]
        moments.append(moment)
        local.append(_days_us(day))
        if moment >= stop and len(moments) > 1:
            break
    if moments[1] <= start:
        del moments[0], local[0]
    return tuple(moments), tuple(local)


def nominal_us(calendar: Calendar) -> int:
    """The length of the longest items, if no day is longer than 24 hours."""
    return _LONGEST_DAYS[calendar.unit] * DAY_US


def longest_us(calendar: Calendar) -> int:
    """No item is longer."""
    return nominal_us(calendar) + (0 if calendar.zone == "UTC" else DAY_US)


def nests(calendar: Calendar, inner: Calendar) -> bool:
    """Whether every item of the inner calendar lies in one item of the other."""
    if calendar.zone != inner.zone:
        return False
    if inner.unit == "week" or calendar.unit == "week":
        return inner.unit == "day" or calendar == inner
    return inner.unit == "day" or (
        calendar.unit != "day" and _MONTHS[calendar.unit] % _MONTHS[inner.unit] == 0
    )


def missed(calendar: Calendar, interval: int, span: tuple[int, int] | None) -> int | None:
    """The first boundary that is no multiple of an interval since the epoch; None if all are.
    Without a span, in the decades around now.
    """
    first, last = (
        (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
        for year in _SPAN_YEARS_PROBED
    )
    starts, _ = boundaries(calendar, *(span or (first, last)))
    return next((start for start in starts if start % interval), None)


def fitting(calendar: Calendar, span: tuple[int, int] | None) -> int:
    """The longest interval that divides a day and misses no boundary."""
    interval = DAY_US
    while (start := missed(calendar, interval, span)) is not None:
        interval = math.gcd(interval, start)
    return interval


def nearest(times: Sequence[int], moment: int) -> list[int]:
    """The times before and after a moment."""
    at = bisect_left(times, moment)
    return list(times[max(at - 1, 0) : at + 1])


def local_us(moment: datetime, zone: str) -> int:
    """The moment at which the zone's clock shows a time, which has no zone of its own."""
    return _since_epoch(moment.replace(tzinfo=ZoneInfo(zone)))


def shown(moment: int, zone: str) -> str:
    """A moment on the zone's clock, with its distance from UTC where there is one."""
    at = (_EPOCH + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone))
    return str(at.replace(tzinfo=None) if zone == "UTC" else at)


def _days(calendar: Calendar, day: date) -> Iterator[date]:
    """The first days of items, from one that is surely over before the day."""
    if calendar.unit == "day":
        first, step = day - timedelta(days=3), timedelta(days=1)
    elif calendar.unit == "week":
        first = day - timedelta(days=(day.weekday() - calendar.weekday) % 7 + 7)
        step = timedelta(days=7)
    else:
        months = _MONTHS[calendar.unit]
        number = (12 * day.year + day.month - 1) // months - 1
        while True:
            yield date(number * months // 12, number * months % 12 + 1, 1)
            number += 1
    while True:
        yield first
        first += step


def _date(zone: ZoneInfo, moment: int) -> date:
    return (_EPOCH + timedelta(microseconds=moment)).astimezone(zone).date()


def _midnight(day: date, zone: ZoneInfo) -> int:
    """The first moment of a day. Where the clock jumps over midnight, it is that of the jump."""
    at = _since_epoch(datetime(day.year, day.month, day.day, tzinfo=zone))
    if _date(zone, at - 1) < day:
        return at
    earlier = at - DAY_US
    while at - earlier > 1:  # the jump began before midnight
        middle = (at + earlier) // 2
        at, earlier = (middle, earlier) if _date(zone, middle) >= day else (at, middle)
    return at


def _since_epoch(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _days_us(day: date) -> int:
    return (day - _EPOCH.date()).days * DAY_US
