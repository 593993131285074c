"""A trigger's rows become its records piece by piece, so that no unit's rows fill the memory.

An input row of a kilobyte may become many output rows with long keys. The rows of a trigger are
therefore never held at once. Each piece is admitted by itself: texts become hashes. If the admitted
records still take much memory, each unit's records are bounded early.

Privacy contract: early bounding drops only records that the bounding of the trigger drops as well,
so the trigger's output does not depend on the pieces (docs/proof.md, Lemma 27).

Not covered: a trigger with so many units that their bounded records do not fit into memory. It is
refused before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.core import Core
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.plan import Plan
from dpsqlp.sources import memory_limit
from dpsqlp.stages.admit import MicroBatch, Records
from dpsqlp.stages.bound import bound_early

PIECE_ROWS, PIECE_BYTES = 1 << 20, 64 << 20
_HELD_BYTES = 1 << 30  # of records, before they are bounded early
_TEXT_BYTES = 64  # of a key, on average, before equal keys share a text


def admit_batches(
    core: Core, batches: Iterable[pa.RecordBatch], trigger: int
) -> tuple[int, Records]:
    """The number of rows, and the records that may count at a trigger."""
    rows, held = 0, [core.admit(_no_rows(core.plan), trigger)]
    limit = min(_HELD_BYTES, memory_limit.BATCH_BYTES_MAX)
    for piece in in_pieces(batches):
        rows += piece.num_rows
        held.append(_shortened(core.admit(micro_batch(piece), trigger)))
        if sum(map(_size, held)) > limit:
            held = [_bounded(core.plan, concatenate(held))]
            size = memory_limit.check_size(_size(held[0]))
            limit = min(max(_HELD_BYTES, 2 * size), memory_limit.BATCH_BYTES_MAX)
    return rows, concatenate(held)


def in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together, up to a number of rows and bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def micro_batch(rows: pa.Table) -> MicroBatch:
    """The core's columns of rows of a row query."""
    rows = rows.combine_chunks()

    def columns(prefix: str) -> tuple[Any, ...]:
        return tuple(rows.column(name) for name in rows.column_names if name.startswith(prefix))

    return MicroBatch(
        unit=columns("unit_"),
        key=columns("key_"),
        window=rows.column("window_number"),
        timestamp=rows.column("timestamp_us"),
        values=columns("value_"),
        period=rows.column("period_number") if "period_number" in rows.column_names else None,
    )


def _no_rows(plan: Plan) -> MicroBatch:
    none = pa.nulls(0)
    return MicroBatch(
        (none,) * len(plan.unit_kinds),
        (none,) * len(plan.key_kinds),
        none,
        none,
        (none,) * plan.value_columns,
        None if plan.periods is None else none,
    )


def _shortened(records: Records) -> Records:
    """The records, with each key's text once if texts are long."""
    if records.key_text.data.nbytes <= _TEXT_BYTES * len(records.key_text):
        return records
    ids = np.ascontiguousarray(records.key).view([("", records.key.dtype)] * 2).ravel()
    _, first, text = np.unique(ids, return_index=True, return_inverse=True)
    return replace(records, key_text=records.key_text.take(records.text[first]), text=text)


def _bounded(plan: Plan, records: Records) -> Records:
    """The records that remain when each unit's are bounded early, without the state."""
    kept = [np.empty(0, np.int64)]
    for period in np.unique(records.period):
        members = np.flatnonzero(records.period == period)
        kept.append(bound_early(plan, records, members))
    part = records.subset(np.sort(np.concatenate(kept)))
    used, text = np.unique(part.text, return_inverse=True)
    return replace(part, key_text=part.key_text.take(used), text=text)


def concatenate(parts: list[Records]) -> Records:
    """The records of several pieces; with each key's text once if texts are long."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(len(part.key_text) for part in parts)])
    texts = [part.text + begin for part, begin in zip(parts, begins, strict=False)]
    whole = Records(
        parts[0].trigger,
        np.concatenate([part.unit for part in parts]),
        np.concatenate([part.shard_hash for part in parts]),
        np.concatenate([part.key for part in parts]),
        Encoded.concatenate([part.key_text for part in parts]),
        np.concatenate(texts),
        np.concatenate([part.window for part in parts]),
        np.concatenate([part.step for part in parts]),
        np.concatenate([part.timestamp for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.period for part in parts]),
    )
    return _shortened(whole)


def _size(records: Records) -> int:
    """Bytes that records take."""
    arrays: list[NDArray[Any]] = [
        *(records.unit, records.shard_hash, records.key, records.text, records.window),
        *(records.step, records.timestamp, records.values, records.period),
        *(records.key_text.data, records.key_text.offsets),
    ]
    return sum(array.nbytes for array in arrays)
