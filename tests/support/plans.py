"""Small plans and micro-batches for tests that need one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dpsqlp.accounting.model import (
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Diagnostics,
    Process,
    ReleasePolicy,
    Selection,
)
from dpsqlp.core import Core, State
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Tree
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from reference.twin import canonical

SECRET = Secret(bytes(range(32)), bytes(range(16)))
SILENT = 1e-9  # a sigma whose noise rounds to nothing
COUNT = CalibratedProcess(Process("count", "count"), "process/0", SILENT, 1.0)


def total(lower: float, upper: float, quantum: float = 1.0) -> CalibratedProcess:
    return CalibratedProcess(Process("sum", "sum", 0, lower, upper), "process/0", SILENT, quantum)


def make_closing(
    threshold: float,
    *,
    budget: float = 1e8,
    vote: float = 0.0,
    square: float = 0.0,
    keys: int = 32,
) -> Closing:
    """Weights of thousands, beside which a normal is little: a unit with one open key lays 10,000,
    if votes and rows cost nothing.
    """
    weights = [
        math.floor(math.sqrt(max(0, budget - (vote + square) * m) / m)) for m in range(1, keys + 1)
    ]
    return Closing(budget, vote, square, 1.0, tuple(weights), round(threshold), 0.01)


def make_plan(
    triggers: int = 4,
    *,
    caps: tuple[int, int, int] = (100, 100, 100),
    squared_norm: int = 0,
    threshold: int = 1,
    minimum: int = 0,
    release: ReleasePolicy = "every_trigger",
    stride: int | None = None,
    periods: WindowSchedule | None = None,
    processes: Sequence[CalibratedProcess] = (COUNT,),
    public: Sequence[int] | None = None,
    sigma: float = SILENT,
    closing: Closing | None = None,
    diagnostics: Diagnostics | None = None,
) -> Plan:
    """Integer units and keys; noise only where asked for. With a closing and a stride, units have
    the period of the windows.
    """
    selection = (
        None if public is not None else Selection(minimum, sigma, (threshold,) * triggers, 0)
    )
    windows = WindowSchedule(triggers, stride)
    return Plan(
        query="test",
        unit_kinds=("integer",),
        key_kinds=("integer",),
        windows=windows,
        periods=windows if closing is not None and stride is not None else periods,
        release=release,
        caps=ContributionBounds(*caps, squared_norm),
        mechanism=Tree(triggers),
        calibration=Calibration(
            1.0, 0.1, 1.0, 1.0, 0.05, 0.05, selection, tuple(processes), closing, diagnostics
        ),
        public_keys=None
        if public is None
        else tuple(sorted(canonical((key,), ("integer",)) for key in public)),
    )


def with_thresholds(plan: Plan, *thresholds: int) -> Plan:
    """The plan with other thresholds, one for each trigger."""
    selection = plan.calibration.selection
    assert selection is not None
    changed = replace(selection, thresholds=thresholds)
    return replace(plan, calibration=replace(plan.calibration, selection=changed))


def make_batch(
    rows: Sequence[tuple[Any, ...]] = (), *, periods: Sequence[int | None] | None = None
) -> MicroBatch:
    """From rows (unit, key, window, timestamp, *values)."""
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    unit, key, window, timestamp = (pa.array(c, pa.int64()) for c in columns[:4])
    return MicroBatch(
        (unit,),
        (key,),
        window,
        timestamp,
        tuple(pa.array(c) for c in columns[4:]),
        None if periods is None else pa.array(periods, pa.int64()),
    )


def run(
    plan: Plan, batches: Sequence[MicroBatch], first: int = 1, shards: int = 1
) -> list[list[tuple[int, int, tuple[int, ...]]]]:
    """(window, key, values) per trigger."""
    pipeline, state = Core(plan, SECRET), State(shards)
    return [
        readable(pipeline.run(state, batch, trigger))
        for trigger, batch in enumerate(batches, first)
    ]


def readable(releases: Any) -> list[tuple[int, int, tuple[int, ...]]]:
    keys = [
        int.from_bytes(key[1:], "big") - 2**63 for key in releases.key_text.to_arrow().to_pylist()
    ]
    return [
        (int(window), key, tuple(values))
        for window, key, values in zip(releases.window, keys, releases.values.tolist(), strict=True)
    ]


def snapshot(state: State) -> Any:
    """Everything a state holds, to compare before and after."""
    units = {
        period: [
            (
                table.rows[: len(table)].tobytes(),
                table.slab.tobytes(),
                table.keys.rows[: len(table.keys)].tobytes(),
            )
            for table in tables
        ]
        for period, tables in state.units.items()
    }
    keys = {
        window: [
            (table.rows[: len(table)].tobytes(), np.array(table.totals[: len(table)]).tobytes())
            for table in tables
        ]
        for window, tables in state.keys.items()
    }
    selected = {w: table.rows[: len(table)].tobytes() for w, table in state.selected.items()}
    return state.trigger, units, keys, selected
