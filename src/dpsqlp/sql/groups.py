"""GROUP BY: the keys, the window with its timestamp, and how they relate to the unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from dpsqlp.sql.aggregates import find_aggregates
from dpsqlp.sql.calendar import missed, nests
from dpsqlp.sql.canonical_form import same
from dpsqlp.sql.expressions import TIME_OF_A_NUMBER, Expressions, is_number, missing_column
from dpsqlp.sql.lengths import as_window, length_of, length_text
from dpsqlp.sql.location import Text
from dpsqlp.sql.options import PrivacyOptions
from dpsqlp.sql.query import Calendar, Emit, Length, OutputKind, Window
from dpsqlp.sql.relations import STREAM, Scope, safe

_EXPLICIT = ("TUMBLE", "HOP")


@dataclass(frozen=True, slots=True)
class Groups:
    """GROUP BY, read: the keys, and the window with its timestamp."""

    keys: tuple[exp.Expr, ...]
    window_node: exp.Expr | None
    window: Window | None
    timestamp: exp.Expr | None
    zoned: exp.Expr | None = None  # the timestamp in a time zone


def read_groups(text: Text, select: exp.Select, scope: Scope) -> Groups:
    """GROUP BY with aliases and positions resolved."""
    aliases = {p.alias.lower(): p.this for p in select.expressions if isinstance(p, exp.Alias)}
    group = select.args.get("group")
    nodes: list[exp.Expr] = []
    if group is not None:
        extra = {k for k, v in group.args.items() if v} - {"expressions", "all"}
        kinds = (exp.Rollup, exp.Cube, exp.GroupingSets)
        if extra or any(isinstance(n, kinds) for n in group.expressions):
            raise text.refuse(
                group, "GROUP BY lists expressions only", "Use one sink for each set of groups."
            )
        if group.args.get("all"):
            projections = [p.unalias() for p in select.expressions]
            nodes = [p for p in projections if not any(True for _ in find_aggregates(p))]
        else:
            nodes = [_group_node(text, n, select, aliases, scope) for n in group.expressions]
    found = [(n, as_window(text, n)) for n in nodes]
    explicit: list[exp.Expr] = [
        n
        for n in nodes
        if isinstance(_unzoned(n), exp.Anonymous) and str(_unzoned(n).this).upper() in _EXPLICIT
    ]
    chosen = explicit or [n for n, window in found if window is not None]
    if len(chosen) > 1:
        raise text.refuse(
            chosen[1],
            "There are two windows in GROUP BY",
            "Group by one window; use STRFTIME(ts, ...) for a key that is a part of a timestamp.",
        )
    if not chosen:
        return Groups(tuple(nodes), None, None, None)
    window = next(w for n, w in found if n is chosen[0])
    assert window is not None
    keys = tuple(n for n in nodes if n is not chosen[0])
    return Groups(keys, chosen[0], window.window, window.timestamp, window.zoned)


def _unzoned(node: exp.Expr) -> exp.Expr:
    """A window without the time zone that it is put into."""
    return node.this if isinstance(node, exp.AtTimeZone) else node


def _group_node(
    text: Text,
    node: exp.Expr,
    select: exp.Select,
    aliases: Mapping[str, exp.Expr],
    scope: Scope,
) -> exp.Expr:
    """The expression of a GROUP BY item: by position, by alias or itself."""
    if isinstance(node, exp.Literal) and node.is_int:
        number = int(node.name)
        if not 1 <= number <= len(select.expressions):
            raise text.refuse(node, f"GROUP BY {number} is not a column", "Name the column.")
        node = select.expressions[number - 1].unalias()
    elif isinstance(node, exp.Column) and not node.table and not scope.has(node.name):
        if node.name.lower() not in aliases:
            raise missing_column(text, node, {*scope.columns, *aliases})
        node = aliases[node.name.lower()]
    for aggregate in find_aggregates(node):
        raise text.refuse(aggregate, "An aggregate cannot be a group key", "Use HAVING.")
    return node


def check_unit(
    text: Text, options: PrivacyOptions, groups: Groups, expressions: Expressions, scope: Scope
) -> None:
    """Refuse a unit that is not the row's own, and groups that are the units."""
    expressions.types(scope, list(options.unit), options.unit_node)
    for column in options.unit:
        if scope.origin(column) != frozenset([STREAM]):
            raise text.refuse(
                column,
                f"The unit {column.name} does not come from the stream's own row: a join or UNNEST"
                " comes between, which may hide whose row it is",
                "Take the unit from a column of the source.",
            )
    keys = [key for key in groups.keys if isinstance(key, exp.Column)]
    grouped = [k for k in keys if any(k.name.lower() == u.name.lower() for u in options.unit)]
    if len({k.name.lower() for k in grouped}) == len({u.name.lower() for u in options.unit}):
        raise text.refuse(
            grouped[0],
            "Grouping by the unit would publish one row per unit, and units are protected",
            "Group by something that many units share.",
        )


def read_period(text: Text, options: PrivacyOptions, groups: Groups, emit: Emit) -> Length | None:
    """The unit period, which fits the grid of triggers. It has the calendar of the windows."""
    if options.period_node is None:
        return None
    if groups.window is None:
        raise text.refuse(
            options.period_node,
            "A unit period needs a window, which says when a period's records end",
            "Group by TUMBLE(ts, INTERVAL ...), or leave privacy_unit_period out.",
        )
    period = length_of(text, options.period_node.expression, groups.window)
    if isinstance(period, Calendar):
        off_grid = (
            not nests(period, emit.calendar)
            if emit.calendar
            else (missed(period, emit.interval_us, emit.span) is not None)
        )
    else:
        off_grid = emit.calendar is not None or period % emit.interval_us != 0
    if off_grid:
        every = emit.calendar or emit.interval_us
        raise text.refuse(
            options.period_node,
            f"The interval ({length_text(every)}) does not divide privacy_unit_period"
            f" ({length_text(period)})",
            "Choose an interval that fits a whole number of times into the period."
            if emit.calendar is None
            else "Give the period in the calendar of the windows, for example INTERVAL 1 MONTH.",
        )
    return period


def read_timestamp(
    text: Text,
    options: PrivacyOptions,
    groups: Groups,
    emit: Emit,
    expressions: Expressions,
    scope: Scope,
) -> exp.Expr | None:
    """The event timestamp: the window's, or timestamp_column where there is no window."""
    node = groups.timestamp
    if node is not None and options.timestamp is not None:
        raise text.refuse(
            options.timestamp,
            "timestamp_column is for queries without a window; a window names its timestamp",
            "Leave timestamp_column out.",
        )
    node = node or options.timestamp
    if node is None:
        if emit.on_event_time:
            raise text.refuse(
                groups.window_node or options.unit_node,
                "ON EVENT TIME without a window does not say which timestamp",
                "Add the option timestamp_column = ts.",
            )
        return None
    expressions.check(node, scope)
    if options.period_node is not None and scope.origins(node) != frozenset([STREAM]):
        raise text.refuse(
            node,
            "The period of a unit comes from the row's own timestamp; this one comes from a join or"
            " UNNEST, which may put one row into many periods",
            "Take the timestamp from a column of the source, or leave privacy_unit_period out.",
        )
    (kind,) = expressions.types(scope, [safe(node)], node)
    if not kind.startswith(("TIMESTAMP", "DATE")):
        raise text.refuse(
            node,
            f"A window needs a timestamp; this is {kind}",
            TIME_OF_A_NUMBER if is_number(kind) else "Convert it: TRY_CAST(x AS TIMESTAMP).",
        )
    if groups.zoned is not None and kind != "TIMESTAMP WITH TIME ZONE":
        raise text.refuse(
            groups.zoned,
            f"{kind} has no time zone: in DuckDB, AT TIME ZONE would take it for a time in that"
            " zone; here it is UTC",
            "Put the window into the zone: TUMBLE(ts, INTERVAL 1 DAY) AT TIME ZONE 'Europe/Berlin'."
            " Or declare the column as TIMESTAMPTZ.",
        )
    return node


def group_column(node: exp.Expr, groups: Groups) -> tuple[OutputKind, str] | None:
    """The kind and released column of a group key or the window; None for anything else."""
    for number, key in enumerate(groups.keys):
        if same(node, key):
            return "key", f"key_{number}"
    window = groups.window_node
    if window is None or not same(node, window):
        return None
    local = isinstance(groups.window, Calendar) and groups.window.zone != "UTC"
    column = "window_local" if local else "window_start"
    window = _unzoned(window)
    truncated = isinstance(window, exp.Anonymous | exp.TimestampTrunc | exp.DateTrunc)
    to_date = isinstance(window, exp.Anonymous) and str(window.this).upper() == "TO_DATE"
    return "window", column if truncated and not to_date else f"CAST({column} AS DATE)"
