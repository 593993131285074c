"""PostgreSQL: a table with the releases of all triggers, and a view of the latest values.

One transaction adds a trigger's rows and stores its number and digest in `<table>_triggers`, also
for a release without rows. If the answer to COMMIT is lost, the trigger is emitted again and its
digest is compared. A lock makes the second attempt wait until the first transaction has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pc

from dpsqlp.clients.postgres import Server, literal, quoted, split_name
from dpsqlp.errors import SinkError
from dpsqlp.sinks.base import DIAGNOSTICS_SUFFIX, Sink
from dpsqlp.sinks.published import Published, earlier_trigger, other_pipeline, release_digest
from dpsqlp.sql.quoting import quote_identifier

if TYPE_CHECKING:
    import psycopg

_SECONDS = 600.0  # limit for one release; 100,000 rows take a few
_NAME_BYTES = 63
_CURRENT = "_current"
_TRIGGERS = "_triggers"
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
    """The table, the view `<table>_current`, and the last trigger in `<table>_triggers`."""

    def __init__(self, dsn: str, table: str) -> None:
        longest = _NAME_BYTES - max(len(_CURRENT), len(_TRIGGERS))
        self._given = table
        self._schema, self._name = split_name(table, longest)
        self._table = quoted(self._schema, self._name)
        self._view = quoted(self._schema, self._name + _CURRENT)
        self._triggers = quoted(self._schema, self._name + _TRIGGERS)
        self._dsn = dsn
        self._server = Server(dsn, SinkError, "The release is kept.")
        self._pipeline, self._keys = "", list[str]()

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Name the pipeline and the key columns. Nothing is connected yet."""
        self._pipeline, self._keys = pipeline, list(keys)

    def diagnostics(self) -> PostgresSink:
        """A table beside this one."""
        return PostgresSink(self._dsn, f"{self._given}{DIAGNOSTICS_SUFFIX}")

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Add the trigger's rows in one transaction, unless they were published."""
        digest = release_digest(release)
        columns = ", ".join(quote_identifier(name) for name in release.column_names)
        rows = _as_text(release)
        with self._server.transaction(_SECONDS, writes=True) as connection:
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            # An earlier attempt may still be at its COMMIT, with rows that are not visible yet.
            connection.execute(
                f"SELECT pg_advisory_xact_lock(hashtextextended({literal(self._table)}, 0))"
            )
            self._prepare(connection, release.schema)
            published = self._last_published(connection, trigger)
            if published is not None and published.has(trigger, digest, self._table):
                return
            command = f"COPY {self._table} ({columns}) FROM STDIN (FORMAT csv)"
            with connection.cursor().copy(command) as copy:
                for batch in rows.to_batches(_CHUNK_ROWS):
                    copy.write(_csv(batch))
            connection.execute(
                f"INSERT INTO {self._triggers} (pipeline, trigger, digest)"
                f" VALUES ({literal(self._pipeline)}, {int(trigger)}, {literal(digest)})"
                " ON CONFLICT (pipeline)"
                " DO UPDATE SET trigger = excluded.trigger, digest = excluded.digest"
            )

    def _last_published(
        self, connection: psycopg.Connection[Any], trigger: int
    ) -> Published | None:
        """The pipeline's last release. Without a digest, rows of this or a later trigger are
        refused: they cannot be compared.
        """
        last = connection.execute(
            f"SELECT trigger, digest FROM {self._triggers}"
            f" WHERE pipeline = {literal(self._pipeline)}"
        ).fetchone()
        if last is not None:
            return Published(*last)
        [[latest]] = connection.execute(f"SELECT max(trigger) FROM {self._table}").fetchall()
        if latest is not None and latest >= trigger:
            raise earlier_trigger(trigger, latest, self._table)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _prepare(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """Create the tables and the view, or check that they fit."""
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
        if not self._is_logged_table(connection, self._table):
            columns = ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in wanted.items())
            connection.execute(
                f"CREATE TABLE {self._table} ({columns});"
                f"CREATE INDEX ON {self._table} (trigger);"  # old triggers are deleted by it
                f"CREATE INDEX ON {self._table} (window_start)"  # for the view of one window
            )
        self._check_columns(connection, wanted)
        self._check_owner(connection)
        if not self._is_logged_table(connection, self._triggers):
            connection.execute(
                f"CREATE TABLE {self._triggers}"
                " (pipeline text PRIMARY KEY, trigger bigint NOT NULL, digest text NOT NULL)"
            )
        self._prepare_view(connection, schema)

    def _is_logged_table(self, connection: psycopg.Connection[Any], name: str) -> bool:
        """Whether there is such a table. It must survive a crash of the server."""
        found = connection.execute(
            f"SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass({literal(name)})"
        ).fetchone()
        if found not in (None, ("p",)):
            raise SinkError(
                f"{name} does not survive a crash of the server. The release is kept. Run"
                f" ALTER TABLE {name} SET LOGGED, then run again."
            )
        return found is not None

    def _check_columns(self, connection: psycopg.Connection[Any], wanted: dict[str, str]) -> None:
        oid = f"to_regclass({literal(self._table)})"
        kind = connection.execute(
            f"SELECT relkind::text FROM pg_class WHERE oid = {oid}"
        ).fetchone()
        columns: dict[Any, Any] = dict(
            connection.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
                f" WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
            ).fetchall()
        )
        if kind not in (("r",), ("p",)) or columns != wanted:
            differing = sorted(
                name
                for name in columns.keys() | wanted.keys()
                if columns.get(name) != wanted.get(name)
            )
            raise SinkError(
                f"{self._table} exists and is not a table with this sink's columns. Columns that"
                f" are missing, unknown or of another type: {', '.join(differing) or 'none'}. The"
                " release is kept. Give table = another name, or rename or drop that one, then run"
                " again."
            )

    def _check_owner(self, connection: psycopg.Connection[Any]) -> None:
        """Claim a table without a comment; refuse the table of another pipeline."""
        [[comment]] = connection.execute(
            f"SELECT obj_description(to_regclass({literal(self._table)}), 'pg_class')"
        ).fetchall()
        if not (comment or "").startswith(_OWNER):
            owner = literal(_OWNER + self._pipeline)
            connection.execute(f"COMMENT ON TABLE {self._table} IS {owner}")
        elif comment != _OWNER + self._pipeline:
            raise other_pipeline(self._table, "table", "rename or drop the table")

    def _prepare_view(self, connection: psycopg.Connection[Any], schema: pa.Schema) -> None:
        """Create the view of the latest values, or check that it reads the table."""
        view = f"to_regclass({literal(self._view)})"
        if connection.execute(f"SELECT {view}").fetchone() == (None,):
            columns = ["window_start"]
            for name in self._keys:
                text = _postgres_type(schema.field(name).type) == "text"
                columns.append(
                    quote_identifier(name) + (' COLLATE "C"' if text else "")
                )  # the fastest order
            connection.execute(
                f"CREATE VIEW {self._view} AS SELECT DISTINCT ON ({', '.join(columns)}) *"
                f" FROM {self._table} ORDER BY {', '.join([*columns, 'trigger DESC'])}"
            )
            return
        reads = connection.execute(
            "SELECT FROM pg_rewrite r JOIN pg_depend d ON d.objid = r.oid"
            f" WHERE r.ev_class = {view} AND d.refobjid = to_regclass({literal(self._table)})"
        ).fetchone()
        if reads is None:
            raise SinkError(
                f"{self._view} exists and is not a view of {self._table}. The release is kept."
                " Rename or drop it, then run again."
            )


def _postgres_type(kind: pa.DataType) -> str:
    """The PostgreSQL type of an Arrow type. Types without an exact counterpart become text."""
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_list(kind):
        return f"{_postgres_type(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return f"timestamp {'with' if kind.tz else 'without'} time zone"
    return "bytea" if _is_bytes(kind) else "text"


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def _as_text(release: pa.Table) -> pa.Table:
    """All columns as texts that PostgreSQL can parse."""
    numbered = release.rename_columns([f"c{index}" for index in range(release.num_columns)])
    texts = [_text(f"c{index}", field.type) for index, field in enumerate(release.schema)]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("release", numbered)
        return database.sql(f"SELECT {', '.join(texts)} FROM release").to_arrow_table()


def _text(column: str, kind: pa.DataType) -> str:
    if _is_bytes(kind):
        return rf"'\x' || hex({column}) AS {column}"
    text = f"CAST({column} AS VARCHAR)"
    if pa.types.is_list(kind):  # of numbers: [1, 2] is {1, 2}
        return f"translate({text}, '[]', '{{}}') AS {column}"
    match _postgres_type(kind):
        case "text":  # it cannot hold U+0000
            text = f"replace({text}, chr(0), '\u2400')"
        case "date" | "timestamp without time zone" | "timestamp with time zone":
            # PostgreSQL has the years from 4713 BC, and for dates up to 5874897.
            late = f"WHEN {column} > DATE '5874897-12-31' THEN 'infinity'"
            text = (
                f"CASE WHEN {column} < DATE '4713-01-01 (BC)' THEN '-infinity'"
                f" {late if pa.types.is_date(kind) else ''}"
                f" WHEN contains({text}, ' (BC)') THEN replace({text}, ' (BC)', '') || ' BC'"
                f" ELSE {text} END"
            )
    return f"{text} AS {column}"


def _csv(rows: pa.RecordBatch) -> bytes:
    """CSV as COPY reads it: values in quotes, nulls without."""
    buffer = pa.BufferOutputStream()
    pc.write_csv(rows, buffer, pc.WriteOptions(include_header=False, quoting_style="all_valid"))
    return bytes(buffer.getvalue())
