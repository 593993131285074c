"""admit: check a micro-batch against the plan, drop records that cannot count, encode the rest.

Privacy contract: whether a record is dropped depends only on that record, the plan and the public
clock: a null unit, a window or period that is not open at this trigger, a key that is not public,
and with a closing a period that is not the window.
Values are clamped and truncated towards zero in quanta, so that no record adds more than its bound.
In a histogram a value is in one bin, a null in none. Nothing here reads state (docs/proof.md, Lemma
4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded, encode, kind_of
from dpsqlp.entropy.identify import Identifier
from dpsqlp.entropy.prf import Array128
from dpsqlp.errors import BatchError
from dpsqlp.plan import Plan
from dpsqlp.schedule import Schedule
from dpsqlp.stages.route import unit_shard_hashes
from dpsqlp.tables.table import Table

ABSENT = np.iinfo(np.int64).min  # a null value: adds nothing, and sorts first
_NUMERIC = ("integer", "float", "decimal", "boolean", "null")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one trigger, after the row query. Columns are Arrow arrays of one length."""

    unit: tuple[pa.Array, ...]
    key: tuple[pa.Array, ...]
    window: pa.Array  # window numbers on the plan's grid; for a calendar, the timestamps
    timestamp: pa.Array  # integers, which order a unit's records
    values: tuple[pa.Array, ...] = ()
    period: pa.Array | None = None  # the same of unit periods, if the plan has them


@dataclass(frozen=True, slots=True)
class Records:
    """Records admitted at a trigger, as columns; one row per record."""

    trigger: int
    unit: Array128
    shard_hash: NDArray[np.int64]  # a public hash of the unit, from which its shard follows
    key: Array128
    key_text: Encoded  # of the whole batch; record r has text number text[r]
    text: NDArray[np.int64]
    window: NDArray[np.int64]
    step: NDArray[np.int64]  # the trigger's step within the record's window
    timestamp: NDArray[np.int64]
    # (records, processes): in quanta, or the number of a bin; ABSENT where null
    values: NDArray[np.int64]
    period: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.window)

    def subset(self, rows: NDArray[np.int64]) -> Records:
        """The records at these positions, which are in ascending order."""
        if len(rows) == len(self):
            return self
        return Records(
            self.trigger,
            self.unit[rows],
            self.shard_hash[rows],
            self.key[rows],
            self.key_text,
            self.text[rows],
            self.window[rows],
            self.step[rows],
            self.timestamp[rows],
            self.values[rows],
            self.period[rows],
        )


def admit(
    plan: Plan,
    batch: MicroBatch,
    trigger: int,
    units: Identifier,
    keys: Identifier,
    public: Table | None,
) -> Records:
    """The records that may count at this trigger."""
    batch = _plain(batch)
    _check(plan, batch)
    window, windowed = _items(plan.windows, batch.window)
    keep = windowed & _is_open(plan.windows, window, trigger)
    period = np.zeros(len(window), np.int64)
    if plan.periods is not None:
        period, known = _items(plan.periods, batch.period)
        keep &= known & _is_open(plan.periods, period, trigger)
        if plan.calibration.closing is not None:  # a unit's state ends with its one window
            keep &= period == window
    for column in batch.unit:
        if column.null_count:
            keep &= column.is_valid().to_numpy(zero_copy_only=False)
    if not keep.all():
        batch = _filter(batch, keep)
        window, period = window[keep], period[keep]
    timestamp, timed = _integers(batch.timestamp)
    key_text = encode(batch.key, len(window))
    records = Records(
        trigger=trigger,
        unit=units.identify(encode(batch.unit, len(window))),
        shard_hash=unit_shard_hashes(batch.unit, len(window)),
        key=keys.identify(key_text),
        key_text=key_text,
        text=np.arange(len(window)),
        window=window,
        step=trigger - plan.windows.firsts(window),
        timestamp=np.where(timed, timestamp, np.iinfo(np.int64).min),
        values=_quantise(plan, batch, len(window)),
        period=period,
    )
    if public is None:
        return records
    return records.subset(np.flatnonzero(public.find(records.key) >= 0))


def _plain(batch: MicroBatch) -> MicroBatch:
    """The batch without chunks and dictionaries, whose null counts are incomplete."""

    def plain(column: Any) -> Any:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    return MicroBatch(
        tuple(plain(column) for column in batch.unit),
        tuple(plain(column) for column in batch.key),
        plain(batch.window),
        plain(batch.timestamp),
        tuple(plain(column) for column in batch.values),
        None if batch.period is None else plain(batch.period),
    )


def _check(plan: Plan, batch: MicroBatch) -> None:
    """Refuse a micro-batch whose columns do not fit the plan."""
    for role, columns, kinds in (
        ("unit", batch.unit, plan.unit_kinds),
        ("key", batch.key, plan.key_kinds),
    ):
        got = tuple(kind_of(column.type) for column in columns)
        fits = len(got) == len(kinds) and all(
            have in (want, "null") for have, want in zip(got, kinds, strict=True)
        )
        if not fits:
            raise BatchError(f"The {role} columns are {kinds} in the plan; the batch has {got}.")
    if len(batch.values) != plan.value_columns:
        raise BatchError(
            f"The plan has {plan.value_columns} value columns; the batch has {len(batch.values)}."
        )
    for position, column in enumerate(batch.values):
        if kind_of(column.type) not in _NUMERIC:
            raise BatchError(f"Value column {position} is {column.type}; it must be numeric.")
    if (batch.period is None) != (plan.periods is None):
        raise BatchError("A batch has a period column exactly when the plan has unit periods.")
    integers = [("window", batch.window), ("timestamp", batch.timestamp)]
    if batch.period is not None:
        integers.append(("period", batch.period))
    for role, column in integers:
        if kind_of(column.type) not in ("integer", "null") or column.type == pa.uint64():
            raise BatchError(f"The {role} column is {column.type}; it must be int64.")
    lengths = {len(c) for c in (*batch.unit, *batch.key, *batch.values)} | {
        len(column) for _, column in integers
    }
    if len(lengths) > 1:
        raise BatchError(f"The columns of a batch have one length; got {sorted(lengths)}.")


def _filter(batch: MicroBatch, keep: NDArray[np.bool_]) -> MicroBatch:
    mask = pa.array(keep)

    def kept(columns: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(column.filter(mask) for column in columns)

    window, timestamp = kept((batch.window, batch.timestamp))
    return MicroBatch(kept(batch.unit), kept(batch.key), window, timestamp, kept(batch.values))


def _integers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers (0 for null), and a mask of those that are not null."""
    numbers = column.cast(pa.int64())
    if column.null_count == 0:
        return numbers.to_numpy(), np.ones(len(column), bool)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return pc.fill_null(numbers, 0).to_numpy(), valid


def _items(grid: Schedule, column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers of windows or periods, and a mask of those that are not null."""
    numbers, valid = _integers(column)
    return grid.numbers(numbers), valid


def _is_open(grid: Schedule, items: NDArray[np.int64], trigger: int) -> NDArray[np.bool_]:
    opened = grid.open(trigger)
    return (items >= opened.start) & (items < opened.stop)


def _quantise(plan: Plan, batch: MicroBatch, rows: int) -> NDArray[np.int64]:
    """The contribution of each record to each process, as `Records.values` has it."""
    values = np.empty((rows, len(plan.calibration.processes)), np.int64)
    for position, calibrated in enumerate(plan.calibration.processes):
        process = calibrated.process
        if process.column is None:
            values[:, position] = process.kind == "count"
            continue
        column = pc.cast(batch.values[process.column], pa.float64(), safe=False)
        numbers = pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False)
        absent = np.isnan(numbers)
        if process.kind == "count":
            values[:, position] = 1
        elif process.kind == "histogram":  # the number of its bin
            values[:, position] = np.searchsorted(process.edges[1:-1], numbers, side="right")
        else:
            clamped = np.clip(numbers, process.lower, process.upper) - process.center
            if process.kind == "squares":
                clamped = clamped * clamped - process.half_square
            values[:, position] = np.trunc(np.where(absent, 0.0, clamped) / calibrated.quantum)
        values[absent, position] = ABSENT
    return values
