"""Explain: the promise of a query and its cost, as numbers and in words.

The numbers of `explain`:

    nu           the whole output is nu-GDP, eligibility aside
    sensitivity  [s] of the mechanism: how far one contribution of size 1 moves the noisy sums, as
                 the length of E's longest column; caps and bounds are in sigma, not in here
    sigma        of the mechanism's normals, in units of the value
    quantum      totals and noise are whole multiples of it
    standard_deviation   of the released noise at each trigger of a window, sigma * b(i)
    thresholds   what a key's noisy number of units must reach at each trigger to be released
    spending     of failure_per_vote over the triggers, `even` or `late`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpsqlp.accounting.composition import compose
from dpsqlp.plan import Plan
from dpsqlp.sql.emit import duration
from dpsqlp.sql.overlap import shared_groups
from dpsqlp.sql.plan import standard_deviations
from dpsqlp.sql.query import Hop, Query
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
        }
    return {
        "epsilon": calibration.epsilon,
        "delta": calibration.delta,
        "nu": calibration.nu,
        "epsilon_gaussian": calibration.epsilon_gaussian,
        "epsilon_float": calibration.epsilon - calibration.epsilon_gaussian,
        "delta_gaussian": calibration.delta_gaussian,
        "delta_threshold": calibration.delta_threshold,
        "triggers": plan.triggers,
        "interval": duration(query.emit.interval_us),
        "clock": "event time" if query.emit.on_event_time else "processing time",
        "window": _window(query),
        "lateness": duration(query.emit.lateness_us) if query.emit.lateness_us else None,
        "unit": list(query.unit_names),
        "unit_period": None if query.period_us is None else duration(query.period_us),
        "keys": list(query.key_names),
        "public_keys": None if plan.public_keys is None else len(plan.public_keys),
        "release": plan.release,
        "caps": {
            "max_rows_contributed": plan.caps.records,
            "max_rows_per_group": plan.caps.records_per_key,
            "max_selections_contributed": plan.caps.selections,
        },
        "selection": selection,
        "columns": [
            {
                "name": calibrated.process.name,
                "kind": calibrated.process.kind,
                "bounds": [calibrated.process.lower, calibrated.process.upper],
                "noise": calibrated.purpose,
                "mechanism": query.mechanism,
                "sensitivity": mechanism.sensitivity,
                "sigma": calibrated.sigma,
                "quantum": calibrated.quantum,
                "standard_deviation": row.tolist(),
            }
            for calibrated, row in zip(calibration.processes, deviations, strict=True)
        ],
        "unprotected": _unprotected(query),
        "warnings": find_warnings(query),
        "fingerprint": plan.fingerprint.hex(),
    }


def _window(query: Query) -> dict[str, str] | None:
    if query.window is None:
        return None
    window = {"kind": "hop" if isinstance(query.window, Hop) else "tumble"}
    return window | {"size": duration(query.window.size_us), "hop": duration(query.window.hop_us)}


def explain_text(name: str, query: Query, plan: Plan) -> str:
    """The promise of one sink, in words."""
    paragraphs = [
        _promise(name, query, plan),
        _protected(query),
        _time(query, plan) + _arrival(query),
        _bounding(query, plan),
        _keys(query, plan),
        _columns(query, plan),
        _account(query, plan),
        *_unprotected(query),
        *find_warnings(query),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _unprotected(query: Query) -> list[str]:
    """Options that weaken the promise."""
    if query.source.options.get("expired") != "skip_unprotected":
        return []
    return [
        "NOT PROTECTED: expired = 'skip_unprotected' skips records that the brokers delete before"
        " they are read. Which records those are depends on how many records all units send. The"
        " promise holds as long as no unread record is deleted."
    ]


def explain_total(sinks: Sequence[tuple[str, Query, Plan]], folder: str) -> str:
    """The joint promise of several sinks, source by source; empty for a single sink.

    Sources that may read the same records count as one. Paths are relative to the folder.
    """
    groups: dict[tuple[object, ...], list[tuple[str, Query, Plan]]] = {}
    shared = shared_groups([query.source for _, query, _ in sinks], folder)
    for sink, group in zip(sinks, shared, strict=True):
        query = sink[1]
        groups.setdefault((group, query.unit_names, query.period_us), []).append(sink)
    lines = []
    for members in groups.values():
        if len(members) < 2:
            continue
        query = members[0][1]
        nu, epsilon, delta = compose([plan.calibration for _, _, plan in members])
        names = ", ".join(name for name, _, _ in members)
        sources = list(dict.fromkeys(member.source.name for _, member, _ in members))
        same = " (which may read the same records)" if len(sources) > 1 else ""
        lines.append(
            f"Together the sinks {names} over {', '.join(sources)}{same} are ({_number(epsilon)},"
            f" {_number(delta)})-DP for each {unit_text(query.unit_names, query.period_us)}:"
            f" nu^2 adds up to {_number(nu**2)}, the deltas add up."
        )
    if len(groups) > len(set(shared)):
        lines.append(
            "Some sinks over one source protect different units. Their joint promise for a person"
            " depends on how many of the smaller units a person has, and is not stated here."
        )
    return "\n".join(lines) + "\n" if lines else ""


def _promise(name: str, query: Query, plan: Plan) -> str:
    calibration = plan.calibration
    return (
        f"{name}: its whole output, over all groups, windows and triggers, is"
        f" ({_number(calibration.epsilon)}, {_number(calibration.delta)})-differentially private"
        f" for each {unit_text(query.unit_names, query.period_us)}, as long as the secret is kept"
        " and only one instance runs.\n"
        "Not protected: processing times, the parameters themselves, and any choice that was made"
        " by looking at the stream. Another pipeline over the same data spends again."
    )


def unit_text(names: Sequence[str], period_us: int | None) -> str:
    """The protected unit, in words."""
    unit = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return unit if period_us is None else f"{unit} in each period of {duration(period_us)}"


def _protected(query: Query) -> str:
    names = query.unit_names
    listed = names[0] if len(names) == 1 else f"({', '.join(names)})"
    what = "one value" if len(names) == 1 else "one combination"
    text = f"A unit is {what} of {listed}"
    if query.period_us is not None:
        period = duration(query.period_us)
        text += (
            f" in one period of {period} (UTC, by the row's own timestamp). The rows of {listed}"
            " over several periods are not protected as a whole: each period is a unit of its own,"
            " and the privacy losses add up"
        )
    text += ". All rows of a unit are protected together."
    if len(names) > 1:
        text += (
            f" The promise hides whether a {names[0]} occurs with one value of"
            f" {', '.join(names[1:])}. A {names[0]} is not protected as a whole: its other"
            " combinations are units of their own, and the privacy losses add up."
        )
    if "VARCHAR" in query.unit_types:
        name = names[query.unit_types.index("VARCHAR")]
        text += (
            f" Texts are compared byte by byte: 'u', 'U' and 'u ' are three units, each with bounds"
            f" of its own. If {name} can be written in several ways, normalise it in the FROM"
            f" clause: FROM (SELECT LOWER(TRIM({name})) AS {name}, ... FROM {query.source.name})."
        )
    return text + " Rows without a unit are dropped."


def _time(query: Query, plan: Plan) -> str:
    interval = duration(query.emit.interval_us)
    clock = "event time" if query.emit.on_event_time else "the clock"
    if query.window is None:
        return (
            f"There is one window for the whole stream, with {_triggers(plan)}, one every"
            f" {interval} by {clock}. After the last one the pipeline ends."
        )
    window = f"Windows of {duration(query.window.size_us)}"
    if isinstance(query.window, Hop):
        window += f", one every {duration(query.window.hop_us)}"
    late = query.emit.lateness_us
    closing = f"stay open for {duration(late)} after their end" if late else "close at their end"
    counted = (
        " A row that lies in several windows counts as several rows."
        if isinstance(query.window, Hop)
        else ""
    )
    return (
        f"{window} (UTC) {closing}. A trigger every {interval} by"
        f" {clock}, with or without rows: {_triggers(plan)} for each window. Rows outside"
        f" the open windows are dropped.{counted}"
    )


def _arrival(query: Query) -> str:
    """Which trigger a row belongs to."""
    if query.emit.on_event_time:
        return ""
    if query.source.connector != "python":
        return (
            " A row belongs to the first trigger that is due after the row arrived, however long"
            " triggers take."
        )
    return (
        " A row from Python belongs to the next call of trigger(), which has to follow the clock. A"
        " row of a streaming DataFrame belongs to the batch that Spark plans when the previous one"
        " has ended. There, a unit whose rows take long to process delays the rows of others: that"
        " is NOT PROTECTED."
    )


def _triggers(plan: Plan) -> str:
    return "1 trigger" if plan.triggers == 1 else f"{plan.triggers} triggers"


def _bounding(query: Query, plan: Plan) -> str:
    caps = plan.caps
    text = (
        f"At most {caps.records} rows of each unit count over the whole stream"
        f" (max_rows_contributed), and at most {caps.records_per_key} in one group and window"
        " (max_rows_per_group); further rows are dropped."
    )
    if query.period_us is not None:
        text = text.replace("over the whole stream", "in one period")
    if plan.public_keys is None:
        waiting = " that are not yet released" if plan.spares_votes else ""
        text += (
            f" A unit votes for at most {caps.selections} groups{waiting}"
            " (max_selections_contributed)."
        )
    return text


def _keys(query: Query, plan: Plan) -> str:
    selection = plan.calibration.selection
    if selection is None:
        number = len(plan.public_keys or ())
        groups = "There is one group" if not query.key_names else f"{number} groups are public"
        return f"{groups}, released at every trigger of every window, with or without rows."
    low, high = min(selection.thresholds), max(selection.thresholds)
    span = f"{low}" if low == high else f"{low} to {high}"
    after = (
        "From then on it is released at every trigger of its window."
        if plan.release == "every_trigger"
        else "Its count then starts again at 0, and it is not released until it is selected again."
    )
    least = "" if selection.minimum == 0 else f", and never with fewer than {selection.minimum + 1}"
    return (
        f"A group ({', '.join(query.key_names)}) is released once its number of units, with noise"
        f" of standard deviation {_span(plan, selection.sigma)}, reaches {span} (by trigger)"
        f"{least}. {after}"
    )


def _columns(query: Query, plan: Plan) -> str:
    lines = []
    for calibrated in plan.calibration.processes:
        process = calibrated.process
        bounds = (
            f", values clamped to [{process.lower:g}, {process.upper:g}]"
            if process.kind in ("sum", "squares")
            else ""
        )
        free = ", from the selection's noise at no further cost"
        cost = free if calibrated.purpose == "selection" else ""
        lines.append(
            f"  {process.name}: noise of standard deviation {_span(plan, calibrated.sigma)}"
            f"{bounds}{cost}"
        )
    if not lines:
        return "Only the groups themselves are released."
    return "\n".join(["Noise:", *lines])


def _span(plan: Plan, sigma: float) -> str:
    deviations = [sigma * math.sqrt(v) for v in plan.mechanism.variance]
    low, high = _number(min(deviations)), _number(max(deviations))
    return low if low == high else f"{low} to {high}"


def _account(query: Query, plan: Plan) -> str:
    calibration = plan.calibration
    spare = calibration.epsilon - calibration.epsilon_gaussian
    spending = {"even": "evenly over the triggers", "late": "mostly at the end of a window"}
    early = (
        f" + {_number(calibration.delta_threshold)} (groups released too early, spent"
        f" {spending[query.selection_spending]})"
    )
    return (
        f"Account: nu = {_number(calibration.nu)}; delta = {_number(calibration.delta_gaussian)}"
        f" (noise){early if calibration.selection else ''};"
        f" {_number(spare)} of epsilon is set aside for rounding in the noise."
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
