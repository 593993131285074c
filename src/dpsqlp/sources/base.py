"""What an engine asks of a source.

Privacy contract: a source hands out records by the clock alone. `take` may not count records, look
at their timestamps, or stop early; what it returns describes an exact range, is made durable as
the trigger's intent, and reads the same records when it is read again.
"""

from __future__ import annotations

from typing import Any, Protocol

import duckdb

from dpsqlp.state.storage import Storage


class Source(Protocol):
    """Records of one CREATE SOURCE."""

    def folders(self) -> list[str]:
        """What the database may read."""

    def begin(self) -> Any:
        """The position before the first trigger, as JSON."""

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """The range of the next trigger, as JSON: what has arrived since, or an event-time span."""

    def after(self, position: Any, records: Any) -> Any:
        """The position after a range."""

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""

    def forget(self, records: Any) -> None:
        """The trigger is committed; what was kept to read the range again may go."""


def spool(storage: Storage, trigger: int, suffix: str, data: bytes) -> dict[str, Any]:
    """Keep records that cannot be read twice; returns their range."""
    name = f"spool/{trigger}.{suffix}"
    storage.put(name, [data])
    return {"spool": name}
