"""From a validated query to the core's plan: grids of public time, noise, thresholds.

Implements T = (window + lateness) / interval and the grids of windows and unit periods, counted in
triggers: emit intervals, or a calendar's boundaries. A calendar becomes a table here, and for
windows and periods the time zone database is asked nowhere else.

Privacy contract: a unit's state outlives every record that may still count against it. A record's
period comes from its own timestamp t; it is accepted while a window that contains t is open.
Fixed windows start at multiples of the hop h, so the last one that contains a moment of the period
[np, (n+1)p) starts at most at (n+1)p - gcd(p, h), and closes a window and the lateness later.
Counted from the period's start that is p - gcd(p, h) and T intervals. With a calendar, the last
such window is looked up.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.calibrate import calibrate, calibrate_shorter
from dpsqlp.errors import PlanError
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.plan import Plan, WindowNoise
from dpsqlp.schedule import CalendarSchedule, Schedule, WindowSchedule
from dpsqlp.sql.calendar import YEAR_US, YEARS, boundaries, longest_us, shown
from dpsqlp.sql.query import Calendar, Query


def make_plan(
    query: Query, mechanism: Mechanism | None = None, *, created: int | None = None
) -> Plan:
    """Fit the mechanisms, unless that of the longest windows is given, calibrate, and freeze.

    For a new pipeline only: a stored plan is read back, since a fit elsewhere may differ in its
    last digits. By the clock, a calendar's table begins with the pipeline: now, unless it is given.
    """
    windows = window_grid(query, created)
    *others, triggers = windows.lengths
    longest = mechanism or fit_mechanism(query, triggers)
    shorter = [fit_mechanism(query, other) for other in others]
    calibration = calibrate(
        epsilon=query.epsilon,
        delta=query.delta,
        caps=query.caps,
        mechanism=longest,
        processes=query.processes,
        release=query.release,
        minimum=query.minimum,
        private_keys=query.public_keys is None,
        selection_share=query.selection_share,
        selection_spending=query.selection_spending,
        closing=query.closing,
        shorter=shorter,
        diagnostics_share=query.diagnostics_share,
    )
    spending = query.selection_spending
    return Plan(
        query=query.normal_form,
        unit_kinds=query.unit_kinds,
        key_kinds=query.key_kinds,
        windows=windows,
        periods=period_grid(query, windows, created),
        release=query.release,
        caps=query.caps,
        mechanism=longest,
        calibration=calibration,
        public_keys=query.public_keys,
        shorter=tuple(
            WindowNoise(other, calibrate_shorter(calibration, longest, other, spending))
            for other in shorter
        ),
    )


def fit_mechanism(query: Query, triggers: int) -> Mechanism:
    """The mechanism that a query names, for a number of triggers."""
    return Tree(triggers) if query.mechanism == "tree" else fit_blt(triggers)


def window_grid(query: Query, created: int | None = None) -> Schedule:
    """The windows, in triggers."""
    window, emit = query.window, query.emit
    if window is None:
        assert emit.triggers is not None
        return WindowSchedule(emit.triggers)
    if not isinstance(window, Calendar):
        size = window.size_us // emit.interval_us
        return WindowSchedule(size + emit.late_triggers, window.hop_us // emit.interval_us)
    start, stop = _span(query, created)
    starts, local = boundaries(window, start - _lateness_us(query), stop)
    times = _times(query, starts)
    edges = [_trigger_at(query, start, times) for start in starts]
    ends = tuple(edge + emit.late_triggers for edge in edges[1:])
    return CalendarSchedule(starts, local, tuple(edges[:-1]), ends, times)


def period_grid(query: Query, windows: Schedule, created: int | None = None) -> Schedule | None:
    """The unit periods, in triggers; see the module for how long they stay open."""
    period, window, emit = query.period, query.window, query.emit
    if period is None:
        return None
    assert window is not None, "a unit period needs a window"
    if period == window:
        return windows
    if isinstance(period, Calendar):
        return _calendar_periods(query, period, windows, created)
    hop = 1 if isinstance(window, Calendar) else window.hop_us // emit.interval_us
    stride = period // emit.interval_us
    common = 0 if isinstance(window, Calendar) else math.gcd(stride, hop)
    return WindowSchedule(stride - common + windows.triggers, stride)


def standard_deviations(noise: Plan | WindowNoise) -> NDArray[np.float64]:
    """The deviation of each process's noise (rows) at each trigger 1..T, in units of the value.
    Those of a plan are of its longest windows.
    """
    sigmas = np.array([calibrated.sigma for calibrated in noise.calibration.processes])
    deviations: NDArray[np.float64] = np.outer(sigmas, np.sqrt(noise.mechanism.variance))
    return deviations


def diagnostics_deviations(noise: Plan | WindowNoise) -> NDArray[np.float64]:
    """The deviation of the noise of each number of diagnostics (rows) at each trigger 1..T. Those
    of a plan are of its longest windows.
    """
    told = noise.calibration.diagnostics
    sigmas = np.array([] if told is None else told.sigmas)
    deviations: NDArray[np.float64] = np.outer(sigmas, np.sqrt(noise.mechanism.variance))
    return deviations


def _calendar_periods(
    query: Query, period: Calendar, windows: Schedule, created: int | None
) -> CalendarSchedule:
    """Periods of a calendar that is not that of the windows."""
    window, emit = query.window, query.emit
    times = None
    if isinstance(windows, CalendarSchedule):
        first, last, times = windows.starts[0], windows.starts[-1], windows.times
    else:
        assert window is not None
        assert not isinstance(window, Calendar)
        start, stop = _span(query, created)
        first, last = start - window.size_us - emit.lateness_us, stop + window.size_us
    starts, local = boundaries(period, first, last)

    def closes(moment: int) -> int:
        """The last trigger of the last window that contains a moment."""
        if isinstance(windows, CalendarSchedule):
            at = bisect_right(windows.starts, moment) - 1
            return windows.ends[min(at, len(windows.ends) - 1)]
        assert windows.stride is not None
        return moment // emit.interval_us // windows.stride * windows.stride + windows.triggers

    return CalendarSchedule(
        starts,
        local,
        tuple(_trigger_at(query, start, times) for start in starts[:-1]),
        tuple(closes(start - 1) for start in starts[1:]),
        times,
    )


def _span(query: Query, created: int | None) -> tuple[int, int]:
    """The time that a calendar's table must have: what is replayed, or so many years to come."""
    if query.emit.on_event_time:
        assert query.emit.span is not None, "a replay in windows has both ends"
        return query.emit.span
    start = time.time_ns() // 1000 if created is None else created
    return start, start + YEARS * YEAR_US


def _lateness_us(query: Query) -> int:
    """No window stays open for longer after its end."""
    calendar = query.emit.calendar
    if calendar is None:
        return query.emit.lateness_us
    return query.emit.late_triggers * longest_us(calendar)


def _times(query: Query, starts: Sequence[int]) -> tuple[int, ...] | None:
    """The times of triggers on a calendar, which begin before the unit period that the first window
    lies in, and end after the last window is closed.
    """
    calendar = query.emit.calendar
    if calendar is None:
        return None
    before = longest_us(query.period) if isinstance(query.period, Calendar) else 0
    after = _lateness_us(query) + longest_us(calendar)
    return boundaries(calendar, starts[0] - before, starts[-1] + after)[0]


def _trigger_at(query: Query, moment: int, times: Sequence[int] | None) -> int:
    """The number of the trigger at a moment."""
    if times is None:
        trigger, rest = divmod(moment, query.emit.interval_us)
    else:
        trigger = bisect_left(times, moment)
        rest = times[trigger] - moment
    if rest:
        raise PlanError(
            f"No trigger is at {shown(moment, 'UTC')} UTC, where a window or a unit period begins."
            " Emit at an interval that divides an hour, or every day."
        )
    return trigger
