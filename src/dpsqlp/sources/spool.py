"""Records that cannot be read twice: each trigger's are spooled durably when they are cut.

Privacy contract: a range names its spool and the digest of the contents, so a trigger that runs
again reads the same records. The state's storage seals spools like everything else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, NotRequired, TypedDict

import duckdb
import pyarrow as pa

from dpsqlp.errors import SourceError, StateError
from dpsqlp.sources.base import Source
from dpsqlp.sources.columns import declared_schema, show
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.arrays import digest
from dpsqlp.state.offsets import OffsetRange
from dpsqlp.state.storage import Storage

_SPOOL = "spool/"


class SpoolRange(TypedDict):
    """The records of one trigger, in a spool; on event time a span of the spool's records."""

    spool: str
    digest: str
    span: NotRequired[tuple[int, int]]


class SpooledSource(Source[SpoolRange | None, SpoolRange]):
    """A source without offsets: records that were not spooled are the sender's to send again. The
    spool of a replay serves all its triggers, so there it is the offset.
    """

    suffix: ClassVar[str]

    def __init__(self, source: SourceDef, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._schema = declared_schema(source)
        self._history: tuple[str, pa.Table] | None = None  # of a replay: its digest and records

    def initial_offset(self) -> None:
        """There is none."""
        return

    def next_offset(
        self, offset: SpoolRange | None, offsets: SpoolRange | None
    ) -> SpoolRange | None:
        """The spool of a replay."""
        if offsets is None:
            return offset
        if "span" not in offsets:
            return None
        return {"spool": offsets["spool"], "digest": offsets["digest"]}

    def read(self, offsets: SpoolRange | None, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""
        table = self._schema.empty_table() if offsets is None else self._table(offsets)
        show(database, self._source, table)

    def acknowledge(self, offsets: SpoolRange | None) -> None:
        """Delete the spool, unless later triggers of a replay need it."""
        if offsets is not None and "span" not in offsets:
            self._storage.delete(offsets["spool"])

    def _table(self, offsets: SpoolRange) -> pa.Table:
        if self._history is not None and self._history[0] == offsets["digest"]:
            return self._history[1]
        table = self._parse(_read_spool(self._storage, offsets))
        if "span" in offsets:
            self._history = offsets["digest"], table
        return table

    def _spool(self, trigger: int, parts: Sequence[bytes]) -> SpoolRange:
        return spool(self._storage, trigger, self.suffix, parts)

    @abstractmethod
    def _parse(self, data: bytes) -> pa.Table:
        """The records of a spool."""


def check_no_offset(offset: object) -> None:
    """Refuse the offset of another connector."""
    if offset is not None:
        raise SourceError(
            "The state has an offset of another connector. Give the source the connector it had,"
            " or begin a new pipeline, which spends its own budget."
        )


def spool(storage: Storage, trigger: int, suffix: str, parts: Sequence[bytes]) -> SpoolRange:
    """Keep records that cannot be read twice; returns their range."""
    name = f"{_SPOOL}{trigger}.{suffix}"
    storage.put(name, parts)
    return {"spool": name, "digest": digest(parts)}


def _read_spool(storage: Storage, offsets: SpoolRange) -> bytes:
    """The spooled records of a range. A spool of the same name from before a crash is refused."""
    name = offsets["spool"]
    data = storage.get(name)
    if data is None or digest([data]) != offsets["digest"]:
        raise StateError(
            f"The spooled records {name} are"
            f" {'missing' if data is None else 'not those of the cut'}, and they cannot be read"
            " again. Nothing was released. Restore the whole state folder as it was."
        )
    return data


def sweep_spools(storage: Storage, waiting: Collection[OffsetRange | None]) -> None:
    """Delete the spools that a crash left, except those of ranges still to be read."""
    kept = {offsets.get("spool") for offsets in waiting if offsets is not None}
    for name in storage.list():
        if name.startswith(_SPOOL) and name not in kept:
            storage.delete(name)
