"""What an engine asks of a sink, and the sinks there are.

Privacy contract: what was published of a trigger is never replaced by anything else. The same
trigger with other rows is the same noise on other records, and would show their difference.
"""

from __future__ import annotations

import hashlib
import io
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.errors import PlanError, SinkError
from dpsqlp.sql.options import from_environment
from dpsqlp.state.storage import LocalStorage, Storage

_OWNER = ".pipeline"  # whose releases a folder has


class Sink(Protocol):
    """Takes the release of each trigger, in order; the last one perhaps twice.

    A sink holds no connection before `open`: it may be sent to another process first.
    """

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Say whose releases they will be, a name that no other pipeline has, and which columns,
        with the window, tell their rows apart.
        """
        return

    @abstractmethod
    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release, durably. One that is out is left as it is; refused if it is another.

        Raises UnavailableError if a server is away; the release is then given again.
        """

    def close(self) -> None:
        """Let go of connections."""
        return


class FileSink(Sink):
    """One file per trigger in a folder: Parquet or JSON Lines."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._folder = folder
        self._storage = LocalStorage(folder)
        self._suffix = suffix

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Claim the folder: the triggers of another pipeline have the same numbers."""
        owner = self._storage.get(_OWNER)
        if owner is None:
            self._storage.put(_OWNER, [pipeline.encode()])
        elif owner != pipeline.encode():
            raise _taken(str(self._folder), "path")

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release, durably, unless it is out."""
        data = parquet(release) if self._suffix == "parquet" else json_lines(release)
        store_once(self._storage, trigger, f"trigger-{trigger:012d}.{self._suffix}", data)


class StandardOutput(Sink):
    """JSON Lines on standard output; after a crash the last trigger's lines may come twice."""

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Print a release, in UTF-8 whatever the terminal has; a notebook takes texts alone."""
        lines = json_lines(release)
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(lines)
        else:
            sys.stdout.write(lines.decode())
        sys.stdout.flush()


class DuckDbSink(Sink):
    """A table in a DuckDB file."""

    def __init__(self, path: Path, table: str) -> None:
        self._path = path
        self._name = table
        self._table = _quoted(table)
        self._rows = f"{table} rows"  # a name of its own beside the table's
        self._owner = ""

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """See that the table is not another pipeline's, if the file can be read now."""
        self._owner = f"dpsqlp pipeline {pipeline}"
        if self._path.is_file():
            with suppress(duckdb.Error), duckdb.connect(str(self._path)) as database:
                self._check(database)

    def _check(self, database: duckdb.DuckDBPyConnection) -> Published | None:
        """The last release that the table has. It must be this pipeline's."""
        published = None
        query = (  # to DuckDB, T and t are one table
            "SELECT comment FROM duckdb_tables()"
            " WHERE NOT internal AND lower(table_name) = lower(?)"
        )
        for (comment,) in database.execute(query, [self._name]).fetchall():
            if comment is None:
                continue
            owner, _, last = str(comment).partition(", trigger ")
            if owner != self._owner:
                raise _taken(f"The table {self._name} of {self._path}", "table")
            number, _, digest = last.partition(" ")
            published = Published(int(number), digest)
        return published

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Add the trigger's rows in one transaction, unless they are there."""
        digest = release_digest(release)
        rows = _quoted(self._rows)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with duckdb.connect(str(self._path)) as database:
                database.register(self._rows, release)
                database.execute("BEGIN")
                published = self._check(database)
                if published is not None and published.has(trigger, digest, str(self._path)):
                    return
                database.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} AS FROM {rows} WHERE false"
                )
                database.execute(f"INSERT INTO {self._table} BY NAME FROM {rows}")
                comment = _text(f"{self._owner}, trigger {trigger} {digest}")
                database.execute(f"COMMENT ON TABLE {self._table} IS {comment}")
                database.execute("COMMIT")
        except (duckdb.Error, OSError) as error:
            raise SinkError(
                f"{self._path} could not be written: {error}. The release is kept. Close other"
                " programs that have the file open, or repair it, then run again."
            ) from error


def make_sink(name: str, options: Mapping[str, Any], folder: Path) -> Sink:
    """The sink of a CREATE SINK."""
    options = from_environment(options)
    path = folder / str(options.get("path", name))
    match options.get("connector"):
        case "parquet":
            return FileSink(path, "parquet")
        case "jsonl":
            return FileSink(path, "jsonl")
        case "stdout":
            return StandardOutput()
        case "duckdb":
            return DuckDbSink(path, str(options.get("table", name)))
        case "postgres":
            from dpsqlp.sinks.postgres import PostgresSink

            return PostgresSink(str(options.get("dsn", "")), str(options.get("table", name)))
        case "kafka":
            from dpsqlp.sinks.kafka import KafkaSink

            return KafkaSink(name, options)
    raise PlanError(
        f"The sink {name} has the connector {options.get('connector')!r}. Use parquet, jsonl,"
        " stdout, duckdb, kafka or postgres."
    )


def parquet(release: pa.Table) -> bytes:
    """The release as a Parquet file, which has no seconds: they become milliseconds here, since
    Arrow cannot with one that is infinite.
    """
    seconds = [f.name for f in release.schema if f.type == pa.timestamp("s")]
    if seconds:
        casts = ", ".join(f"{_quoted(n)}::TIMESTAMP_MS AS {_quoted(n)}" for n in seconds)
        with duckdb.connect() as database:
            database.register("release", release)
            query = f"SELECT * REPLACE ({casts}) FROM release"
            release = database.sql(query).to_arrow_table()
    buffer = io.BytesIO()
    pq.write_table(release, buffer, compression="zstd")
    return buffer.getvalue()


def json_lines(release: pa.Table) -> bytes:
    """The release as JSON, a row a line. Numbers without end are texts: JSON has none."""

    def value(field: pa.Field) -> str:
        name = _quoted(field.name)
        if not pa.types.is_floating(field.type):
            return name
        number = f"to_json({name})"
        return f"CASE WHEN isfinite({name}) THEN {number} ELSE to_json({number}::TEXT) END"

    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("release", release)
        columns = ", ".join(f"{_text(field.name)}, {value(field)}" for field in release.schema)
        lines = database.execute(f"SELECT json_object({columns}) FROM release").fetchall()
    return "".join(f"{line}\n" for (line,) in lines).encode()


@dataclass(frozen=True, slots=True)
class Published:
    """The last release that a sink has."""

    trigger: int
    digest: str

    def has(self, trigger: int, digest: str, where: str) -> bool:
        """Whether a release is this one. Earlier and other ones are refused."""
        if trigger < self.trigger:
            raise is_behind(trigger, self.trigger, where)
        if trigger == self.trigger and digest != self.digest:
            raise is_another(trigger, where)
        return trigger == self.trigger


def is_behind(trigger: int, published: int, where: str) -> SinkError:
    """A sink has a later trigger."""
    return SinkError(
        f"Trigger {published} of this pipeline is in {where}, and {trigger} is to be published:"
        " another process is ahead, or the state is an old copy. Stop the other one, or bring back"
        " the newest state."
    )


def is_another(trigger: int, where: str) -> SinkError:
    """A trigger that is out would be replaced by other rows."""
    return SinkError(
        f"Trigger {trigger} is in {where} already, with other rows than are to be published now:"
        " the state is an old copy, or what was published was changed. Nothing was replaced. Bring"
        " back the newest state, or begin a new pipeline with a sink of its own, which spends"
        " again."
    )


def release_digest(release: pa.Table) -> str:
    """SHA-256 of a release's columns and rows."""
    buffer = pa.BufferOutputStream()
    for name, column in zip(release.column_names, release.columns, strict=True):
        for part in (
            column.is_null(),
            column.drop_null(),
        ):  # Arrow leaves open what is under a null
            if pa.types.is_boolean(part.type):
                part = part.cast(pa.uint8())  # and in the last bits of a bitmap
            rows = pa.table({name: part}).combine_chunks()
            with pa.ipc.new_stream(buffer, rows.schema) as writer:
                writer.write_table(rows)
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def store_once(storage: Storage, trigger: int, name: str, data: bytes) -> None:
    """Store a trigger's file, unless it is there. Another in its place is refused."""
    known = storage.get(name)
    if known is None:
        storage.put(name, [data])
    elif known != data and not _same_rows(known, data):
        raise is_another(trigger, name)


def _same_rows(known: bytes, data: bytes) -> bool:
    """Whether two Parquet files, perhaps of two versions of the library, have the same rows."""
    if not known[:4] == data[:4] == b"PAR1":
        return False
    try:
        known_digest = release_digest(pq.read_table(io.BytesIO(known)))
    except (pa.ArrowException, OSError):
        return False
    return known_digest == release_digest(pq.read_table(io.BytesIO(data)))


def _taken(what: str, option: str) -> SinkError:
    return SinkError(
        f"{what} has the releases of another pipeline, whose triggers have the same numbers."
        f" Nothing was written. Give {option} = another, or move the old one away, then run again."
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
