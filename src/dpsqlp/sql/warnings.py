"""Warnings before a query runs: weak promises, and noise that could be smaller."""

from __future__ import annotations

import math

from dpsqlp.sql.query import Query

_EPSILON_MAX = 10.0
_UNITS_PLAUSIBLE = 100_000


def find_warnings(query: Query) -> list[str]:
    """Sentences for `explain` and the first lines of a run."""
    return [*_epsilon(query), *_delta(query), *_norm(query), *_counts(query)]


def _epsilon(query: Query) -> list[str]:
    if query.epsilon <= _EPSILON_MAX:
        return []
    return [
        f"WARNING: epsilon = {query.epsilon:g} is above {_EPSILON_MAX:g}. The releases may be"
        f" e^{query.epsilon:g} times as likely with a unit as without it, which hardly protects"
        " anybody. Choose a smaller one; 1 is a common choice."
    ]


def _delta(query: Query) -> list[str]:
    if query.delta < 1 / _UNITS_PLAUSIBLE:
        return []
    return [
        f"WARNING: delta = {query.delta:g} is not far below one over the number of units: with"
        f" {math.ceil(1 / query.delta):,} of them the promise allows that one is exposed whole."
        " Choose far less than one over their number, for example 1e-9."
    ]


def _norm(query: Query) -> list[str]:
    """Noise for a unit with all of its rows in one group."""
    rows = query.caps.records
    charged = any(process.kind != "distinct" for process in query.processes)
    if not query.key_names or not charged or rows == 1 or query.caps.squared_norm < rows * rows:
        return []
    return [
        f"HINT: all {rows} rows of a unit may be in one group, and the noise of values is for that."
        f" max_contribution_norm = {math.ceil(100 * math.sqrt(rows)) / 100:.10g} allows as many in"
        f" different groups, with {100 / math.sqrt(rows):.0f} % of the noise."
    ]


def _counts(query: Query) -> list[str]:
    """COUNT(*) beside the count that an average has anyway."""
    rows = [
        output.name
        for output in query.outputs
        if len(output.processes) == 1 and _counts_rows(query, output.processes[0])
    ]
    for output in query.outputs:
        if rows and len(output.processes) > 1:
            own = query.processes[output.processes[1]]
            if own.kind == "count" and own.column is not None:
                return [
                    f"HINT: {rows[0]} and {output.name} count rows with noise of their own each."
                    f" Where the value in {output.name} is never null, count that value instead of"
                    " COUNT(*): both then share one, and all columns have less noise."
                ]
    return []


def _counts_rows(query: Query, index: int) -> bool:
    process = query.processes[index]
    return process.kind == "count" and process.column is None
