"""The release that a sink has published: its trigger, its digest, and the refusal of any other.

Privacy contract: a published trigger is never replaced. The same trigger with other rows is the
same noise on other records, and would show their difference.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsqlp.errors import SinkError
from dpsqlp.state.storage import Storage


@dataclass(frozen=True, slots=True)
class Published:
    """The last release that a sink has."""

    trigger: int
    digest: str

    def has(self, trigger: int, digest: str, where: str) -> bool:
        """Whether this is the release. Earlier triggers and other releases are refused."""
        if trigger < self.trigger:
            raise earlier_trigger(trigger, self.trigger, where)
        if trigger == self.trigger and digest != self.digest:
            raise other_release(trigger, where)
        return trigger == self.trigger


def earlier_trigger(trigger: int, published: int, where: str) -> SinkError:
    """The refusal of a trigger before the last published one."""
    return SinkError(
        f"Trigger {trigger} is to be published, but {where} already has trigger {published} of"
        " this pipeline: another process is ahead, or the state is an old copy. Stop the other"
        " process, or restore the newest state."
    )


def other_release(trigger: int, where: str) -> SinkError:
    """The refusal of other rows for a published trigger."""
    return SinkError(
        f"Trigger {trigger} is already in {where}, with different rows:"
        " the state is an old copy, or the published rows were changed. Nothing was replaced."
        " Restore the newest state, or begin a new pipeline with a sink of its own, which spends"
        " its own budget."
    )


def other_pipeline(where: str, option: str, away: str) -> SinkError:
    """The refusal of a place that another pipeline has claimed, perhaps without a release yet."""
    return SinkError(
        f"{where} belongs to another pipeline, whose triggers have the same numbers. Nothing was"
        f" written. Set {option} to another value; or, if that pipeline will not run again, {away}."
        " Then run again."
    )


def release_digest(release: pa.Table) -> str:
    """SHA-256 of a release's columns and rows.

    Arrow leaves open what lies under a null and in the last bits of a bitmap: neither is hashed.
    Of lists the lengths and the values are: the name of what is in a list differs between formats.
    """
    buffer = pa.BufferOutputStream()
    for name, column in zip(release.column_names, release.columns, strict=True):
        known = column.drop_null()
        parts = [column.is_null(), known]
        if pa.types.is_list(column.type):
            parts[1:] = [pc.list_value_length(known), pc.list_flatten(known)]
        for part in parts:
            if pa.types.is_boolean(part.type):
                part = part.cast(pa.uint8())
            rows = pa.table({name: part}).combine_chunks()
            with pa.ipc.new_stream(buffer, rows.schema) as writer:
                writer.write_table(rows)
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def store_once(storage: Storage, trigger: int, name: str, data: bytes) -> None:
    """Store a trigger's file, unless it exists. A file with other rows is refused."""
    known = storage.get(name)
    if known is None:
        storage.put(name, [data])
    elif known != data and not _same_rows(known, data):
        raise other_release(trigger, name)


def _same_rows(known: bytes, data: bytes) -> bool:
    """Whether two Parquet files, perhaps written by two versions of Arrow, have the same rows."""
    if not known[:4] == data[:4] == b"PAR1":
        return False
    try:
        known_digest = release_digest(pq.read_table(io.BytesIO(known)))
    except (pa.ArrowException, OSError):
        return False
    return known_digest == release_digest(pq.read_table(io.BytesIO(data)))
