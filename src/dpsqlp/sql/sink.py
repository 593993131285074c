"""One sink's query: groups, window, unit, aggregates, and the two SQL texts that run.

The row query (text that runs below the aggregation) and the release query (text that runs on what
is released) are the only parts of the user's SQL that reach an engine. The core is between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa
from sqlglot import exp

from dpsqlp.accounting.model import ContributionBounds, Process
from dpsqlp.entropy.canonical import encode, kind_of
from dpsqlp.sql.aggregates import Aggregates, default_name
from dpsqlp.sql.binder import Binder
from dpsqlp.sql.canonical_form import normal_form
from dpsqlp.sql.dialect import PrivacyClause
from dpsqlp.sql.emit import read_emit
from dpsqlp.sql.expressions import Expressions
from dpsqlp.sql.functions import check_rows
from dpsqlp.sql.groups import Groups, check_unit, read_groups, read_period, read_timestamp
from dpsqlp.sql.location import Text
from dpsqlp.sql.options import PrivacyOptions, read_privacy
from dpsqlp.sql.outputs import key_name, read_outputs, released_column, released_names
from dpsqlp.sql.query import (
    Calendar,
    Length,
    PublicTable,
    Query,
    SourceDef,
    Tumble,
    Window,
    counts_units_alone,
    no_closing,
)
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.relations import Scope, safe, sql
from dpsqlp.sql.release import Post, release_sql
from dpsqlp.sql.row_limits import BYTES_MAX, unbounded
from dpsqlp.sql.rows import RowPart
from dpsqlp.sql.syntax import DatabaseError

_SCALARS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("VARCHAR", "BLOB", "DATE", "TIMESTAMP", "UUID", "JSON", "ENUM"),
)
_LONG = ("VARCHAR", "JSON", "BLOB")


def compile_query(
    text: Text,
    node: exp.Expr,
    sources: Mapping[str, SourceDef],
    tables: Mapping[str, PublicTable],
    binder: Binder,
) -> Query:
    """A sink's query, validated and rewritten."""
    select = _private_select(text, node)
    options = read_privacy(text, select.args["hint"])
    source = _find_source(text, select, sources)
    others = {name for name in sources if name != source.name.lower()}
    expressions = Expressions(text, binder)
    unnests = len(list(select.find_all(exp.Unnest, exp.Explode)))
    scope = RowPart(text, source, others, tables, expressions, unnests).scope(select)
    if not any(relation.stream for relation in scope.relations):
        raise text.refuse(
            select.args["from_"], "The query reads no source", "Select from a source."
        )

    groups = read_groups(text, select, scope)
    for key in groups.keys:
        expressions.check(key, scope)
    emit = read_emit(text, select, groups.window, source)
    check_unit(text, options, groups, expressions, scope)
    period = read_period(text, options, groups, emit)
    timestamp = read_timestamp(text, options, groups, emit, expressions, scope)

    aggregates = Aggregates(text, expressions, scope, options.unit)
    outputs = read_outputs(text, select, groups, aggregates)
    post = Post(
        text,
        expressions,
        lambda n: released_column(n, groups, outputs),
        lambda n: aggregates.read(n, default_name(n) or "having").sql,
        released_names(outputs),
    )
    released = release_sql(text, select, outputs, post)
    if not aggregates.processes and not groups.keys:
        raise text.refuse(select, "There is nothing to release", "Select a key or an aggregate.")

    row_sql, schema, types = _row_query(
        text, select, expressions, scope, options, groups, timestamp, period, aggregates.values
    )
    units = len(options.unit)
    unit_kinds, key_kinds = _kinds(text, schema, types, options, groups)
    names = tuple(key_name(outputs, n) for n in range(len(groups.keys)))
    key_types = tuple(types[units : units + len(names)])
    _check_release(text, select, released, key_types, aggregates, expressions)
    used = tuple(tables[name] for name in sorted(tables) if _uses(select, options, name))
    public_keys = _public_keys(text, options, tables, names, key_types, binder)
    return Query(
        source=source,
        row_sql=row_sql,
        release_sql=released,
        normal_form=normal_form(select, source, used),
        public_tables=used,
        unit_names=tuple(column.name for column in options.unit),
        unit_types=tuple(types[:units]),
        unit_kinds=unit_kinds,
        key_names=names,
        key_types=key_types,
        key_kinds=key_kinds,
        window=groups.window,
        emit=emit,
        period=period,
        epsilon=options.epsilon,
        delta=options.delta,
        caps=_caps(options, aggregates.processes, public_keys is not None),
        minimum=options.minimum,
        selection_share=options.selection_share,
        selection_spending=options.selection_spending,
        mechanism=options.mechanism,
        release=options.release,
        closing=_closing(text, options, public_keys, groups.window, period),
        diagnostics_share=options.diagnostics_share,
        public_keys=public_keys,
        processes=tuple(aggregates.processes),
        quantiles=tuple(aggregates.quantiles),
        outputs=outputs,
        event_column=_event_column(select, source, timestamp),
    )


def _caps(
    options: PrivacyOptions, processes: Sequence[Process], public_keys: bool
) -> ContributionBounds:
    """The bounds; by default COUNT(DISTINCT unit) counts every unit with a kept row. By itself it
    keeps one row of a unit in a group, so further ones use up nothing.
    """
    caps = options.caps
    distinct = any(process.kind == "distinct" for process in processes)
    if distinct and not options.selections_given:
        caps = replace(caps, selections=caps.records)
    if counts_units_alone(processes, options.release, public_keys):
        caps = replace(caps, records_per_key=1)
    return caps


def _closing(
    text: Text,
    options: PrivacyOptions,
    public_keys: tuple[bytes, ...] | None,
    window: Window | None,
    period: Length | None,
) -> bool:
    """Whether a window ends with a closing: by default wherever it is possible."""
    obstacle = no_closing(options.release, public_keys, window, period)
    if options.closing and obstacle is not None:
        assert options.closing_node is not None
        raise text.refuse(
            options.closing_node, f"There is no closing here: {obstacle}", "Leave the option out."
        )
    return obstacle is None and options.closing is not False


def _event_column(select: exp.Select, source: SourceDef, timestamp: exp.Expr | None) -> str | None:
    """The column of the source that the timestamp is, where the query reads the source directly.

    Event time is then left to the file reader, which skips what it need not read.
    """
    table = select.args["from_"].this
    if (
        not isinstance(table, exp.Table)
        or table.alias_column_names
        or select.args.get("with_")
        or select.args.get("joins")
        or not isinstance(timestamp, exp.Column)
    ):
        return None
    columns = {name.lower(): (name, kind) for name, kind in source.columns}
    name, kind = columns.get(timestamp.name.lower(), ("", ""))
    return name if kind.upper() == "TIMESTAMP" else None


def _private_select(text: Text, node: exp.Expr) -> exp.Select:
    if isinstance(node, exp.SetOperation):
        raise text.refuse(
            node, "A sink has one SELECT", "Use one sink for each; their spending adds up."
        )
    if not isinstance(node, exp.Select):
        raise text.refuse(
            node, "A sink has a SELECT", "Write SELECT WITH DIFFERENTIAL_PRIVACY ...."
        )
    if not isinstance(node.args.get("hint"), PrivacyClause):
        raise text.refuse(
            node,
            "A sink publishes its result, so its SELECT must be private",
            "Write SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = ..., delta = ...,"
            " privacy_unit_column = ..., max_contribution_norm = ...) ....",
        )
    allowed = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit"}
    allowed |= {"offset", "with_", "hint", "emit"}
    for name, value in node.args.items():
        if value and name not in allowed:
            place = value[0] if isinstance(value, list) else value
            word = name.rstrip("_").upper()
            raise text.refuse(
                place if isinstance(place, exp.Expr) else node,
                f"{word} is not supported here",
                "Groups are distinct already; leave DISTINCT out."
                if word == "DISTINCT"
                else "HAVING, ORDER BY and LIMIT act on released rows.",
            )
    return node


def _find_source(text: Text, select: exp.Select, sources: Mapping[str, SourceDef]) -> SourceDef:
    """The stream the query reads: the first source that is named."""
    for table in select.find_all(exp.Table):
        if table.name.lower() in sources:
            return sources[table.name.lower()]
    if not sources:
        raise text.refuse(
            select, "The script has no CREATE SOURCE", "Define the stream with CREATE SOURCE."
        )
    return next(iter(sources.values()))


def _row_query(
    text: Text,
    select: exp.Select,
    expressions: Expressions,
    scope: Scope,
    options: PrivacyOptions,
    groups: Groups,
    timestamp: exp.Expr | None,
    period: Length | None,
    values: list[str],
) -> tuple[str, pa.Schema, list[str]]:
    """The row query: the user's row part, then window, timestamp and period as numbers."""
    units = [exp.alias_(column.copy(), f"unit_{n}") for n, column in enumerate(options.unit)]
    keys = [exp.alias_(safe(key), f"key_{n}") for n, key in enumerate(groups.keys)]
    t = "CAST(NULL AS BIGINT)" if timestamp is None else f"TRY(EPOCH_US({sql(timestamp)}))"
    parts = [
        *(sql(node) for node in (*units, *keys)),
        f"{t} AS timestamp_us",
        *(f"{value} AS value_{n}" for n, value in enumerate(values)),
    ]
    inner = scope.query([exp.Var(this=part) for part in parts])
    periods = [] if period is None else [f"{_item_number(period)} AS period_number"]
    outer = [
        *(f"unit_{n}" for n in range(len(units))),
        *(f"key_{n}" for n in range(len(keys))),
        f"{_window_number(groups.window)} AS window_number",
        "timestamp_us",
        *periods,
        *(f"value_{n}" for n in range(len(values))),
    ]
    query = f"SELECT {', '.join(outer)} FROM ({inner}) AS row_part"
    found = check_rows(query)
    if found is not None or unbounded(inner):
        raise text.refuse(
            select,
            f"The row part has {found or 'a function'}, which is not known to work on one row by"
            " itself, with a result of limited length",
            "Write it with scalar functions, joins to public tables and UNNEST.",
        )
    try:
        columns = expressions.binder.types(query)
        query += _short([kind for _, kind in columns], outer[: len(units) + len(keys)])
        schema = expressions.binder.schema(query)
        expressions.binder.try_out(query)
    except DatabaseError as problem:
        raise expressions.translate(problem, select, scope) from None
    if [name for name, _ in columns] != [part.rsplit(" ", 1)[-1] for part in outer]:
        raise text.refuse(
            select,
            "An expression stands for several columns",
            "List the columns one by one; COLUMNS(...) is not supported.",
        )
    return query, schema, [kind for _, kind in columns]


def _short(types: list[str], names: list[str]) -> str:
    """The condition that no text of a unit or key is too long to keep."""
    lengths = [
        f"{'OCTET_LENGTH' if kind == 'BLOB' else 'STRLEN'}({name})"
        for kind, name in zip(types, names, strict=False)
        if kind in _LONG
    ]
    return f" WHERE GREATEST(0, {', '.join(lengths)}) <= {BYTES_MAX}" if lengths else ""


def _floor(number: str, size: int) -> str:
    """Floor division; DuckDB's // rounds towards zero."""
    return f"{number} // {size} - CAST({number} % {size} < 0 AS BIGINT)"


def _item_number(length: Length) -> str:
    """The number of a period; a calendar's is looked up in the plan's table."""
    return "timestamp_us" if isinstance(length, Calendar) else _floor("timestamp_us", length)


def _window_number(window: Window | None) -> str:
    if window is None:
        return "CAST(0 AS BIGINT)"
    if isinstance(window, Tumble | Calendar):
        return _item_number(window if isinstance(window, Calendar) else window.size_us)
    last = _floor("timestamp_us", window.hop_us)
    first = f"TRY({_floor(f'(timestamp_us - {window.size_us})', window.hop_us)} + 1)"
    return f"UNNEST(RANGE({first}, {last} + 1))"


def _kinds(
    text: Text, schema: pa.Schema, types: list[str], options: PrivacyOptions, groups: Groups
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    nodes = [*options.unit, *groups.keys]
    kinds = []
    for node, column, kind in zip(nodes, schema, types, strict=False):
        if not (kind.startswith(_SCALARS) or kind == "TIME") or kind.endswith("]"):
            raise text.refuse(
                node,
                f"A unit or key cannot be of type {kind}",
                "Use a scalar, for example CAST(x AS VARCHAR) or CAST(x AS BIGINT).",
            )
        kinds.append(kind_of(column.type))
    return tuple(kinds[: len(options.unit)]), tuple(kinds[len(options.unit) :])


def _check_release(
    text: Text,
    select: exp.Select,
    released: str,
    key_types: tuple[str, ...],
    aggregates: Aggregates,
    expressions: Expressions,
) -> None:
    """Bind the release query against an empty table."""
    columns = [
        "window_number BIGINT, window_start TIMESTAMP, window_end TIMESTAMP",
        "window_local TIMESTAMP",
        "trigger BIGINT, released_at TIMESTAMP, window_trigger BIGINT, final BOOLEAN",
        "position BIGINT",
        *(f"key_{n} {kind}" for n, kind in enumerate(key_types)),
        *(
            f"p{n} DOUBLE{'[]' if process.kind == 'histogram' else ''}, p{n}_sd DOUBLE"
            for n, process in enumerate(aggregates.processes)
        ),
        *(f"q{n} DOUBLE[], q{n}_sd DOUBLE[]" for n in range(len(aggregates.quantiles))),
    ]
    connection = expressions.binder.connection
    connection.execute(f"CREATE OR REPLACE TEMP TABLE released ({', '.join(columns)})")
    try:
        expressions.binder.types(released)
    except DatabaseError as problem:
        place = select.args.get("having") or select.args.get("order") or select
        raise expressions.translate(problem, place) from None


def _uses(select: exp.Select, options: PrivacyOptions, table: str) -> bool:
    named = {node.name.lower() for node in select.find_all(exp.Table)}
    if options.public_groups is not None:
        named.add(options.public_groups.name.lower())
    return table in named


def _public_keys(
    text: Text,
    options: PrivacyOptions,
    tables: Mapping[str, PublicTable],
    names: tuple[str, ...],
    types: tuple[str, ...],
    binder: Binder,
) -> tuple[bytes, ...] | None:
    """The canonical bytes of the public groups. Without key columns there is one group."""
    node = options.public_groups
    if node is None:
        return None if names else (b"",)
    table = tables.get(node.name.lower())
    if table is None:
        raise text.refuse(
            node,
            f"There is no public table {node.name}",
            "Define it with CREATE PUBLIC TABLE name AS SELECT ....",
        )
    columns = ", ".join(
        f"CAST({quote_identifier(name)} AS {kind}) AS key_{n}"
        for n, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    try:
        query = f"SELECT {columns} FROM {quote_identifier(table.name)}"
        rows = binder.connection.sql(query).to_arrow_table()
    except duckdb.ConversionException:
        raise text.refuse(
            node,
            f"The public table {node.name} has values that cannot be group keys, which are"
            f" {', '.join(types)}",
            "Correct them, or cast the group key in GROUP BY.",
        ) from None
    except duckdb.Error:
        raise text.refuse(
            node,
            f"The public table {node.name} does not have the columns {', '.join(names)}",
            "Give it one column for each group key, by name.",
        ) from None
    encoded = encode([column.combine_chunks() for column in rows.columns], rows.num_rows)
    return tuple(sorted(set(encoded.to_arrow().to_pylist())))
