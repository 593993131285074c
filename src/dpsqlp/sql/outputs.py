"""The SELECT list: which released column each item is."""

from __future__ import annotations

from sqlglot import exp

from dpsqlp.sql.aggregates import Aggregates, Formula, default_name, find_aggregates, is_aggregate
from dpsqlp.sql.dialect import Histogram
from dpsqlp.sql.expressions import missing_column
from dpsqlp.sql.groups import Groups, group_column
from dpsqlp.sql.lengths import as_window
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import Output
from dpsqlp.sql.relations import Scope
from dpsqlp.sql.release import FIXED

_COUNT, _AVERAGE, _SUM = range(3)  # the order in which aggregates are read


def read_outputs(
    text: Text, select: exp.Select, groups: Groups, aggregates: Aggregates
) -> tuple[Output, ...]:
    """The SELECT list over the released columns. Counts name their processes first, and histograms,
    which quantiles may share; sums are read last, since they may share those of an average, also of
    one in HAVING or ORDER BY.
    """
    projections = list(select.expressions)
    found = [(p.unalias(), p) for p in projections if is_aggregate(p.unalias())]
    found += [(node, None) for node in _hidden_averages(select)]
    formulas: dict[int, Formula] = {}
    for node, projection in sorted(found, key=lambda pair: _reading_order(pair[0])):
        if projection is None:
            aggregates.read(node, default_name(node) or "having")
        else:
            formulas[id(projection)] = aggregates.read(node, _output_name(text, projection))
    scope = aggregates.scope
    outputs = [_output(text, p, groups, formulas.get(id(p)), scope) for p in projections]
    _check_outputs(text, select, groups, outputs)
    return tuple(outputs)


def _hidden_averages(select: exp.Select) -> list[exp.Expr]:
    """The averages in HAVING and ORDER BY, also VARIANCE and STDDEV."""
    clauses = [select.args[name] for name in ("having", "order") if select.args.get(name)]
    plain = [clause for clause in clauses if not clause.find(exp.Query)]  # others are refused
    nodes = [node for clause in plain for node in find_aggregates(clause)]
    return [node for node in nodes if _reading_order(node) == _AVERAGE]


def _reading_order(node: exp.Expr) -> int:
    inner = node.this if isinstance(node, exp.Filter) else node
    kinds = [inner, inner.this] if inner.args.get("this") else [inner]
    if any(isinstance(kind, exp.Count | Histogram) for kind in kinds):
        return _COUNT
    return _SUM if any(isinstance(kind, exp.Sum) for kind in kinds) else _AVERAGE


def _output_name(text: Text, projection: exp.Expr) -> str:
    node = projection.unalias()
    if isinstance(projection, exp.Alias):
        return projection.alias
    name = node.name if isinstance(node, exp.Column) else default_name(node)
    if name is None and as_window(text, node) is not None:
        name = "window"
    if name is None:
        raise text.refuse(projection, "This column has no name", "Name it with AS.")
    return name


def _output(
    text: Text, projection: exp.Expr, groups: Groups, formula: Formula | None, scope: Scope
) -> Output:
    node = projection.unalias()
    if formula is not None:
        name = _output_name(text, projection)
        return Output(
            name,
            "aggregate",
            formula.sql,
            formula.sd_sql,
            formula.processes,
            formula.edges_sql,
            formula.length,
        )
    if isinstance(node, exp.Star) or isinstance(getattr(node, "this", None), exp.Star):
        raise text.refuse(
            projection, "* cannot be selected from groups", "List keys and aggregates."
        )
    for aggregate in find_aggregates(node):
        raise text.refuse(
            aggregate,
            "An aggregate is selected by itself, so that its noise has a known size",
            "Select it with AS and compute from the released columns; HAVING and ORDER BY may"
            " compute with it.",
        )
    column = group_column(node, groups)
    if column is None:
        if isinstance(node, exp.Column) and not node.table and not scope.has(node.name):
            raise missing_column(text, node, scope.columns)
        raise text.refuse(
            projection,
            "A selected column must be a group key, the window or an aggregate",
            "Add it to GROUP BY as it is written here.",
        )
    kind, released = column
    return Output(_output_name(text, projection), kind, released)


def _check_outputs(text: Text, select: exp.Select, groups: Groups, outputs: list[Output]) -> None:
    taken = set(FIXED)
    for projection, output in zip(select.expressions, outputs, strict=True):
        for name in output.columns:
            if name.lower() in taken:
                raise text.refuse(
                    projection,
                    f"Two released columns would be named {name}",
                    "Each aggregate adds <alias>_sd, and a histogram <alias>_edges;"
                    f" {', '.join(FIXED)} are always released. Rename it with AS.",
                )
            taken.add(name.lower())
    selected = {output.sql for output in outputs if output.kind == "key"}
    for number, key in enumerate(groups.keys):
        if f"key_{number}" not in selected:
            raise text.refuse(
                key,
                "A group key is not selected, so released rows would not show their group",
                "Add it to the SELECT list.",
            )


def released_names(outputs: tuple[Output, ...]) -> list[str]:
    """The names of all released columns."""
    deviations = [f"{output.name}_sd" for output in outputs if output.sd_sql is not None]
    return [*FIXED, *(output.name for output in outputs), *deviations]


def key_name(outputs: tuple[Output, ...], number: int) -> str:
    """The name of a group key."""
    return next(o.name for o in outputs if o.kind == "key" and o.sql == f"key_{number}")


def released_column(node: exp.Expr, groups: Groups, outputs: tuple[Output, ...]) -> str | None:
    """The released column an expression in HAVING or ORDER BY stands for."""
    column = group_column(node, groups)
    if column is not None:
        return column[1]
    if isinstance(node, exp.Column) and not node.table:
        for output in outputs:
            for name, released in output.columns.items():
                if name.lower() == node.name.lower():
                    return released
        if node.name.lower() in FIXED:
            return node.name.lower()
    return None
