"""What an engine asks of a source.

Privacy contract: a source hands out records by the clock alone. `cut` may not count records, look
at their timestamps, or stop early; what it returns describes an exact range, is made durable before
the trigger runs, and reads the same records when it is read again. A value that cannot be read as
its column's type is null, never an error.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from dpsqlp.errors import SourceError, StateError
from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.quoting import quote_identifier, quote_text
from dpsqlp.state.arrays import digest
from dpsqlp.state.storage import Storage

BATCH_BYTES_MAX = 6 << 30
_SPOOL = "spool/"
_MOMENT = re.compile(r"(TIMESTAMP|DATETIME)[A-Z_ ]*", re.I)
_FIRST = "TIMESTAMP '290309-12-22 (BC) 00:00:00'"  # DuckDB's first, after minus infinity
_TEXT = re.compile(
    r"(TEXT|VARCHAR|STRING|CHAR|BPCHAR|NVARCHAR)( *\(\d+\))?", re.I
)  # DuckDB's names


@dataclass(frozen=True, slots=True)
class GridTime:
    """When a source is cut, and for which trigger."""

    trigger: int
    time: int  # microseconds: what arrives later belongs to later triggers
    seconds_left: float  # until the next trigger is due


class Source(Protocol):
    """Records of one CREATE SOURCE. `cut` and `read` raise UnavailableError if a server is away,
    and can then be called again. They are called in two threads, so that neither waits for the
    other.
    """

    # Values so far that are no records: for the operator alone, never published.
    undecodable: int = 0
    # Whether it knows when each record arrived: then a cut that is late is as good as one in time.
    keeps_arrival_times: bool = False
    # Whether a cut has had the last records that there will be.
    exhausted: bool = False

    def folders(self) -> list[str]:
        """What the database may read itself."""
        return []

    @abstractmethod
    def begin(self) -> Any:
        """The position before the first trigger, as JSON."""

    @abstractmethod
    def cut(self, position: Any, at: GridTime) -> Any:
        """The range from a position to what has arrived by now, as JSON."""

    def replay(self, position: Any, span: tuple[int, int]) -> Any:
        """The range of an event-time span, as JSON; of finished history alone."""
        raise SourceError("Only files can be replayed on event time.")

    def complete(self, records: Any) -> Any:
        """A range with what else decides how it is read; made durable before it is read."""
        return records

    @abstractmethod
    def after(self, position: Any, records: Any) -> Any:
        """The position after a range."""

    @abstractmethod
    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""

    def leave_behind(self, records: Any, names: Collection[str]) -> tuple[Any, list[str]]:
        """A range without some of its inputs, which count as read; and those that it had."""
        return records, []

    def named(self, records: Any) -> str:
        """What a range is read from, for a message; empty if that needs no name."""
        return ""

    def forget(self, records: Any) -> None:
        """The trigger is committed; what was kept to read the range again may go."""
        return

    def close(self) -> None:
        """Let go of connections."""
        return


def declared_schema(source: SourceDef) -> pa.Schema:
    """The source's columns as Arrow has them."""
    with duckdb.connect() as database:
        query = f"SELECT {try_cast(source.columns, lambda _: 'NULL')} WHERE false"
        return database.sql(query).to_arrow_table().schema


def check_size(size: int) -> int:
    """Refuse the records of a trigger if they would not fit the memory."""
    if size > BATCH_BYTES_MAX:
        raise SourceError(
            f"The records of one trigger take more than {BATCH_BYTES_MAX >> 30} GiB. They cannot be"
            " split by count: emit more often, or leave out what the query does not need. Nothing"
            " is lost; the trigger has not run."
        )
    return size


def spool(storage: Storage, trigger: int, suffix: str, parts: Sequence[bytes]) -> dict[str, Any]:
    """Keep records that cannot be read twice; returns their range, which no other spool fits."""
    name = f"{_SPOOL}{trigger}.{suffix}"
    storage.put(name, parts)
    return {"spool": name, "digest": digest(parts)}


def read_spool(storage: Storage, records: Any) -> bytes:
    """The spooled records of a range. A spool of the same name from before a crash is refused."""
    data = storage.get(records["spool"])
    if data is None or digest([data]) != records["digest"]:
        raise StateError(
            f"The spooled records {records['spool']} are"
            f" {'missing' if data is None else 'not those of the cut'}, and they cannot be read"
            " again. Nothing was released. Restore the whole state folder as it was."
        )
    return data


def sweep_spools(storage: Storage, waiting: Collection[Any]) -> None:
    """Delete the spools that a crash left, except those of ranges still to be read."""
    kept = {records.get("spool") for records in waiting if isinstance(records, dict)}
    for name in storage.list():
        if name.startswith(_SPOOL) and name not in kept:
            storage.delete(name)


def try_cast(
    columns: Sequence[tuple[str, str]], value: Callable[[str], str], spanned: str | None = None
) -> str:
    """A select list of the source's columns, null where a value has another type.

    Not checked is the range of the column that is `spanned`, of which the reader keeps a part.
    """
    return ", ".join(
        f"{try_one(value(name), kind, checked=name != spanned)} AS {quote_identifier(name)}"
        for name, kind in columns
    )


def try_one(value: str, kind: str, *, checked: bool = True) -> str:
    """An expression as a type, null where its value has another.

    A number is the same text whatever type its column has, which may depend on other records: one
    null makes a column of integers one of floats where pandas has written it. Binary files can have
    times out of range, on which DuckDB stops, TRY or not, when they become text.
    """
    cast = f"TRY_CAST({value} AS {kind})"
    if _MOMENT.fullmatch(kind) and checked:
        moment = f"TRY_CAST({value} AS TIMESTAMP)"
        return f"CASE WHEN {moment} >= {_FIRST} OR {moment} = '-infinity' THEN {cast} END"
    if kind.upper() == "TIME":
        return f"CASE WHEN {cast} BETWEEN '00:00:00' AND '24:00:00' THEN {cast} END"
    if _TEXT.fullmatch(kind):
        return (
            f"CASE WHEN typeof({value}) IN ('FLOAT', 'DOUBLE')"
            f" THEN regexp_replace({cast}, '[.]0$', '') ELSE {cast} END"
        )
    return cast


def show(database: duckdb.DuckDBPyConnection, source: SourceDef, table: pa.Table) -> None:
    """Make records a relation of the source's name, with its types: Arrow has none for JSON."""
    if not any("JSON" in kind.upper() for _, kind in source.columns):
        database.register(source.name, table)
        return
    stored = f"{source.name} as read"
    database.register(stored, table)
    casts = [
        f"TRY_CAST({quote_identifier(n)} AS {kind}) AS {quote_identifier(n)}"
        for n, kind in source.columns
    ]
    database.execute(
        f"CREATE OR REPLACE TEMP VIEW {quote_identifier(source.name)} AS SELECT {', '.join(casts)}"
        f" FROM {quote_identifier(stored)}"
    )


def json_columns(columns: Sequence[tuple[str, str]]) -> str:
    """The same from the JSON objects in a column `line`; lines that are none are all null."""
    structure = quote_text(json.dumps(dict(columns)))
    return f"unnest(json_transform(TRY_CAST(line AS JSON), {structure}))"
