"""Limits per row: functions whose result could have any length are bounded, or refused.

DuckDB's memory limit does not cover the values of a vector, so a text of 4 GB or a list of a
billion numbers ends the process, and so does every retry of its trigger. The results are therefore
bounded before the query runs, by DuckDB's own reading of it:

* A length or a number of repetitions is constant, or LEAST(x, n) with a constant n.
* An argument that a function repeats (a separator, a replacement, a format) is constant, and a
  lambda takes no text or list of the row into each element.
* A list that is unnested has at most `ROWS_MAX` elements, or the row is left out; with several
  UNNESTs they share that. A text of a unit or key has at most `BYTES_MAX` bytes, or the row is left
  out.

So a row's result is linear in the size of the row, or bounded by constants of the query.

Not covered: the size of a source's rows, and the time of functions that compare two long texts,
such as LEVENSHTEIN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dpsqlp.sql.syntax import arguments_of, nodes_of, syntax_tree

ROWS_MAX = 1 << 16
BYTES_MAX = 1 << 14

# Places of arguments that say how long a result is.
_LENGTHS = {
    **dict.fromkeys(("lpad", "rpad", "bitstring", "repeat", "list_resize", "array_resize"), (1,)),
    **dict.fromkeys(("range", "generate_series"), (0, 1, 2)),
    "equi_width_bins": (2,),
}
_REPETITIONS_MAX = {"repeat": 100}  # of a text that may be long itself
# Places of arguments that the result may have many times.
_REPEATED = {
    **dict.fromkeys(("replace", "regexp_replace"), (2,)),
    **dict.fromkeys(("printf", "format", "concat_ws"), (0,)),
    **dict.fromkeys(("array_to_string", "array_to_string_comma_default"), (1,)),
    **dict.fromkeys(("list_aggregate", "list_aggr", "array_aggregate", "array_aggr"), (2, 3)),
    "aggregate": (2, 3),
}
_FORMATS = ("printf", "format")
_FILTERS = ("list_filter", "array_filter", "filter")  # whose result is part of the list
# In any case: by their lambda, by all pairs of characters, by the indentation of what is deep.
_GROWING = ("list_reduce", "array_reduce", "reduce", "damerau_levenshtein", "json_pretty")
_ROW = {"class": "COLUMN_REF"}  # a value of the row


def unbounded(query: str) -> tuple[str, str] | None:
    """The first function of a query whose result a row could make of any length, and why:
    `length`, `repeated`, or `growing`.
    """
    for node in nodes_of(syntax_tree(query)):
        if node.get("class") != "FUNCTION":
            continue
        name, arguments = node["function_name"].lower(), list(_arguments(node))
        if name in _GROWING:
            return name, "growing"
        if name in ("range", "generate_series"):
            if not _is_short_series(arguments):
                return name, "length"
        elif not all(_is_short(arguments[at:], name) for at in _LENGTHS.get(name, ())):
            return name, "length"
        if not all(_is_constant(arguments[at : at + 1]) for at in _REPEATED.get(name, ())):
            return name, "repeated"
        if name in _FORMATS and _takes_widths(arguments[0]):
            return name, "repeated"
    return None


def captured(query: str) -> set[tuple[str, ...]]:
    """Columns, by the parts of their names, that lambdas take into each element of a list.

    Not into the condition of a filter, whose result is a part of its list. A parameter that a
    lambda further in takes has an empty first part: there is no such column.
    """
    nodes = list(nodes_of(syntax_tree(query)))
    parameters = {name for node in nodes if node.get("class") == "LAMBDA" for name in _own(node)}
    taken = {
        name
        for node in nodes
        if node.get("class") == "FUNCTION" and node["function_name"].lower() not in _FILTERS
        for argument in _arguments(node)
        if argument.get("class") == "LAMBDA"
        for name in _free(argument)
    }
    return {("", *name) if name[:1] in parameters else name for name in taken}


def _own(node: dict[str, Any]) -> set[tuple[str, ...]]:
    """A lambda's parameters."""
    return _free(node["lhs"])


def _free(tree: Any) -> set[tuple[str, ...]]:
    """The names of a tree that no lambda of it binds."""
    if isinstance(tree, list):
        return set().union(*map(_free, tree))
    if not isinstance(tree, dict):
        return set()
    if tree.get("class") == "LAMBDA":
        return {name for name in _free(tree["expr"]) if name[:1] not in _own(tree)}
    if tree.get("class") == "COLUMN_REF":
        return {tuple(tree.get("column_names", ()))}
    return set().union(*map(_free, tree.values()))


def _arguments(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A function's arguments; in x.f(), x reads like the schema of f."""
    if node.get("schema") not in (None, "", "main"):
        yield _ROW
    for argument in arguments_of(node):
        yield argument.get("expression", argument)


def _is_constant(tree: Any) -> bool:
    return not any(node.get("class") == "COLUMN_REF" for node in nodes_of(tree))


def _is_short(arguments: list[dict[str, Any]], name: str) -> bool:
    """Whether a length is constant, or at most a constant."""
    limit = _REPETITIONS_MAX.get(name, ROWS_MAX)
    return _is_constant(arguments[:1]) or _is_limited(arguments[0], "least", limit)


def _is_limited(node: dict[str, Any], function: str, limit: int = ROWS_MAX) -> bool:
    """Whether it is LEAST or GREATEST of something and a small constant."""
    while node.get("class") == "CAST":
        node = node["child"]
    if node.get("class") != "FUNCTION" or node["function_name"].lower() != function:
        return False
    return any(abs(number) <= limit for part in _arguments(node) for number in _number(part))


def _number(node: dict[str, Any]) -> Iterator[int]:
    """The value of a whole number that is written out."""
    literal = node.get("literal") or {}
    if node.get("class") == "CONSTANT" and literal.get("kind") == "INTEGER":
        yield int(literal["text"])


def _is_short_series(arguments: list[dict[str, Any]]) -> bool:
    """Whether a series is constant, or goes up within small constants."""
    if _is_constant(arguments):
        return True
    first, last = arguments[0], arguments[1:2]
    if not last:
        return _is_limited(first, "least")
    begins = any(abs(number) <= ROWS_MAX for number in _number(first))
    ends = any(abs(number) <= ROWS_MAX for number in _number(last[0]))
    steps = [number for step in arguments[2:] for number in _number(step)]
    return (
        (begins or _is_limited(first, "greatest"))
        and (ends or _is_limited(last[0], "least"))
        and len(steps) == len(arguments[2:])
        and all(step > 0 for step in steps)
    )


def _takes_widths(node: dict[str, Any]) -> bool:
    """Whether a constant format takes the width of a field from another argument."""
    text = str((node.get("literal") or {}).get("text", "*")).replace("{{", "")
    return "*" in text or re.search(r"\{[^}]*\{", text) is not None
