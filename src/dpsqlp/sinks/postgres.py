"""A table in PostgreSQL with the releases of all triggers, and a view of the last ones.

One transaction adds a trigger's rows. If the answer to its COMMIT is lost, the trigger is given
again, and its rows are compared with those there; a lock sees to it that the earlier transaction
has ended by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pc

from dpsqlp.clients.postgres import Server, literal, quoted, split_name
from dpsqlp.errors import SinkError
from dpsqlp.sinks.base import Sink, is_another, is_behind

if TYPE_CHECKING:
    import psycopg

_SECONDS = 600.0  # for one release; hundreds of times what 100,000 rows take
_NAME_BYTES = 63
_CURRENT = "_current"
_OWNER = "dpsqlp pipeline "  # in the table's comment
_CHUNK_ROWS = 1 << 16
_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.time64("us"): "time without time zone",
}


class PostgresSink(Sink):
    """A table with the rows of all triggers, and the view `<table>_current`."""

    def __init__(self, dsn: str, table: str) -> None:
        self._schema, self._name = split_name(table, _NAME_BYTES - len(_CURRENT))
        self._table = quoted(self._schema, self._name)
        self._view = quoted(self._schema, self._name + _CURRENT)
        self._server = Server(dsn, SinkError, "The release is kept.")
        self._pipeline, self._keys = "", list[str]()

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Say whose releases they will be: the table is no other pipeline's."""
        self._pipeline, self._keys = pipeline, list(keys)

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Add the trigger's rows in one transaction; if it has some, they must be the same."""
        columns = ", ".join(quoted(name) for name in release.column_names)
        rows = _as_text(release)
        with self._server.transaction(_SECONDS, writes=True) as connection:
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            # An earlier attempt may still be at its COMMIT: its rows could not be seen yet.
            connection.execute(
                f"SELECT pg_advisory_xact_lock(hashtextextended({literal(self._table)}, 0))"
            )
            self._prepare(connection, release.schema)
            known = self._is_known(connection, trigger, release.num_rows)
            command = f"COPY {self._table} ({columns}) FROM STDIN (FORMAT csv)"
            with connection.cursor().copy(command) as copy:
                for batch in rows.to_batches(_CHUNK_ROWS):
                    copy.write(_csv(batch))
            if known:
                self._compare(connection, trigger)

    def _is_known(self, connection: psycopg.Connection[Any], trigger: int, rows: int) -> bool:
        """Whether the table has rows of a trigger. If it has only later ones, the state is old."""
        query = f"SELECT max(trigger) FROM {self._table} WHERE trigger"
        [[known]] = connection.execute(f"{query} = {int(trigger)}").fetchall()
        [[later]] = connection.execute(f"{query} > {int(trigger)}").fetchall()
        if known is None and later is not None and rows:
            raise is_behind(trigger, later, self._table)
        return known is not None

    def _compare(self, connection: psycopg.Connection[Any], trigger: int) -> None:
        """Take back the rows that were just added, if those before are the same; else refuse."""
        mine = "xmin = pg_current_xact_id()::xid"
        of_trigger = f"FROM {self._table} AS r WHERE trigger = {int(trigger)}"
        rows = f'SELECT array_agg((r.*)::text ORDER BY (r.*)::text COLLATE "C") {of_trigger} AND'
        query = f"SELECT ({rows} {mine}) IS NOT DISTINCT FROM ({rows} NOT {mine})"
        if connection.execute(query).fetchone() != (True,):
            raise is_another(trigger, self._table)
        connection.execute(f"DELETE {of_trigger} AND {mine}")

    def close(self) -> None:
        """Let go of the connection."""
        self._server.close()

    def _prepare(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """Make the table and its view, or see that they are what is needed."""
        encoding = connection.execute("SELECT current_setting('server_encoding')").fetchone()
        if encoding != ("UTF8",):
            raise SinkError(
                f"The database has the encoding {encoding and encoding[0]}, which lacks characters"
                " that a key may have. The release is kept. Use a database with UTF8."
            )
        wanted = {field.name: _postgres_type(field.type) for field in schema}
        for name in wanted:
            if len(name.encode()) > _NAME_BYTES:
                raise SinkError(
                    f"The released column {name!r} has {len(name.encode())} bytes; names in"
                    f" PostgreSQL have at most {_NAME_BYTES}. Release it to another connector, or"
                    " begin a new pipeline with a shorter name (AS ...)."
                )
        found = connection.execute(
            "SELECT relkind::text, relpersistence::text,"
            " coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class"
            f" WHERE oid = to_regclass({literal(self._table)})"
        ).fetchone()
        if found is None:
            self._create(connection, wanted)
            self._show(connection, schema)
            return
        kind, persistence, comment = found
        if persistence != "p":
            raise SinkError(
                f"{self._table} does not survive a crash of the server. The release is kept. Run"
                f" ALTER TABLE {self._table} SET LOGGED, then run again."
            )
        columns: dict[Any, Any] = dict(
            connection.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE"
                f" attrelid = to_regclass({literal(self._table)}) AND attnum > 0"
                " AND NOT attisdropped"
            ).fetchall()
        )
        if kind not in ("r", "p") or columns != wanted:
            differing = sorted(
                name
                for name in columns.keys() | wanted.keys()
                if columns.get(name) != wanted.get(name)
            )
            raise SinkError(
                f"{self._table} is there already and is no table of this sink's columns; other,"
                f" missing or of another type: {', '.join(differing) or 'none'}. The release is"
                " kept. Give table = another name, or rename or drop that one, then run again."
            )
        owner = comment.removeprefix(_OWNER) if comment.startswith(_OWNER) else None
        if owner not in (None, self._pipeline):
            raise SinkError(
                f"{self._table} has the releases of another pipeline, whose triggers have the same"
                " numbers. The release is kept. Give table = another name, or rename or drop that"
                " one, then run again."
            )
        if owner is None:
            self._claim(connection)
        view = connection.execute(f"SELECT to_regclass({literal(self._view)})").fetchone()
        if view == (None,):
            self._show(connection, schema)
            return
        reads = connection.execute(
            "SELECT FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid"
            f" WHERE r.ev_class = to_regclass({literal(self._view)})"
            f" AND d.refobjid = to_regclass({literal(self._table)})"
        ).fetchone()
        if reads is None:
            raise SinkError(
                f"{self._view} is there already and is no view of {self._table}. The release is"
                " kept. Rename or drop it, then run again."
            )

    def _create(self, connection: psycopg.Connection[Any], wanted: dict[str, str]) -> None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
        connection.execute(
            f"CREATE TABLE {self._table} ({columns});"
            f"CREATE INDEX ON {self._table} (trigger);"  # whether a trigger is there
            f"CREATE INDEX ON {self._table} (window_start)"  # the view, asked for a window
        )
        self._claim(connection)

    def _claim(self, connection: psycopg.Connection[Any]) -> None:
        """Say in the table's comment whose releases it has."""
        owner = literal(_OWNER + self._pipeline)
        connection.execute(f"COMMENT ON TABLE {self._table} IS {owner}")

    def _show(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """The last release of each key in each window. Byte order: any other is slower."""
        apart = ["window_start"]
        for name in self._keys:
            text = _postgres_type(schema.field(name).type) == "text"
            apart.append(quoted(name) + (' COLLATE "C"' if text else ""))
        order = ", ".join([*apart, "trigger DESC"])
        connection.execute(
            f"CREATE VIEW {self._view} AS SELECT DISTINCT ON ({', '.join(apart)}) *"
            f" FROM {self._table} ORDER BY {order}"
        )


def _postgres_type(kind: pa.DataType) -> str:
    """What PostgreSQL calls an Arrow type. Text holds what it has no exact type for."""
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return f"timestamp {'with' if kind.tz else 'without'} time zone"
    return "bytea" if _is_bytes(kind) else "text"


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def _as_text(release: pa.Table) -> pa.Table:
    """All columns as the texts that PostgreSQL reads."""
    numbered = release.rename_columns([f"c{place}" for place in range(release.num_columns)])
    texts = [_text(f"c{place}", field.type) for place, field in enumerate(release.schema)]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("release", numbered)
        return database.sql(f"SELECT {', '.join(texts)} FROM release").to_arrow_table()


def _text(column: str, kind: pa.DataType) -> str:
    if _is_bytes(kind):
        return rf"'\x' || hex({column}) AS {column}"
    text = f"CAST({column} AS VARCHAR)"
    match _postgres_type(kind):
        case "text":  # it cannot hold U+0000, and a key must not stop a pipeline
            text = f"replace({text}, chr(0), '\u2400')"
        case "date" | "timestamp without time zone" | "timestamp with time zone":
            # Its years end elsewhere: 4713 BC, and for dates 5874897.
            late = f"WHEN {column} > DATE '5874897-12-31' THEN 'infinity'"
            text = (
                f"CASE WHEN {column} < DATE '4713-01-01 (BC)' THEN '-infinity'"
                f" {late if pa.types.is_date(kind) else ''}"
                f" WHEN contains({text}, ' (BC)') THEN replace({text}, ' (BC)', '') || ' BC'"
                f" ELSE {text} END"
            )
    return f"{text} AS {column}"


def _csv(rows: pa.RecordBatch) -> bytes:
    """Nulls are bare, everything else is in quotes, as COPY wants it."""
    buffer = pa.BufferOutputStream()
    pc.write_csv(rows, buffer, pc.WriteOptions(include_header=False, quoting_style="all_valid"))
    return bytes(buffer.getvalue())
