"""Explain: the promise of a query and its cost, as numbers. `explain_text` has the words.

The numbers of `explain`:

    nu           the whole output is nu-GDP, eligibility aside
    sensitivity  [s] of the mechanism: how far one contribution of size 1 moves the noisy sums, as
                 the length of E's longest column; caps and bounds are in sigma, not in here
    sigma        of the mechanism's normals, in units of the value
    quantum      totals and noise are whole multiples of it
    standard_deviation   of the released noise at each trigger of a window, sigma * b(i)
    thresholds   what a key's noisy number of units must reach at each trigger to be released
    units_needed   with so many votes a key is selected at that trigger with probability 1/2, and
                 with 0.99: at the first, the middle and the last trigger of a window
    spending     of failure_per_vote over the triggers, `even` or `late`
    max_contribution_norm   with all caps: the root of the largest sum of the squares of a unit's
                 numbers of rows per (group, window)
    center       what values are counted from; squares lose half of the largest one in addition
    edges        of the bins of a histogram, each of which has noise of its own
    coarse       so many bins side by side also have a total together; 0 without
    contribution_max   [L] the largest size of what one row adds, to all bins together
    closing      `threshold` for what units lay on a group, in deviations of its noise, as
                 `weights_max[m - 1]`, the most that a unit lays on each of m groups
    no_closing   why there is none
    shorter_windows   what differs in windows with fewer triggers than the longest, of a calendar
    diagnostics  `share` of nu^2 and, for each number of the second table, the most that one unit
                 adds to it over all windows, `counted_max`

delta = delta_gaussian + delta_votes + delta_closing; delta_threshold is the sum of the last two.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from dpsqlp.accounting.model import DIAGNOSTICS
from dpsqlp.plan import Plan, WindowNoise
from dpsqlp.sql.lengths import duration, lateness_text, length_text, size_text
from dpsqlp.sql.plan import diagnostics_deviations, standard_deviations
from dpsqlp.sql.query import Hop, Query, no_closing
from dpsqlp.sql.warnings import find_warnings


def explain(query: Query, plan: Plan) -> dict[str, Any]:
    """Every number of the promise, as plain values."""
    calibration = plan.calibration
    mechanism = plan.mechanism
    deviations = standard_deviations(plan)
    selection = None
    if calibration.selection is not None:
        chosen = calibration.selection
        selection = {
            "mechanism": query.mechanism,
            "sensitivity": mechanism.sensitivity,
            "sigma": chosen.sigma,
            "delta_gaussian": calibration.delta_gaussian,
            "delta_threshold": calibration.delta_threshold,
            "failure_per_vote": chosen.failure,
            "spending": query.selection_spending,
            "min_privacy_units_per_group": chosen.minimum + 1,
            "standard_deviation": [chosen.sigma * math.sqrt(v) for v in mechanism.variance],
            "thresholds": list(chosen.thresholds),
            "units_needed": units_needed(plan),
        }
    return {
        "epsilon": calibration.epsilon,
        "delta": calibration.delta,
        "nu": calibration.nu,
        "epsilon_gaussian": calibration.epsilon_gaussian,
        "epsilon_float": calibration.epsilon - calibration.epsilon_gaussian,
        "delta_gaussian": calibration.delta_gaussian,
        "delta_votes": calibration.delta_threshold - _closing_failure(plan),
        "delta_closing": _closing_failure(plan),
        "delta_threshold": calibration.delta_threshold,
        "triggers": plan.triggers,
        "interval": length_text(query.emit.calendar or query.emit.interval_us),
        "clock": "event time" if query.emit.on_event_time else "processing time",
        "window": _window(query),
        "lateness": lateness_text(query.emit),
        "unit": list(query.unit_names),
        "unit_period": None if query.period is None else length_text(query.period),
        "keys": list(query.key_names),
        "public_keys": None if plan.public_keys is None else len(plan.public_keys),
        "release": plan.release,
        "caps": {
            "max_contribution_norm": math.sqrt(plan.caps.squared_norm),
            "max_rows_contributed": plan.caps.records,
            "max_rows_per_group": plan.caps.records_per_key,
            "max_selections_contributed": plan.caps.selections,
        },
        "selection": selection,
        "closing": _closing(plan),
        "no_closing": why_no_closing(query, plan),
        "columns": [
            {
                "name": calibrated.process.name,
                "kind": calibrated.process.kind,
                "bounds": [calibrated.process.lower, calibrated.process.upper],
                "center": calibrated.process.center,
                "edges": list(calibrated.process.edges),
                "coarse": calibrated.process.coarse,
                "contribution_max": calibrated.process.bound,
                "noise": calibrated.purpose,
                "mechanism": query.mechanism,
                "sensitivity": mechanism.sensitivity,
                "sigma": calibrated.sigma,
                "quantum": calibrated.quantum,
                "standard_deviation": row.tolist(),
            }
            for calibrated, row in zip(calibration.processes, deviations, strict=True)
        ],
        "shorter_windows": [_shorter(noise) for noise in plan.shorter],
        "diagnostics": _diagnostics(plan),
        "unprotected": find_unprotected(query),
        "warnings": find_warnings(query),
        "fingerprint": plan.fingerprint.hex(),
    }


def _shorter(noise: WindowNoise) -> dict[str, Any]:
    """What differs in windows with fewer triggers."""
    selection, mechanism = noise.calibration.selection, noise.mechanism
    return {
        "triggers": mechanism.triggers,
        "sensitivity": mechanism.sensitivity,
        "selection": None
        if selection is None
        else {
            "sigma": selection.sigma,
            "standard_deviation": [selection.sigma * math.sqrt(v) for v in mechanism.variance],
            "thresholds": list(selection.thresholds),
        },
        "columns": [
            {"name": calibrated.process.name, "sigma": calibrated.sigma}
            | {"standard_deviation": row.tolist()}
            for calibrated, row in zip(
                noise.calibration.processes, standard_deviations(noise), strict=True
            )
        ],
    }


def units_needed(plan: Plan) -> list[dict[str, int]]:
    """How many units select a group, as far as the noise tells: the smallest that will show."""
    selection = plan.calibration.selection
    if selection is None:
        return []
    far = NormalDist().inv_cdf(0.99)
    needed = []
    for trigger in sorted({1, (plan.triggers + 1) // 2, plan.triggers}):
        exact = selection.thresholds[trigger - 1] - 0.5  # noise is rounded to whole units
        deviation = selection.sigma * math.sqrt(plan.mechanism.variance[trigger - 1])
        half, sure = (
            max(selection.minimum + 1, math.ceil(exact + more)) for more in (0.0, far * deviation)
        )
        needed.append({"trigger": trigger, "half": half, "sure": sure})
    return needed


def _window(query: Query) -> dict[str, str] | None:
    if query.window is None:
        return None
    size = size_text(query.window)
    if isinstance(query.window, Hop):
        return {"kind": "hop", "size": size, "hop": duration(query.window.hop_us)}
    return {"kind": "tumble", "size": size, "hop": size}


def _closing(plan: Plan) -> dict[str, Any] | None:
    closing = plan.calibration.closing
    if closing is None:
        return None
    return {
        "threshold": closing.threshold * closing.quantum,
        "failure": closing.failure,
        "keys_max": len(closing.weights_max),
        "weights_max": [weight * closing.quantum for weight in closing.weights_max],
        "budget": closing.budget,
        "vote_cost": closing.vote_cost,
        "square_cost": closing.square_cost,
        "quantum": closing.quantum,
    }


def _diagnostics(plan: Plan) -> dict[str, Any] | None:
    told = plan.calibration.diagnostics
    if told is None:
        return None
    return {
        "share": told.share,
        "numbers": [
            {
                "name": name,
                "counted_max": most,
                "sigma": sigma,
                "standard_deviation": row.tolist(),
            }
            for name, most, sigma, row in zip(
                DIAGNOSTICS,
                told.counted_max,
                told.sigmas,
                diagnostics_deviations(plan),
                strict=True,
            )
        ],
    }


def _closing_failure(plan: Plan) -> float:
    closing = plan.calibration.closing
    return 0.0 if closing is None else closing.failure


def why_no_closing(query: Query, plan: Plan) -> str | None:
    """Why windows do not end with a closing, in words; None if they do."""
    if plan.calibration.closing is not None:
        return None
    obstacle = no_closing(query.release, query.public_keys, query.window, query.period)
    if obstacle is None and not query.closing:
        return "it is switched off"
    return obstacle or "a unit's first vote and row use up all that a unit has"


def find_unprotected(query: Query) -> list[str]:
    """Options that weaken the promise."""
    if query.source.options.get("expired") != "skip_unprotected":
        return []
    return [
        "NOT PROTECTED: expired = 'skip_unprotected' skips records that the brokers delete before"
        " they are read. Which records those are depends on how many records all units send. The"
        " promise holds as long as no unread record is deleted."
    ]
