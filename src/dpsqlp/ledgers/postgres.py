"""A ledger in PostgreSQL: a table of one row, changed in one transaction under a lock.

The lock is one for all ledgers of a database, so that it does not depend on how a table is named.
If the answer to COMMIT is lost, the next attempt finds the entry, which is made once.
"""

from __future__ import annotations

from typing import Any

from dpsqlp.clients.postgres import Server, literal, quoted, split_name
from dpsqlp.errors import PlanError, StateError
from dpsqlp.ledgers.base import Change

_SECONDS = 60.0
_NAME_BYTES = 63
_LOCK = "dpsqlp ledger"


class LedgerTable:
    """One table, shared by all machines that reach the server."""

    def __init__(self, dsn: str, table: str) -> None:
        schema, name = split_name(table, _NAME_BYTES)
        if schema is None:
            raise PlanError(
                f"The ledger's table {name!r} has no schema. search_path would choose one, which"
                " may be another for each user. Write table = 'schema.name'."
            )
        self._table = quoted(schema, name)
        self._server = Server(
            dsn, StateError, "A pipeline is entered once, however often it tries."
        )
        self.name = table

    def read(self) -> str | None:
        """The text; None before the first."""
        with self._server.transaction(_SECONDS) as connection:
            return self._select(connection)

    def update(self, change: Change) -> None:
        """Replace the text by what `change` makes of it, in one transaction."""
        with self._server.transaction(_SECONDS, writes=True) as connection:
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', true)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            connection.execute(
                f"SELECT pg_advisory_xact_lock(hashtextextended({literal(_LOCK)}, 0))"
            )
            before = self._select(connection)
            after = change(before)
            if before is None:
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table}"
                    " (only_row boolean PRIMARY KEY CHECK (only_row), ledger text NOT NULL)"
                )
            if after != before:
                connection.execute(
                    f"INSERT INTO {self._table} (only_row, ledger) VALUES (true, {literal(after)})"
                    " ON CONFLICT (only_row) DO UPDATE SET ledger = excluded.ledger"
                )

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _select(self, connection: Any) -> str | None:
        found = connection.execute(f"SELECT to_regclass({literal(self._table)}) IS NULL").fetchone()
        if found == (True,):
            return None
        row = connection.execute(f"SELECT ledger FROM {self._table}").fetchone()
        return None if row is None else str(row[0])
