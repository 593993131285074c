"""A table in PostgreSQL that grows, read by a column that grows with every insert.

The column is an integer that the table's own sequence fills, or a `timestamptz` that the server's
clock fills. A trigger takes a range of it, (after, until]. Rows are inserted, not changed, until
their trigger is committed.

Why a range is complete: values are drawn in order, and committed in any order. `cut` first notes a
ceiling (the sequence's last value, or the clock), then lists the transactions that may still insert
below it, then waits for them to end, for half the time until the next cut, 3 seconds at most. A
transaction that draws from a sequence or inserts into a table holds a lock on it until it ends, so
the list is complete. Transaction ids would not do: a transaction has none until it writes, after it
has drawn. now() is the start of a transaction, so with a clock all transactions of the database are
waited for. If a transaction does not end in time, the ceiling of an earlier trigger is used, whose
transactions have ended; if there is none, the range is empty. The records go to a later trigger,
and none is lost.

Privacy contract: the trigger of a record follows from the time at which its own value was drawn,
and from how long transactions stay open. A range ends at the ceiling, never at the largest value
seen, which one record could push ahead of everybody else's. Values are read as text and cast one by
one: a value that cannot be cast, or is too long to be sent, is null. Rows whose ordering column is
null are never read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import duckdb
import pyarrow as pa
import pyarrow.csv as pc

from dpsqlp.clients.postgres import Server, literal, quoted, split_name
from dpsqlp.errors import SourceError, UnavailableError
from dpsqlp.sources.base import GridTime, Source
from dpsqlp.sources.memory_limit import check_size
from dpsqlp.sql.query import SourceDef

if TYPE_CHECKING:
    import psycopg

_WAIT_SECONDS = 3.0  # at most, for transactions to end
_POLL_SECONDS = 0.02
_CLOCK_SECONDS = 1  # between a transaction's start by the clock and its being listed
_CUT_SECONDS, _READ_SECONDS = 60.0, 3600.0
_CHUNK_BYTES = 16 << 20
_INTEGERS = ("smallint", "integer", "bigint")
_TIME = "timestamp with time zone"
# A row's text has to stay below the gigabyte that PostgreSQL can send; in the worst case each byte
# takes two.
_VALUE_BYTES_MAX, _ROW_BYTES_MAX = 1 << 20, 256 << 20
# A number of a dozen bytes in jsonb may take 130,000 bytes as text.
_JSONB_BYTES_MAX = 32 << 10
_SIMPLE = "BNDTIEZ"  # type categories whose texts are always short
_ELEMENTS = (
    *("boolean", "smallint", "integer", "bigint", "real", "double precision", "text"),
    *("character varying", "character", "date", "uuid", "timestamp without time zone", _TIME),
)
_READERS = 7235419043816220011  # readers share this advisory lock, so that none waits for another
_TREE = """
WITH RECURSIVE tree AS (
  SELECT {table}::oid AS oid UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = oid)
SELECT oid::bigint FROM tree
"""
_SEQUENCES = """
SELECT s.seqrelid::bigint, s.seqrelid::regclass::text,
  s.seqincrement > 0 AND NOT s.seqcycle AND s.seqcache = 1,
  has_sequence_privilege(s.seqrelid, 'SELECT')
FROM pg_sequence s WHERE s.seqrelid IN (
  SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass AND deptype = 'i'
    AND refclassid = 'pg_class'::regclass AND refobjid = {table} AND refobjsubid = {place}
  UNION SELECT d.refobjid FROM pg_depend d JOIN pg_attrdef a ON d.objid = a.oid
    WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
      AND a.adrelid = {table} AND a.adnum = {place}
      AND starts_with(pg_get_expr(a.adbin, a.adrelid), 'nextval(')
      AND right(pg_get_expr(a.adbin, a.adrelid), 11) = '::regclass)')
"""
_DEFAULT = "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = {} AND adnum = {}"
# Not statement_timestamp(): it stands still while a procedure commits.
_CLOCKS = ("now()", "CURRENT_TIMESTAMP", "clock_timestamp()", "transaction_timestamp()")
_HERE = "(SELECT oid FROM pg_database WHERE datname = current_database())"
_LOCKERS = f"""
SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation'
  AND mode = 'RowExclusiveLock' AND granted AND database = {_HERE} AND relation = ANY({{relations}})
"""
_TRANSACTIONS = f"""
SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a USING (pid)
  WHERE l.locktype = 'virtualxid' AND l.granted AND a.datid = {_HERE} AND a.usesysid IS NOT NULL
    AND pid <> pg_backend_pid() AND NOT EXISTS (
      SELECT FROM pg_locks k WHERE k.pid = l.pid AND k.locktype = 'advisory' AND k.granted
        AND k.mode = 'ShareLock' AND (k.classid::bigint << 32 | k.objid::bigint) = {_READERS})
UNION SELECT virtualtransaction FROM pg_locks WHERE pid IS NULL AND database = {_HERE}
"""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as the server has it."""

    name: str
    place: int
    kind: str
    category: str
    readable: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """The table, its columns, and the queries for the ceiling and for the open writers."""

    name: str
    oids: str  # of the table and its sequence
    columns: tuple[_Column, ...]
    ordering: _Column
    ceiling: str
    writers: str


@dataclass(slots=True)
class _Ceiling:
    """A value, and the transactions that may still insert below it."""

    value: str
    writers: set[str]


class PostgresOffset(TypedDict):
    """The last value of the ordering column that was read."""

    table: str
    column: str
    oids: NotRequired[str]  # of the table and its sequence
    after: str | None


class PostgresRange(PostgresOffset):
    """The rows after the offset up to a value; none if there is no such value."""

    until: str | None


class PostgresSource(Source[PostgresOffset, PostgresRange]):
    """The rows of a table, by a column that grows."""

    def __init__(self, source: SourceDef) -> None:
        self._source = source
        self._name = quoted(*split_name(str(source.options["table"]), 63))
        self._column = str(source.options["column"])
        dsn = str(source.options.get("dsn", ""))
        kept = "The trigger has not run; nothing is lost."
        self._server = Server(dsn, SourceError, kept)
        self._cutting = Server(
            dsn, SourceError, kept
        )  # a second client: cuts do not wait for reads
        self._ceilings: list[_Ceiling] = []  # oldest first, of one connection
        self._connection: object = None

    def initial_offset(self) -> PostgresOffset:
        """Before the first row."""
        return {"table": self._name, "column": self._column, "after": None}

    def cut(self, offset: PostgresOffset, at: GridTime) -> PostgresRange:
        """The rows inserted since, up to a value below which no row can be inserted any more."""
        after = self._after(offset)
        with self._cutting.transaction(_CUT_SECONDS) as connection:
            if connection is not self._connection:
                # A server that crashed may draw values again that it had drawn.
                self._ceilings.clear()
                self._connection = connection
            table = self._look(connection)
            self._check_same(table, offset)
            until = self._settled(connection, table, after, at.seconds_left / 2)
        return {**offset, "oids": table.oids, "until": until}

    def next_offset(self, offset: PostgresOffset, offsets: PostgresRange | None) -> PostgresOffset:
        """The offset after a range."""
        if offsets is None or offsets["until"] is None:
            return offset
        return {**offset, "oids": offsets["oids"], "after": offsets["until"]}

    def read(self, offsets: PostgresRange | None, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""
        names = [f"c{place}" for place in range(len(self._source.columns))]
        rows = pa.schema([(name, pa.string()) for name in names]).empty_table()
        kinds = ["text"] * len(names)
        if offsets is not None and offsets["until"] is not None:
            self._after(offsets)
            with self._server.transaction(_READ_SECONDS, records=True) as connection:
                table = self._look(connection)
                self._check_same(table, offsets)
                kinds = [_text_kind(column) for column in table.columns]
                rows = self._copied(connection, table, offsets, offsets["until"], names)
        casts = [
            f"{_cast(name, kind, declared)} AS {quoted(column)}"
            for name, kind, (column, declared) in zip(
                names, kinds, self._source.columns, strict=True
            )
        ]
        texts = f"{self._source.name} as text"
        database.register(texts, rows)
        database.execute(
            f"CREATE OR REPLACE TEMP VIEW {quoted(self._source.name)} AS SELECT {', '.join(casts)}"
            f" FROM {quoted(texts)}"
        )

    def close(self) -> None:
        """Close the connections."""
        self._server.close()
        self._cutting.close()

    def _after(self, offset: PostgresOffset) -> str | None:
        """The last value read; refused if the offset is of another table, column or connector."""
        place = {"table": self._name, "column": self._column}
        if not isinstance(offset, dict) or not place.items() <= offset.items():
            raise SourceError(
                f"The state's offset is not one of {self._name} by {self._column}. Give the"
                " source the connector, table and column it had, or begin a new pipeline, which"
                " spends its own budget."
            )
        return offset["after"]

    def _look(self, connection: psycopg.Connection[Any]) -> _Table:
        """The table as it is now; refused if a range of it could not be exact."""
        connection.execute(f"SELECT pg_advisory_xact_lock_shared({_READERS})")
        found = connection.execute(
            "SELECT oid::bigint, relkind::text, relpersistence::text, pg_is_in_recovery(),"
            " current_setting('server_encoding') FROM pg_class"
            f" WHERE oid = to_regclass({literal(self._name)})"
        ).fetchone()
        if found is None:
            raise self._refused(
                "does not exist", "Create it, or correct table, dsn or search_path."
            )
        oid, kind, persistence, standby, encoding = found
        if kind not in ("r", "p"):
            raise self._refused("is not a table", "Name the table that the rows are inserted into.")
        if persistence != "p":
            raise self._refused("does not survive a crash", "ALTER TABLE ... SET LOGGED.")
        if standby:
            raise self._refused(
                "is on a standby, which does not know who is writing", "Name the primary."
            )
        if encoding != "UTF8":
            raise self._refused(
                f"is in a database with the encoding {encoding}, in which one"
                " invalid text could stop the run",
                "Use a database with UTF8.",
            )
        # From here on, names of functions and operators are the server's own.
        connection.execute("SET LOCAL search_path = pg_catalog")
        name = str(_one(connection, f"SELECT {oid}::regclass::text"))
        rows = connection.execute(
            "SELECT attname::text, attnum, format_type(atttypid, NULL), typcategory::text,"
            " has_column_privilege(attrelid, attnum, 'SELECT')"
            " FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
            f" WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
        ).fetchall()
        known = [_Column(*row) for row in rows]
        columns = tuple(self._find(known, wanted) for wanted, _ in self._source.columns)
        ordering = self._find(known, self._column)
        for column in (*columns, ordering):
            if not column.readable:
                raise self._refused(
                    f"may not be read: {column.name}", "GRANT SELECT to the user of the dsn."
                )
            if not _bounded(column):
                raise self._refused(
                    f"has {column.name} of type {column.kind}, which may be far longer as text than"
                    " as it is stored",
                    "Leave it out, or add a column of text, json, numbers or times for it.",
                )
        if ordering.kind == _TIME:
            self._check_clock(connection, oid, ordering)
            ceiling = f"SELECT (clock_timestamp() - interval '{_CLOCK_SECONDS} second')::text"
            return _Table(name, str(oid), columns, ordering, ceiling, _TRANSACTIONS)
        sequence, drawn = self._sequence(connection, oid, ordering)
        tree = connection.execute(_TREE.format(table=oid)).fetchall()
        relations = ", ".join(str(member) for (member,) in [*tree, (sequence,)])
        # Read as a table: the sequence functions take the lock that tells who draws.
        ceiling = f"SELECT CASE WHEN is_called THEN last_value::text END FROM {drawn}"
        writers = _LOCKERS.format(relations=f"ARRAY[{relations}]::oid[]")
        return _Table(name, f"{oid}/{sequence}", columns, ordering, ceiling, writers)

    def _check_clock(
        self, connection: psycopg.Connection[Any], table: int, ordering: _Column
    ) -> None:
        """Refuse times that the server's clock does not fill."""
        row = connection.execute(_DEFAULT.format(table, ordering.place)).fetchone()
        if row is None or row[0] not in _CLOCKS:
            raise self._refused(
                f"does not fill {ordering.name} by its clock",
                "Give column = a timestamptz column with DEFAULT now(), or an identity column.",
            )

    def _find(self, known: list[_Column], name: str) -> _Column:
        """A column by its exact name, or else by its name in any case."""
        found = [column for column in known if column.name == name]
        found = found or [column for column in known if column.name.lower() == name.lower()]
        if len(found) != 1:
            raise self._refused(
                f"has {'no' if not found else 'more than one'} column {name}",
                "Correct CREATE SOURCE, or add it.",
            )
        return found[0]

    def _sequence(
        self, connection: psycopg.Connection[Any], table: int, ordering: _Column
    ) -> tuple[int, str]:
        """The sequence that fills the column, whose values are drawn in order."""
        query = _SEQUENCES.format(table=table, place=ordering.place)
        found = connection.execute(query).fetchall() if ordering.kind in _INTEGERS else []
        if len(found) != 1:
            raise self._refused(
                f"does not say in which order {ordering.name} grows: it is {ordering.kind}"
                f" with {len(found)} sequences",
                "Give column = an integer column that is GENERATED ALWAYS AS IDENTITY or serial, or"
                " a timestamptz column with DEFAULT now().",
            )
        oid, name, in_order, readable = found[0]
        if not in_order:
            raise self._refused(
                f"fills {ordering.name} from a sequence that runs down, in circles or from caches,"
                " so that later rows may have smaller values",
                "ALTER SEQUENCE ... INCREMENT 1 NO CYCLE CACHE 1.",
            )
        if not readable:
            raise self._refused(
                f"has a sequence of {ordering.name} that may not be read",
                "GRANT SELECT ON SEQUENCE ... to the user of the dsn.",
            )
        return int(oid), str(name)

    def _check_same(self, table: _Table, known: PostgresOffset) -> None:
        if known.get("oids", table.oids) != table.oids:
            raise self._refused(
                "was created again since it was read",
                "Restore the old one, or begin a new pipeline, which spends its own budget.",
            )

    def _settled(
        self, connection: psycopg.Connection[Any], table: _Table, after: str | None, seconds: float
    ) -> str | None:
        """The highest ceiling without open writers, after waiting for a while."""
        value = _one(connection, table.ceiling)  # before its writers are listed
        kind = _compared(table.ordering)
        behind = f"SELECT {literal(value or '0')}::{kind} < {literal(after or '0')}::{kind}"
        if after is not None and _one(connection, behind):
            if table.ordering.kind == _TIME:
                raise UnavailableError("PostgreSQL's clock is behind rows that were read.")
            raise self._refused(
                f"has restarted {table.ordering.name}: its sequence is behind what was read",
                "Set it above the largest value there was: SELECT setval(...).",
            )
        if value is None:  # no value was ever drawn
            return None
        until = time.monotonic() + min(seconds, _WAIT_SECONDS)
        self._ceilings.append(_Ceiling(value, _all(connection, table.writers)))
        while self._ceilings[-1].writers and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            writing = _all(connection, table.writers)
            for ceiling in self._ceilings:
                ceiling.writers &= writing
        settled = [place for place, ceiling in enumerate(self._ceilings) if not ceiling.writers]
        if not settled:
            return None
        highest = self._ceilings[settled[-1]].value
        del self._ceilings[: settled[-1] + 1]
        return highest

    def _copied(
        self,
        connection: psycopg.Connection[Any],
        table: _Table,
        offset: PostgresOffset,
        until: str,
        names: list[str],
    ) -> pa.Table:
        """The range's rows, all values as text."""
        limit = min(_VALUE_BYTES_MAX, _ROW_BYTES_MAX // len(names))
        texts = ", ".join(_sent(column, limit) for column in table.columns)
        ordering, kind = quoted(table.ordering.name), _compared(table.ordering)
        where = f"{ordering} <= {literal(until)}::{kind}"
        if offset["after"] is not None:
            where += f" AND {ordering} > {literal(offset['after'])}::{kind}"
        command = (
            f"COPY (SELECT {texts} FROM {table.name} WHERE {where})"
            " TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        )
        parsed, lines, size, total = [], [], 0, 0
        with connection.cursor().copy(command) as copy:
            for line in copy:  # a row each
                lines.append(line)
                size += len(line)
                if size >= _CHUNK_BYTES:
                    parsed.append(_parsed(b"".join(lines), names))
                    total, lines, size = check_size(total + size), [], 0
        parsed.append(_parsed(b"".join(lines), names))
        return pa.concat_tables(parsed)

    def _refused(self, fact: str, way_out: str) -> SourceError:
        return SourceError(f"The table {self._name} {fact}. The trigger has not run. {way_out}")


def _one(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def _all(connection: psycopg.Connection[Any], query: str) -> set[str]:
    return {row[0] for row in connection.execute(query).fetchall()}


def _text_kind(column: _Column) -> str:
    """The format of a value's text: hexadecimal digits, JSON, or plain."""
    if column.kind == "bytea":
        return "hex"
    return "json" if column.kind.endswith("[]") or column.kind in ("json", "jsonb") else "text"


def _bounded(column: _Column) -> bool:
    """Whether the length of a value's text can be bounded."""
    known = column.category in _SIMPLE or column.category == "S"
    known = known or column.kind in ("uuid", "json", "jsonb", "xml", "bytea")
    return known or column.kind.removesuffix("[]") in _ELEMENTS


def _sent(column: _Column, limit: int) -> str:
    """The text of a value, null if it is too long."""
    name = quoted(column.name)
    if column.kind == "bytea":
        return f"CASE WHEN octet_length({name}) <= {limit} THEN encode({name}, 'hex') END"
    if column.category == "S" or column.kind in ("json", "xml"):
        return f"CASE WHEN octet_length({name}::text) <= {limit} THEN {name}::text END"
    if column.kind == "jsonb":  # in an array, so that its size is the unpacked one
        short = f"CASE WHEN octet_length({name}::text) <= {limit} THEN {name} END"
        return (
            f"CASE WHEN pg_column_size(jsonb_build_array({name})) <= {_JSONB_BYTES_MAX}"
            f" THEN {short} END"
        )
    if column.kind.endswith("[]"):
        size = f"pg_column_size(array_append({name}, NULL))"
        return f"CASE WHEN {size} <= {limit} THEN to_json({name}) END"
    return name


def _compared(column: _Column) -> str:
    """The type in which values of the column and its ceiling are compared."""
    return _TIME if column.kind == _TIME else "bigint"


def _cast(name: str, kind: str, declared: str) -> str:
    """A text cast to the declared type in DuckDB; null if that fails."""
    if kind == "hex":
        blob = declared.upper() in ("BLOB", "BYTEA", "BINARY", "VARBINARY")
        return f"unhex({name})" if blob else rf"TRY_CAST('\x' || {name} AS {declared})"
    nested = kind == "json" and declared.upper() not in ("VARCHAR", "TEXT", "STRING")
    value = f"TRY_CAST({name} AS JSON)" if nested else name
    if declared.upper().startswith(("DATE", "TIMESTAMP")):  # DuckDB ignores the BC
        value = f"CASE WHEN {name} NOT LIKE '% BC%' THEN {value} END"
    return f"TRY_CAST({value} AS {declared})"


def _parsed(lines: bytes, names: list[str]) -> pa.Table:
    """Rows of CSV in which every value but null is in quotes."""
    if not lines:
        return pa.schema([(name, pa.string()) for name in names]).empty_table()
    return pc.read_csv(
        pa.py_buffer(lines),
        # One block: a value may be longer than any block.
        pc.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names),
        pc.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pc.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
