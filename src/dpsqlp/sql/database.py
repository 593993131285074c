"""DuckDB: the connection the row query runs in, and what DuckDB itself says of a query.

Privacy contract: `check_rows` looks at DuckDB's own syntax tree of the final text, after everything
else has been checked on sqlglot's. What it does not know it refuses, so a construct that the two
parsers read differently cannot couple rows or vary between evaluations.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

# Optimisers that only choose columns and the kind of a join. The others are off. One of them moves
# an expression that occurs twice out of its TRY. Those that use statistics would couple rows: the
# number of rows would decide whether the stream is in a join's hash table, where a row with a long
# list may exhaust the memory that it does not exhaust elsewhere.
_OPTIMIZERS = {
    "column_lifetime",
    "cte_inlining",
    "deliminator",
    "filter_pushdown",
    "unnest_rewriter",
    "unused_columns",
}
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
_TRIED = "tried"  # a schema in which each source has a row
_VALUES = ("'1'", "'2024-01-01 00:00:00'", "'12:00:00'", "'1 day'", "'[1]'", "'{}'")
_TABLES = {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"}
_COUPLING = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")


class DatabaseError(Exception):
    """What DuckDB says of a statement; `name` is the column, function or table it is about."""

    def __init__(self, message: str, name: str | None) -> None:
        self.name = name
        super().__init__(message)


def connect(
    tables: Mapping[str, pa.Table] | None = None,
    config: Mapping[str, Any] | None = None,
    folders: Sequence[str] = (),
) -> duckdb.DuckDBPyConnection:
    """A connection for row and release queries: UTC, no network, no extensions, no files but those
    of a source's folders, and only optimisers under which TRY holds.

    Locked, so give memory limits and threads in `config`. Public tables are registered by name.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "temp_directory": "",  # records are not spilled, in clear, to wherever it runs
            **(config or {}),
        },
    )
    _prepare(connection)
    for name, table in (tables or {}).items():
        connection.register(name, table)
    if folders:
        listed = ", ".join("'" + folder.replace("'", "''") + "'" for folder in folders)
        connection.execute(f"SET allowed_directories = [{listed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _prepare(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    names = {row[0] for row in connection.execute("FROM duckdb_optimizers()").fetchall()}
    connection.execute("SET disabled_optimizers = ?", [",".join(sorted(names - _OPTIMIZERS))])


def read_public(query: str, tables: Mapping[str, pa.Table], folder: str) -> tuple[pa.Table, str]:
    """The rows of a public table in a fixed order, and a digest of them."""
    connection = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": False, "errors_as_json": True}
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET file_search_path = ?", [folder])
    for name, table in tables.items():
        connection.register(name, table)
    try:
        connection.execute(f"CREATE TABLE public_table AS {query}")
        return _frozen(connection)
    except duckdb.Error as problem:
        raise _error(problem) from None


def freeze(table: pa.Table) -> tuple[pa.Table, str]:
    """A public table handed in from Python, in a fixed order, and a digest of it."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("given", table)
    connection.execute("CREATE TABLE public_table AS SELECT * FROM given")
    return _frozen(connection)


def _frozen(connection: duckdb.DuckDBPyConnection) -> tuple[pa.Table, str]:
    rows = connection.sql("SELECT * FROM public_table ORDER BY ALL").to_arrow_table()
    digest = connection.execute(
        "SELECT sha256(concat_ws(chr(10), "
        "(SELECT string_agg(column_name || ' ' || column_type, ',')"
        " FROM (DESCRIBE public_table)), "
        "(SELECT string_agg(line, chr(10) ORDER BY line)"
        " FROM (SELECT CAST(to_json(t) AS VARCHAR) AS line FROM public_table AS t))))"
    ).fetchone()
    assert digest is not None
    return rows, digest[0]


class Binder:
    """Binds queries against empty sources and the public tables."""

    __slots__ = ("connection",)

    def __init__(
        self, sources: Mapping[str, Sequence[tuple[str, str]]], tables: Mapping[str, pa.Table]
    ) -> None:
        self.connection = duckdb.connect(
            ":memory:", config={"errors_as_json": True, "python_enable_replacements": False}
        )
        _prepare(self.connection)
        self.connection.execute(f"CREATE SCHEMA {_TRIED}")
        for name, columns in sources.items():
            # A view: a table would have a rowid, which micro-batches do not.
            empty = ", ".join(f"CAST(NULL AS {kind}) AS {quote(c)}" for c, kind in columns)
            self.connection.execute(f"CREATE VIEW {quote(name)} AS SELECT {empty} WHERE false")
            some = ", ".join(f"{_some(kind)} AS {quote(c)}" for c, kind in columns)
            self.connection.execute(f"CREATE VIEW {_TRIED}.{quote(name)} AS SELECT {some}")
        for name, table in tables.items():
            self.connection.register(name, table)

    def types(self, query: str) -> list[tuple[str, str]]:
        """Names and DuckDB types of a query's columns."""
        try:
            return [
                (row[0], row[1]) for row in self.connection.execute(f"DESCRIBE {query}").fetchall()
            ]
        except duckdb.Error as problem:
            raise _error(problem) from None

    def try_out(self, query: str) -> None:
        """Evaluate a query on one row: what its constants stop is said now, not at a record."""
        try:
            self.connection.execute(f"SET schema = '{_TRIED}'")
            self.connection.execute(query).fetchall()
            self.connection.execute("SET schema = 'main'")
        except duckdb.Error as problem:
            raise _error(problem) from None

    def reads(self, text: str, kind: str) -> bool:
        """Whether a text is a value of a type."""
        try:
            self.connection.execute(f"SELECT CAST(? AS {kind})", [text])
        except duckdb.ConversionException:
            return False
        except duckdb.Error:  # no such type: said by who binds the whole
            return True
        return True

    def schema(self, query: str) -> pa.Schema:
        """The Arrow schema that a query gives."""
        try:
            return self.connection.sql(query).to_arrow_table().schema
        except duckdb.Error as problem:
            raise _error(problem) from None


def _some(kind: str) -> str:
    """A value of a type, mostly not null."""
    tried = (f"TRY_CAST({value} AS {kind})" for value in _VALUES)
    return f"COALESCE({', '.join(tried)})"


def quote(name: str) -> str:
    """A quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def _error(problem: duckdb.Error) -> DatabaseError:
    text = str(problem)
    try:
        detail = json.loads(text[text.index("{") :])
    except ValueError:
        return DatabaseError(text.splitlines()[0], None)
    message = detail.get("exception_message", "").splitlines()
    return DatabaseError(message[0] if message else text, detail.get("name"))


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:")


def is_type(name: str) -> bool:
    """Whether DuckDB has a type of this name."""
    try:
        _parser().execute(f"SELECT CAST(NULL AS {name})")
    except duckdb.Error:
        return False
    return True


@functools.cache
def _catalogue() -> dict[str, list[tuple[str, str | None, str | None]]]:
    """Function name to (type, stability, macro definition) of each overload."""
    rows = _parser().execute(
        "SELECT lower(function_name), function_type, stability, macro_definition"
        " FROM duckdb_functions()"
    )
    catalogue: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for name, *rest in rows.fetchall():
        catalogue.setdefault(name, []).append((rest[0], rest[1], rest[2]))
    return catalogue


@functools.lru_cache(maxsize=64)  # several checks look at the same text
def syntax_tree(query: str) -> Any:
    """DuckDB's own reading of a query; not to be changed."""
    row = _parser().execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    tree = json.loads(row[0])
    if tree.get("error"):
        raise DatabaseError(tree.get("error_message", "syntax error"), None)
    return tree["statements"]


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a syntax tree, from the top."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes_of(value)


def mentioned_names(query: str) -> set[str] | None:
    """Every name in a query, in lower case, of columns and other things; None if it has a *."""
    nodes = list(nodes_of(syntax_tree(query)))
    if any(node.get("class") == "STAR" for node in nodes):
        return None
    texts = (v for node in nodes for value in node.values() for v in _flat(value))
    return {text.lower() for text in texts if isinstance(text, str)}


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


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


def arguments_of(node: dict[str, Any]) -> list[Any]:
    """The arguments of a function."""
    return list(node.get("arguments") or node.get("children") or [])


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
