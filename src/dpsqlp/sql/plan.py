"""From a validated query to the core's plan: grids of public time, noise, thresholds.

Implements T = (window + lateness) / interval and the grids of windows and unit periods, counted in
emit intervals.

Privacy contract: a unit's state outlives every record that may still count against it. A record's
period comes from its own timestamp t; it is accepted while a window that contains t is open.
Windows start at multiples of the hop h, so the last one that contains a moment of the period
[np, (n+1)p) starts at most at (n+1)p - gcd(p, h), and closes a window and the lateness later.
Counted from the period's start that is p - gcd(p, h) and T intervals.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.calibrate import calibrate
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.plan import Plan, WindowSchedule
from dpsqlp.sql.query import Query


def make_plan(query: Query, mechanism: Mechanism | None = None) -> Plan:
    """Fit the mechanism, unless it is given, calibrate, and freeze.

    For a new pipeline only: a stored plan is read back, since a fit elsewhere may differ in its
    last digits.
    """
    mechanism = mechanism or fit_mechanism(query)
    calibration = calibrate(
        epsilon=query.epsilon,
        delta=query.delta,
        caps=query.caps,
        mechanism=mechanism,
        processes=query.processes,
        release=query.release,
        minimum=query.minimum,
        private_keys=query.public_keys is None,
        selection_share=query.selection_share,
        selection_spending=query.selection_spending,
        closing=query.closing,
    )
    return Plan(
        query=query.normal_form,
        unit_kinds=query.unit_kinds,
        key_kinds=query.key_kinds,
        windows=window_grid(query),
        periods=period_grid(query),
        release=query.release,
        caps=query.caps,
        mechanism=mechanism,
        calibration=calibration,
        public_keys=query.public_keys,
    )


def fit_mechanism(query: Query) -> Mechanism:
    """The mechanism that a query names, for its number of triggers."""
    return Tree(query.triggers) if query.mechanism == "tree" else fit_blt(query.triggers)


def window_grid(query: Query) -> WindowSchedule:
    """The windows, in emit intervals."""
    if query.window is None:
        return WindowSchedule(query.triggers, None)
    return WindowSchedule(query.triggers, query.window.hop_us // query.emit.interval_us)


def period_grid(query: Query) -> WindowSchedule | None:
    """The unit periods, in emit intervals; see the module for how long they stay open."""
    if query.period_us is None:
        return None
    assert query.window is not None, "a unit period needs a window"
    interval = query.emit.interval_us
    common = math.gcd(query.period_us, query.window.hop_us)
    return WindowSchedule(
        (query.period_us - common) // interval + query.triggers, query.period_us // interval
    )


def standard_deviations(plan: Plan) -> NDArray[np.float64]:
    """The deviation of each process's noise (rows) at each trigger 1..T, in units of the value."""
    sigmas = np.array([calibrated.sigma for calibrated in plan.calibration.processes])
    deviations: NDArray[np.float64] = np.outer(sigmas, np.sqrt(plan.mechanism.variance))
    return deviations
