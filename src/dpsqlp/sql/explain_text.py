"""Explain: the promise of a query and its cost, in words. `explain` has the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dpsqlp.accounting.composition import compose
from dpsqlp.accounting.model import ContributionBounds, Process
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule
from dpsqlp.sql.calendar import shown
from dpsqlp.sql.explain import find_unprotected, units_needed, why_no_closing
from dpsqlp.sql.lengths import duration, lateness_text, length_text, size_text
from dpsqlp.sql.overlap import shared_groups
from dpsqlp.sql.query import Calendar, Hop, Query
from dpsqlp.sql.warnings import find_warnings


def explain_text(name: str, query: Query, plan: Plan) -> str:
    """The promise of one sink, in words."""
    paragraphs = [
        _promise(name, query, plan),
        _protected(query),
        _time(query, plan) + _arrival(query),
        _bounding(query, plan),
        _keys(query, plan),
        *_closing(query, plan),
        _columns(query, plan),
        *_last_release(query, plan),
        *_diagnostics(name, query, plan),
        _account(query, plan),
        *find_unprotected(query),
        *find_warnings(query),
    ]
    return "\n\n".join(paragraphs) + "\n"


def explain_total(sinks: Sequence[tuple[str, Query, Plan]], folder: str) -> str:
    """The joint promise of several sinks, source by source; empty for a single sink.

    Sources that may read the same records count as one. Paths are relative to the folder.
    """
    groups: dict[tuple[object, ...], list[tuple[str, Query, Plan]]] = {}
    shared = shared_groups([query.source for _, query, _ in sinks], folder)
    for sink, group in zip(sinks, shared, strict=True):
        query = sink[1]
        groups.setdefault((group, query.unit_names, query.period), []).append(sink)
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
            f" {_number(delta)})-DP for each {unit_text(query.unit_names, period_text(query))}:"
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
        f" for each {unit_text(query.unit_names, period_text(query))}, as long as the secret is"
        " kept and only one instance runs.\n"
        "Not protected: processing times, the parameters themselves, and any choice that was made"
        " by looking at the stream. Another pipeline over the same data spends again."
    )


def unit_text(names: Sequence[str], period: str | None) -> str:
    """The protected unit, in words."""
    unit = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return unit if period is None else f"{unit} in each period of {period}"


def period_text(query: Query) -> str | None:
    """The unit period, in words."""
    return None if query.period is None else length_text(query.period)


def _protected(query: Query) -> str:
    names = query.unit_names
    listed = names[0] if len(names) == 1 else f"({', '.join(names)})"
    what = "one value" if len(names) == 1 else "one combination"
    text = f"A unit is {what} of {listed}"
    if query.period is not None:
        by = "by the row's own timestamp"
        by = f", {by}" if _in_zone(query.period) else f" (UTC, {by})"
        text += (
            f" in one period of {period_text(query)}{by}. The rows of {listed} over several"
            " periods are not protected as a whole: each period is a unit of its own, and the"
            " privacy losses add up"
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
    interval = length_text(query.emit.calendar or query.emit.interval_us)
    clock = "event time" if query.emit.on_event_time else "the clock"
    if query.window is None:
        return (
            f"There is one window for the whole stream, with {_triggers(plan)}, one every"
            f" {interval} by {clock}. After the last one the pipeline ends."
        )
    window = f"Windows of {size_text(query.window)}"
    if isinstance(query.window, Hop):
        window += f", one every {duration(query.window.hop_us)}"
    late = lateness_text(query.emit)
    closing = f"stay open for {late} after their end" if late else "close at their end"
    counted = (
        " A row that lies in several windows counts as several rows."
        if isinstance(query.window, Hop)
        else ""
    )
    utc = "" if _in_zone(query.window) else " (UTC)"
    return (
        f"{window}{utc} {closing}. A trigger every {interval} by"
        f" {clock}, with or without rows: {_triggers(plan)} for each window. Rows outside"
        f" the open windows are dropped.{counted}{_calendar(query, plan)}"
    )


def _in_zone(length: object) -> bool:
    """Whether the words for a length name a time zone."""
    return isinstance(length, Calendar) and length.zone != "UTC"


def _calendar(query: Query, plan: Plan) -> str:
    """What is fixed when a pipeline with a calendar begins."""
    if not isinstance(plan.windows, CalendarSchedule):
        return ""
    zone = query.window.zone if isinstance(query.window, Calendar) else "UTC"
    end = shown(plan.windows.starts[-1], zone)
    text = f" The calendar's table is part of the plan. It ends at {end}."
    if len(plan.windows.lengths) > 1:
        text += (
            f" Numbers by trigger are those of the longest windows, of {plan.triggers} triggers;"
            " explain --json has those of the others."
        )
    return text


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
    few, many = plan.windows.lengths[0], plan.triggers
    if few < many:
        return f"{few} to {many} triggers"
    return "1 trigger" if many == 1 else f"{many} triggers"


def _bounding(query: Query, plan: Plan) -> str:
    """What one unit may contribute, and vote for."""
    caps = plan.caps
    stream = "over the whole stream" if query.period is None else "in one period"
    rows = min(caps.records_per_key, math.isqrt(caps.squared_norm))
    free = ""
    if query.counts_units_alone:
        rows = caps.squared_norm
        text = f"Each unit counts once in a {_group(query)}, in at most {rows} {stream}."
        free = ", and use up nothing"
    elif not query.key_names and query.window is None:
        text = f"Of each unit's rows, at most {rows} may count {stream}."
    else:
        text = _budget(caps, stream, _group(query))
    text += f" Further rows are dropped{free}."
    if any(p.process.kind != "distinct" for p in plan.calibration.processes):
        text += " The noise of values is proportional to the norm."
    if plan.public_keys is None:
        one = caps.selections == 1
        groups = "one group" if one else f"{caps.selections} groups"
        if plan.spares_votes:
            groups += f" that {'is' if one else 'are'} not yet released"
        text += f" A unit votes for at most {groups} (max_selections_contributed)."
    return text


def _group(query: Query) -> str:
    """What a unit's rows are counted by."""
    if not query.key_names:
        return "window"
    return "group" if query.window is None else "group and window"


def _budget(caps: ContributionBounds, stream: str, group: str) -> str:
    """The norm, two ways to use it up, and the caps that bind a unit within it."""
    further = []
    if caps.records < caps.squared_norm:
        further.append(f"{caps.records} rows in all (max_rows_contributed)")
    if caps.records_per_key < min(caps.records, math.isqrt(caps.squared_norm)):
        further.append(f"{caps.records_per_key} per {group} (max_rows_per_group)")
    implied = ContributionBounds(caps.records, caps.records_per_key, 1).squared_norm
    by_caps = further and caps.squared_norm == implied
    given_by = "all that the further caps allow" if by_caps else "max_contribution_norm"
    sentences = [
        f"Each unit has a budget for its rows: {stream}, the squares of its numbers of rows per"
        f" {group} add up to at most {caps.squared_norm}, the square of a norm of"
        f" {_number(math.sqrt(caps.squared_norm))} ({given_by}).",
        _examples(caps, group.partition(" ")[0]),
    ]
    if further:
        sentences.append(f"Further caps: {', '.join(further)}.")
    return " ".join(sentences)


def _examples(caps: ContributionBounds, place: str) -> str:
    """One row in each of many places, and several rows in each of a few."""
    squares = caps.squared_norm
    some = min(max(2, math.isqrt(squares // 4)), caps.records_per_key, math.isqrt(squares))
    ways = {1: min(squares, caps.records), some: min(squares // some**2, caps.records // some)}
    places = [
        f"{'one row' if rows == 1 else f'{rows} rows'} in"
        f" {f'each of {number} {place}s' if number > 1 else f'one {place}'}"
        for rows, number in ways.items()
    ]
    return f"For example, it may have {', or '.join(places)}."


def _keys(query: Query, plan: Plan) -> str:
    selection = plan.calibration.selection
    if selection is None:
        number = len(plan.public_keys or ())
        groups = "There is one group" if not query.key_names else f"{number} groups are public"
        return f"{groups}, released at every trigger of every window, with or without rows."
    after = (
        "From then on it is released at every trigger of its window."
        if plan.release == "every_trigger"
        else "Its count then starts again at 0, and it is not released until it is selected again."
    )
    least = "" if selection.minimum == 0 else f", and never with fewer than {selection.minimum + 1}"
    return (
        f"A group ({', '.join(query.key_names)}) is released once its number of units, with noise"
        f" of standard deviation {_deviations(plan, selection.sigma)}, reaches"
        f" {_by_trigger(selection.thresholds, str)}{least}. {after}\n{_smallest(plan)}"
    )


def _smallest(plan: Plan) -> str:
    """The smallest group that will show."""
    lines = ["Units that select a group, once they have voted for it:"]
    for needed in units_needed(plan):
        number = needed["trigger"]
        place = "last trigger" if number == plan.triggers > 1 else f"trigger {number}"
        lines.append(
            f"  {place}: {needed['half']} with probability 1/2, {needed['sure']} with probability"
            " 0.99"
        )
    return "\n".join(lines)


def _closing(query: Query, plan: Plan) -> list[str]:
    """Whether a window ends with a closing, and what it does."""
    closing, selection = plan.calibration.closing, plan.calibration.selection
    if selection is None:
        return []
    windows = "The window ends" if query.window is None else "A window ends"
    if closing is None:
        return [
            f"{windows} without a closing (group_selection_closing): {why_no_closing(query, plan)}."
            " What units have not spent by then is not used."
        ]
    units = math.ceil(closing.threshold / closing.weights_max[0])
    least = "" if selection.minimum == 0 else f" of at least {selection.minimum + 1} units"
    return [
        f"{windows} with a closing (group_selection_closing): at the last trigger, what units have"
        " not spent on rows and votes selects further groups. Each unit spreads it in equal parts"
        f" over at most {len(closing.weights_max)} of its groups that are not yet released. A group"
        f" is released then, once, if the parts{least} add up to"
        f" {_number(closing.threshold * closing.quantum)} or more, with noise of standard deviation"
        f" 1. About {units} units that have one row each, in this group alone, are enough."
    ]


def _columns(query: Query, plan: Plan) -> str:
    lines = []
    for calibrated in plan.calibration.processes:
        process = calibrated.process
        free = ", from the selection's noise at no further cost"
        cost = free if calibrated.purpose == "selection" else ""
        lines.append(
            f"  {process.name}: noise of standard deviation {_deviations(plan, calibrated.sigma)}"
            f"{_values(process)}{cost}"
        )
    if not lines:
        return "Only the groups themselves are released."
    return "\n".join(["Noise:", *lines])


def _values(process: Process) -> str:
    """What a row adds, unless it is one."""
    if process.kind == "histogram":
        coarse = f", and in coarse bins of {process.coarse}" if process.coarse else ""
        low, high = process.edges[0], process.edges[-1]
        return (
            f" in each of {process.bins} bins of [{low:g}, {high:g}]{coarse}; all of them together"
            " are charged as one column"
        )
    if process.kind not in ("sum", "squares"):
        return ""
    clamped = f", values clamped to [{process.lower:g}, {process.upper:g}]"
    if process.kind == "squares":
        return f"{clamped}, squared distance from {process.center:g} less {process.half_square:g}"
    return clamped + (f", counted from {process.center:g}" if process.center else "")


def _last_release(query: Query, plan: Plan) -> list[str]:
    """What is special about the last trigger of a window."""
    if plan.triggers == 1 or plan.rounds:
        return []
    *_, before, last = plan.mechanism.variance
    text = "The last release" if query.window is None else "The last release of a window"
    if last >= before:
        return [f"{text} has all rows."]
    less = 100 * (1 - math.sqrt(last / before))
    return [
        f"{text} is the best one: it has all rows, and noise {less:.0f} % smaller than one trigger"
        " before."
    ]


def _diagnostics(name: str, query: Query, plan: Plan) -> list[str]:
    """What the second table tells, and what it costs."""
    told = plan.calibration.diagnostics
    if told is None:
        return []
    seen, bounded, kept, dropped = (_deviations(plan, sigma) for sigma in told.sigmas)
    window = "" if query.window is None else " of each open window"
    place = "" if query.window is None else ", in the window of its first row"
    return [
        f"Diagnostics (diagnostics_share) have {_number(told.share)} of nu^2; all else is made with"
        f" the rest. At every trigger {name}_diagnostics gets the numbers{window} so far: units"
        f" seen, with noise of standard deviation {seen}; units with a row that the bounds have"
        f" dropped, {bounded}; rows kept, {kept}; rows dropped, {dropped}. A unit counts once as"
        f" seen{place}, and once as bounded; of its rows, the first {told.kept_max} kept and the"
        f" first {told.dropped_max} dropped count."
    ]


def _deviations(plan: Plan, sigma: float) -> str:
    return _by_trigger([sigma * math.sqrt(v) for v in plan.mechanism.variance], _number)


def _by_trigger(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """The range of a number over a window's triggers, and its value at the last one."""
    before, last = values[:-1] or values, shown(values[-1])
    low, high = shown(min(before)), shown(max(before))
    span = low if low == high else f"{low} to {high}"
    return span if span == last else f"{span} ({last} at the last trigger)"


def _account(query: Query, plan: Plan) -> str:
    calibration = plan.calibration
    spare = calibration.epsilon - calibration.epsilon_gaussian
    spending = {"even": "evenly over the triggers", "late": "mostly at the end of a window"}
    parts = [(calibration.delta_gaussian, "noise")]
    if calibration.selection is not None:
        votes = plan.caps.selections * calibration.selection.failure
        spent = f"spent {spending[query.selection_spending]}"
        parts.append((votes, f"groups released too early, {spent}"))
    if calibration.closing is not None:
        parts.append((calibration.closing.failure, "groups released too early at a closing"))
    return (
        f"Account: nu = {_number(calibration.nu)}; delta ="
        f" {' + '.join(f'{_number(part)} ({name})' for part, name in parts)};"
        f" {_number(spare)} of epsilon is set aside for rounding in the noise."
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
