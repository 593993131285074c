"""From text to validated queries: a statement is checked, and refused if it is not supported.

parse           text -> statements by kind (syntax alone)
compile_script  text -> Program (names, types, windows, options, noise processes)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from sqlglot import exp

from dpsqlp.errors import PlanError
from dpsqlp.sql import sink
from dpsqlp.sql.binder import Binder, is_type
from dpsqlp.sql.budget import ledger_place, read_account, read_budget
from dpsqlp.sql.dialect import (
    CreateBudget,
    CreatePublicTable,
    CreateSink,
    CreateSource,
    parse_statements,
)
from dpsqlp.sql.location import Text
from dpsqlp.sql.options import read_options
from dpsqlp.sql.overlap import shared_file
from dpsqlp.sql.public_tables import freeze, read_public
from dpsqlp.sql.query import BudgetDef, Program, PublicTable, SinkDef, SourceDef
from dpsqlp.sql.relations import sql
from dpsqlp.sql.syntax import DatabaseError

_RESERVED = ("released",)
_NAME_MAX = 200  # bytes of a sink's name
T = TypeVar("T")
# Types for which DuckDB's TRY_CAST and json_transform raise, or end the process.
_UNREADABLE = re.compile(
    r"\b(BIT|BITSTRING|BIGNUM|VARINT|VARIANT)\b|\bMAP\s*\((?!\s*(TEXT|VARCHAR|STRING)\b)", re.I
)


@dataclass(frozen=True, slots=True)
class Script:
    """The statements of a script, by kind."""

    text: Text
    sources: tuple[CreateSource, ...]
    tables: tuple[CreatePublicTable, ...]
    budgets: tuple[CreateBudget, ...]
    sinks: tuple[CreateSink, ...]


def read_file(file: Path) -> str:
    """The text of a script."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = f"{error.strerror or error}. Check the path."
    except UnicodeDecodeError:
        problem = "it is not UTF-8. Save it as UTF-8."
    raise PlanError(f"The file {file} cannot be read: {problem}")


def parse(text: str) -> Script:
    """The statements of a script; SqlError if a statement cannot be read or is not supported."""
    place = Text(text)
    statements = _not_too_deep(place, lambda: parse_statements(text))
    for statement in statements:
        if not isinstance(statement, CreateSource | CreatePublicTable | CreateBudget | CreateSink):
            raise place.refuse(
                statement,
                "A script has CREATE SOURCE, CREATE PUBLIC TABLE, CREATE BUDGET and CREATE SINK"
                " statements only",
                "Put a query into CREATE SINK name AS SELECT WITH DIFFERENTIAL_PRIVACY ....",
            )
    return Script(
        place,
        tuple(s for s in statements if isinstance(s, CreateSource)),
        tuple(s for s in statements if isinstance(s, CreatePublicTable)),
        tuple(s for s in statements if isinstance(s, CreateBudget)),
        tuple(s for s in statements if isinstance(s, CreateSink)),
    )


def compile_script(
    text: str, *, tables: Mapping[str, pa.Table] | None = None, folder: str = "."
) -> Program:
    """Every sink of a script, validated.

    `tables` are public tables handed in from Python; `folder` is where the files of CREATE PUBLIC
    TABLE are looked up.
    """
    script = parse(text)
    place = script.text
    _check_names(script, tables or {})
    sources = {s.name.lower(): _source(place, s) for s in script.sources}
    public = {name.lower(): PublicTable(name, *freeze(t)) for name, t in (tables or {}).items()}
    for table in script.tables:
        public[table.name.lower()] = _public_table(place, table, public, sources, folder)
    budgets = _budgets(script, folder)
    if not script.sinks:
        raise place.error(
            "The script has no CREATE SINK", "Add CREATE SINK name AS SELECT ....", 0, 0
        )
    binder = Binder(
        {source.name: source.columns for source in sources.values()},
        {known.name: known.rows for known in public.values()},
    )
    compiled = []
    for statement in script.sinks:
        query = _not_too_deep(
            place,
            lambda query=statement.expression: sink.compile_query(  # type: ignore[misc]
                place, query, sources, public, binder
            ),
        )
        account = read_account(place, statement, query, budgets)
        options = read_options(place, statement, "sink")
        compiled.append(SinkDef(statement.name, options, replace(query, account=account)))
    _check_budgets_named(script, compiled)
    return Program(sources, public, tuple(compiled))


def compile_budgets(text: str, *, folder: str = ".") -> dict[str, BudgetDef]:
    """The budgets of a script, by name in lower case; its other statements are not compiled."""
    return _budgets(parse(text), folder)


def _budgets(script: Script, folder: str) -> dict[str, BudgetDef]:
    budgets: dict[str, BudgetDef] = {}
    places: dict[tuple[str, ...], str] = {}
    for statement in script.budgets:
        if statement.name.lower() in budgets:
            raise script.text.refuse(
                statement.this, f"There are two budgets named {statement.name}", "Rename one."
            )
        budget = read_budget(script.text, statement, folder)
        other = places.setdefault(ledger_place(budget), budget.name)
        if other != budget.name:
            raise script.text.refuse(
                statement.this,
                f"The budgets {other} and {budget.name} have the same ledger",
                "Give one of them another, or name one budget in all sinks.",
            )
        budgets[statement.name.lower()] = budget
    return budgets


def _check_budgets_named(script: Script, sinks: Sequence[SinkDef]) -> None:
    """Refuse a budget without a sink: one was meant to be held to it."""
    named = {sink.query.account.budget.name for sink in sinks if sink.query.account is not None}
    for statement in script.budgets:
        if statement.name not in named:
            raise script.text.refuse(
                statement.this,
                f"No sink names the budget {statement.name}, so it bounds nothing",
                f"Add budget = {statement.name} to the OPTIONS of a sink, or leave the budget out.",
            )


def _not_too_deep(place: Text, work: Callable[[], T]) -> T:
    try:
        return work()
    except RecursionError:
        raise place.error(
            "An expression of this script is nested too deeply",
            "Use fewer parentheses and shorter chains of operators; IN (...) takes long lists.",
            0,
            0,
        ) from None


def _check_names(script: Script, tables: Mapping[str, pa.Table]) -> None:
    relations = {name.lower() for name in tables}
    for statement in (*script.sources, *script.tables):
        name = statement.name.lower()
        if name in _RESERVED:
            raise script.text.refuse(
                statement.this, f"The name {statement.name} is reserved", "Choose another name."
            )
        if name in relations:
            raise script.text.refuse(
                statement.this,
                f"There are two sources or tables named {statement.name}",
                "Rename one of them.",
            )
        relations.add(name)
    sinks: set[str] = set()
    for statement in script.sinks:
        name = statement.name
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode()) > _NAME_MAX:
            raise script.text.refuse(
                statement.this,
                "A sink's name is also the name of its state folder; this name cannot be a folder",
                f"Choose a name without slashes, of 1 to {_NAME_MAX} bytes, not . or .. alone.",
            )
        if name.endswith(".releases"):
            raise script.text.refuse(
                statement.this,
                "Names that end in .releases are reserved for the dashboard's folders",
                "Choose another name.",
            )
        if statement.name.lower() in sinks:
            raise script.text.refuse(
                statement.this,
                f"There are two sinks named {statement.name}; each is a pipeline of its own",
                "Rename one of them.",
            )
        sinks.add(statement.name.lower())


def _source(place: Text, statement: CreateSource) -> SourceDef:
    columns: list[tuple[str, str]] = []
    for column in statement.args["columns"]:
        kind = sql(column.args["kind"])
        if not is_type(kind):
            raise place.refuse(
                column, f"There is no type {kind}", "Use DuckDB's types: TEXT, BIGINT, TIMESTAMP."
            )
        if _UNREADABLE.search(kind):
            raise place.refuse(
                column,
                f"A value that is not a {kind} would stop the run instead of being null",
                "Use TEXT, or MAP with TEXT keys, and cast it in the query.",
            )
        if _has_nested_interval(column.args["kind"]):
            raise place.refuse(
                column,
                "An INTERVAL inside another type would not keep its value in every case",
                "Use TEXT, and cast it in the query: TRY_CAST(x.a AS INTERVAL).",
            )
        if column.name.lower() in {name.lower() for name, _ in columns}:
            raise place.refuse(
                column, f"There are two columns named {column.name}", "Rename one of them."
            )
        columns.append((column.name, kind))
    options = read_options(place, statement, "source")
    return SourceDef(statement.name, tuple(columns), options)


def _has_nested_interval(kind: exp.Expr) -> bool:
    """Whether a type holds an INTERVAL: Arrow's have a smaller range than DuckDB's."""
    return any(
        node is not kind and node.this == exp.DType.INTERVAL for node in kind.find_all(exp.DataType)
    )


def _public_table(
    place: Text,
    statement: CreatePublicTable,
    public: Mapping[str, PublicTable],
    sources: Mapping[str, SourceDef],
    folder: str,
) -> PublicTable:
    for table in statement.find_all(exp.Table):
        if table.name.lower() in sources:
            raise place.refuse(
                table,
                f"A public table is not protected, and {table.name} is a private stream",
                "Read public tables from files or other public tables.",
            )
    texts = [n for n in statement.find_all(exp.Literal) if n.is_string]
    named = {node.name: node for node in (*statement.find_all(exp.Table), *texts)}
    for source in sources.values():
        try:
            shared = shared_file(named, source, folder)
        except PlanError:  # the pipeline cannot run yet
            continue
        if shared is not None:
            raise place.refuse(
                named[shared],
                f"A public table is not protected, and {shared} has files of {source.name}, which"
                " is a private stream",
                "Keep public files in a folder of their own.",
            )
    known = {table.name: table.rows for table in public.values()}
    try:
        rows, digest = read_public(sql(statement.expression), known, folder)
    except DatabaseError as problem:
        raise place.refuse(
            statement.this,
            f"The public table {statement.name} cannot be read: {problem}",
            "Check the query and the file; paths are relative to the script.",
        ) from None
    return PublicTable(statement.name, rows, digest)
