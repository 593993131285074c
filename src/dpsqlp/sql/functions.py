"""The functions and constructs that a row query may have, by DuckDB's own reading of it.

Privacy contract: `check_rows` looks at DuckDB's own syntax tree of the final text, after everything
else has been checked on sqlglot's. It refuses whatever it does not know, so a construct that the
two parsers read differently cannot couple rows or vary between evaluations.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from dpsqlp.sql.syntax import DatabaseError, arguments_of, nodes_of, parser, syntax_tree

# Marked as constant in DuckDB's catalogue, and not.
_NOT_CONSTANT = {
    "current_localtime",
    "current_localtimestamp",
    "hash",  # another version of DuckDB may hash otherwise, and a unit would be another one
    "json_serialize_plan",  # binds any query, and so looks into files
    "version",
}
_VALUE_FUNCTIONS = {  # functions that are called like columns
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "localtime",
    "localtimestamp",
    "session_user",
    "user",
}
# Where TRY does not hold: on a value that these do not know, DuckDB stops. At this place of their
# arguments stands a constant.
_CONSTANT_ARGUMENT = {
    **dict.fromkeys(("date_part", "datepart", "date_trunc", "datetrunc", "timezone"), 0),
    **dict.fromkeys(("date_diff", "datediff", "date_sub", "datesub"), 0),
    **dict.fromkeys(("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape"), 2),
}
# They make timestamps before the first one, which stop DuckDB where they become text.
_UNCHECKED_TIMES = {"epoch_ms", "make_timestamp", "make_timestamp_ms"}  # of one argument
# They end the process: on a value that is nested deeply, like all functions of VARIANT, or since
# they read what lies behind a list.
_FATAL = {
    *("json_contains", "variant", "list_select", "array_select", "list_where", "array_where"),
}
_FUNCTION = re.compile("[a-z][a-z0-9_]*")  # others are operators, or meant for DuckDB itself
_LIST_AGGREGATES = {"list_aggregate", "list_aggr", "array_aggregate", "array_aggr", "aggregate"}
_EXPRESSIONS = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLLATE",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "LAMBDA",
    "LAMBDA_REF",
    "OPERATOR",
    "STAR",
    "SUBQUERY",
    "TYPE",
}
_TABLES = {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"}
_COUPLING = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")


@functools.cache
def _catalogue() -> dict[str, list[tuple[str, str | None, str | None]]]:
    """Function name to (type, stability, macro definition) of each overload."""
    rows = parser().execute(
        "SELECT lower(function_name), function_type, stability, macro_definition"
        " FROM duckdb_functions()"
    )
    catalogue: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for name, *rest in rows.fetchall():
        catalogue.setdefault(name, []).append((rest[0], rest[1], rest[2]))
    return catalogue


def nearest_function(name: str) -> str:
    """What to write instead of a function that does not exist."""
    known = [function.upper() for function in _catalogue()] + ["TUMBLE", "HOP"]
    near = difflib.get_close_matches(name, known, 1, 0.75)
    return f"Did you mean {near[0]}?" if near else "DuckDB's scalar functions can be used."


def function_kind(name: str, arguments: int) -> str:
    """How a function behaves: `row` (one value per row, the same every time), `aggregate`,
    `table`, `unnest`, `varying`, `fatal`, or `unknown`."""
    name = name.lower()
    if name == "unnest":
        return "unnest"
    if name in _FATAL or name.startswith("variant_"):
        return "fatal"
    if not _FUNCTION.fullmatch(name):
        return "unknown"
    overloads = _catalogue().get(name)
    if not overloads:
        return "unknown"
    if name in _NOT_CONSTANT or (name == "age" and arguments == 1):
        return "varying"
    kinds = {kind for kind, _, _ in overloads}
    if kinds & {"aggregate", "window"}:
        return "aggregate"
    if "scalar" in kinds:
        constant = all(s == "CONSISTENT" for kind, s, _ in overloads if kind == "scalar")
        return "row" if constant else "varying"
    if kinds == {"macro"}:
        return _macro_kind(name)
    return "table"


@functools.cache
def _macro_kind(name: str) -> str:
    for _, _, definition in _catalogue()[name]:
        tree = syntax_tree(f"SELECT {definition}")
        if any(node.get("class") == "SUBQUERY" for node in nodes_of(tree)):
            return "varying"
        if any(_value_function(node) for node in nodes_of(tree)):
            return "varying"
        for node in _functions(tree):
            called = node["function_name"].lower()
            if called != name and (kind := function_kind(called, len(arguments_of(node)))) != "row":
                return kind
    return "row"


def _value_function(node: dict[str, Any]) -> str | None:
    names = node.get("column_names") or [""] if node.get("class") == "COLUMN_REF" else [""]
    return names[0].lower() if len(names) == 1 and names[0].lower() in _VALUE_FUNCTIONS else None


def _functions(tree: Any) -> Iterator[dict[str, Any]]:
    return (node for node in nodes_of(tree) if node.get("class") == "FUNCTION")


def _stops(name: str, node: dict[str, Any]) -> str | None:
    """Whether a function stops a run on some value: `unchecked`, or `constant` must be an argument.

    In x.f(), x reads like the schema of f.
    """
    arguments = arguments_of(node)
    method = node.get("schema") not in (None, "", "main")
    if name in _UNCHECKED_TIMES and len(arguments) <= 1:
        return "unchecked"
    if name in _CONSTANT_ARGUMENT:
        constant = arguments[_CONSTANT_ARGUMENT[name] :][:1]
        if method or any(below.get("class") == "COLUMN_REF" for below in nodes_of(constant)):
            return "constant"
    return None


def bad_function(query: str) -> tuple[str, str] | None:
    """The first function of a query that may not be used for each row by itself, and its kind."""
    for node in nodes_of(syntax_tree(query)):
        if value_function := _value_function(node):
            return value_function, "varying"
        if str(node.get("type_name", "")).lower() in _FATAL:
            return "variant", "fatal"
        if node.get("class") != "FUNCTION":
            continue
        name = node["function_name"].lower()
        if stops := _stops(name, node):
            return name, stops
        if node.get("is_operator"):
            continue
        kind = function_kind(name, len(arguments_of(node)))
        if kind not in ("row", "unnest"):
            return name, kind
        if name in _LIST_AGGREGATES and "reservoir_quantile" in json.dumps(node).lower():
            return "reservoir_quantile", "varying"
        if node.get("distinct") or node.get("filter"):
            return name, "aggregate"
    return None


def check_rows(query: str) -> str | None:
    """What in a row query would couple rows or vary, by DuckDB's own reading; None if nothing."""
    try:
        tree = syntax_tree(query)
    except DatabaseError:
        return "a statement that is not a plain SELECT"
    for node in nodes_of(tree):
        expression = node.get("class")
        if expression is not None and expression not in _EXPRESSIONS:
            return f"an expression of the kind {expression}"
        if "select_list" in node:
            for part in _COUPLING:
                if node.get(part):
                    return f"{part.replace('_', ' ')} in the row part"
            if node.get("aggregate_handling", "STANDARD_HANDLING") != "STANDARD_HANDLING":
                return "grouping in the row part"
        elif str(node.get("type", "")).endswith("_NODE"):
            return f"a query of the kind {node['type']}"
        if "sample" in node and node["sample"] is not None:
            return "a sample"
        if "from_table" in node and node["from_table"]["type"] not in _TABLES:
            return f"a relation of the kind {node['from_table']['type']}"
        function = node["function"] if node.get("type") == "TABLE_FUNCTION" else None
        if function is not None and function["function_name"].lower() != "unnest":
            return "a table function"
        if node.get("ref_type") in ("ASOF", "POSITIONAL", "NATURAL", "NEAREST"):
            return f"a join of the kind {node['ref_type']}"
    found = bad_function(query)
    return None if found is None else f"the function {found[0]}"
