"""How a query differs from the one that a state was made with, in words, for an error.

Both are given as normal forms. These hold no record: the source's columns, the digests of public
tables, the query, and when it emits.
"""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsqlp.sql.dialect import CreateSource, Stream

_SHOWN = 80  # characters of each text
_CLAUSES = {
    "with_": "WITH",
    "expressions": "the SELECT list",
    "from_": "FROM",
    "joins": "JOIN",
    "where": "WHERE",
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
}
_EMIT = {
    "this": "EMIT EVERY",
    "event_time": "ON EVENT TIME",
    "start": "ON EVENT TIME FROM",
    "stop": "ON EVENT TIME TO",
    "triggers": "FOR n TRIGGERS",
    "lateness": "ALLOW LATENESS",
}
_EMIT_NAME = re.compile(rf"(?:^|, )({'|'.join(_EMIT)}) ")


def changes(before: str, now: str) -> str:
    """The parts of a query that differ, each as it was and as it is."""
    try:
        old, new = _parts(before), _parts(now)
    except (SqlglotError, ValueError):  # a column with a name that has to be quoted
        old, new = {}, {}
    return (
        "; ".join(
            _change(name, old.get(name), new.get(name))
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        )
        or "the text of the query differs"
    )


def _change(name: str, old: str | None, new: str | None) -> str:
    if name.startswith("public table") and None not in (old, new):
        return f"{name} has other rows"  # the digests say nothing to a reader
    if new is None:
        return f"{name} was {_shown(old or '')} and is missing"
    was = "missing" if old is None else _shown(old)
    return f"{name} was {was} and is {_shown(new)}"


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _parts(normal_form: str) -> dict[str, str]:
    """The parts of a normal form, by name."""
    rest, _, emit = normal_form.rpartition("\nemit ")
    source, _, rest = rest.partition("\n")
    [created] = Stream().parse(f"CREATE {source}")
    if not isinstance(created, CreateSource):
        raise ValueError(source)
    parts = {"the name of the source": created.name}
    for column in created.args["columns"]:
        parts[f"the column {column.name}"] = _text(column.args["kind"])
    while rest.startswith("public table "):
        table, _, rest = rest.partition("\n")
        name, _, digest = table.rpartition(" ")
        parts[name] = digest
    [select] = Stream().parse(rest)
    if not isinstance(select, exp.Select):
        raise ValueError(rest)
    parts |= _select_parts(select)
    _, *emitted = _EMIT_NAME.split(emit)
    for name, value in zip(emitted[::2], emitted[1::2], strict=True):
        parts[_EMIT[name]] = value
    return parts


def _select_parts(select: exp.Select) -> dict[str, str]:
    options = select.args["hint"].expressions
    parts = {f"the option {option.name}": _text(option.expression) for option in options}
    for name, label in _CLAUSES.items():
        value = select.args.get(name)
        if value:
            nodes = value if isinstance(value, list) else [value]
            parts[label] = ", ".join(_text(node).strip() for node in nodes)
    return parts


def _text(node: exp.Expr) -> str:
    return Stream().generate(node, comments=False)
