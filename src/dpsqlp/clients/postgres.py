"""Connections to PostgreSQL, and its errors as ours: retry later, or refuse.

Messages of the server are shown only if they are about names, permissions or disks; others may
quote a record.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dpsqlp.errors import DpsqlpError, PlanError, UnavailableError
from dpsqlp.sql.quoting import quote_identifier

if TYPE_CHECKING:
    import psycopg

# Without these, a vanished server would be waited for forever. A dsn may override them.
_PATIENCE: dict[str, int | str] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# Settings of one transaction, since poolers share sessions. The server drops a vanished client,
# which would otherwise keep its locks; formats do not depend on the server's configuration.
_SETTINGS = """
SET LOCAL client_encoding = 'UTF8'; SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL TimeZone = 'UTC';
SET LOCAL IntervalStyle = 'postgres'; SET LOCAL extra_float_digits = 1;
SET LOCAL bytea_output = 'hex'; SET LOCAL lock_timeout = '10s';
SET LOCAL idle_in_transaction_session_timeout = '10min'; SET LOCAL tcp_keepalives_idle = 30;
SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3;
SET LOCAL statement_timeout = 0
"""
_AWAY = (  # connection, too many connections, shut down, locks, cancelled, deadlocks, idle too long
    *("08", "53300", "57P", "57014", "55P03", "40001", "40P01", "25P03", "25P04"),
)
_SPEAKS_OF_NAMES = ("0A", "25", "28", "3D", "3F", "42", "53", "54", "55", "57", "58")
# A refused login has no code, only a text; so have errors that are to be retried.
_AWAY_TEXTS = (
    "starting up",
    "shutting down",
    "recovery mode",
    "not yet accepting",
    "not accepting",
    "too many",
    "connection slots",
    "terminating connection",
)
_REFUSED_TEXTS = (
    *("FATAL", "no password supplied", "certificate", "server does not support SSL"),
    *("invalid ", "channel binding required", "authentication method requirement"),
)
_ADVICE = {
    "25006": "Name the primary server in the dsn: this one is read-only.",
    "28": "Correct user and password in the dsn, or the server's pg_hba.conf.",
    "3D": "Create the database, or correct the dsn.",
    "3F": "Create the schema.",
    "42501": "Grant the permission to the user of the dsn.",
    "53100": "Make room on the server's disk.",
    "53": "Give the server more resources.",
}


class Server:
    """A connection that is opened on first use, kept, and opened again after a failure."""

    def __init__(self, dsn: str, refusal: type[DpsqlpError], kept: str) -> None:
        """`refusal` is raised for permanent errors; `kept` tells the user what is not lost."""
        self._dsn, self._refusal, self._kept = dsn, refusal, kept
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @contextmanager
    def transaction(
        self, seconds: float, *, writes: bool = False, records: bool = False
    ) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A transaction of at most this many seconds, committed at the end. With `records`, it
        reads from one snapshot, and the server's messages, which may quote a record, are not shown.
        """
        psycopg = _library()
        try:
            connection = self._connected(psycopg)
            connection.read_only = not writes
            connection.isolation_level = (
                psycopg.IsolationLevel.REPEATABLE_READ
                if records
                else psycopg.IsolationLevel.READ_COMMITTED
            )
            with _at_most(seconds, connection):
                connection.execute(_SETTINGS)
                yield connection
                connection.commit()
        except psycopg.Error as error:
            self.close()
            lost = isinstance(error, _lost(psycopg))
            raise self._problem(error, lost, records) from None
        except BaseException:
            self.close()  # also when interrupted: the connection's state is unknown
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self, psycopg: Any) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            try:
                given = psycopg.conninfo.conninfo_to_dict(self._dsn)
            except psycopg.ProgrammingError:  # the message may contain a password
                raise PlanError(
                    "The dsn is not a PostgreSQL connection string. Write dsn = 'host=...'"
                    " or 'postgresql://...'."
                ) from None
            patience = {name: value for name, value in _PATIENCE.items() if name not in given}
            if "PGCONNECT_TIMEOUT" in os.environ:
                patience.pop("connect_timeout", None)
            # Behind a pooler, prepared statements do not survive a transaction.
            self._connection = psycopg.connect(self._dsn, prepare_threshold=None, **patience)
        return self._connection

    def _problem(self, error: psycopg.Error, lost: bool, records: bool) -> DpsqlpError:
        code, said = error.sqlstate, " ".join((error.diag.message_primary or str(error)).split())
        said = said[:300]
        if code is None:
            refused = any(text in said for text in _REFUSED_TEXTS)
            away = lost and (not refused or any(text in said for text in _AWAY_TEXTS))
            advice = "Correct the dsn: user, password, database; or the server's pg_hba.conf."
        else:
            away = code.startswith(_AWAY)
            advice = next((text for start, text in _ADVICE.items() if code.startswith(start)), "")
            if records or not code.startswith((*_AWAY, *_SPEAKS_OF_NAMES)):
                said = type(error).__name__
        named = f"{said} ({code})" if code else said
        if away:
            return UnavailableError(f"PostgreSQL does not answer: {named}. {self._kept}")
        parts = (f"PostgreSQL refused: {named}.", self._kept, advice, "Then run again.")
        return self._refusal(" ".join(part for part in parts if part))


def _lost(psycopg: Any) -> tuple[type[Exception], ...]:
    """Exceptions of a broken connection, which have no code."""
    return psycopg.OperationalError, psycopg.InterfaceError


def split_name(table: str, longest: int) -> tuple[str | None, str]:
    """Schema and name of `table` or `schema.table`; their case is kept."""
    *schema, name = table.split(".")
    if len(schema) > 1 or not name or "" in schema or "\0" in table:
        raise PlanError(
            f"{table!r} is not the name of a table. Write table = 'name' or 'schema.name'."
        )
    for part, limit in ((name, longest), *((part, 63) for part in schema)):
        if len(part.encode()) > limit:
            raise PlanError(
                f"The name {part!r} has {len(part.encode())} bytes; at most {limit} are possible"
                " here. Give table = a shorter name."
            )
    return (schema[0] if schema else None), name


def quoted(*parts: str | None) -> str:
    """A quoted identifier, with its schema if there is one."""
    return ".".join(quote_identifier(part) for part in parts if part is not None)


def literal(value: str) -> str:
    """A text literal, whatever standard_conforming_strings is."""
    return "E'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def _at_most(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Close the connection after this time: a suspended server keeps its connections open."""
    with closing(socket.socket(fileno=os.dup(connection.fileno()))) as line:

        def hang_up() -> None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, hang_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _library() -> Any:
    try:
        import psycopg
    except ImportError:
        raise DpsqlpError(
            "The connector postgres needs psycopg 3. Run pip install 'dpsqlp[postgres]'."
        ) from None
    return psycopg
