"""Random small plans and streams, and the two ways of running them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dpsqlp.accounting.model import (
    SELECTION,
    CalibratedProcess,
    Calibration,
    ContributionBounds,
    Process,
    Selection,
)
from dpsqlp.core import Core, State, TriggerRelease
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.plan import Plan, WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from reference.twin import Row, Twin, canonical

SECRET = Secret(bytes(range(32)), bytes(range(16)))
KEYS: list[tuple[Any, ...]] = [
    ("a",),
    ("b",),
    ("a\0b",),
    ("",),
    (None,),
    ("a key longer than a block",),
]
UNITS = [1, 2, 3, 4, 5, 6, 7, 8, 2**62, -(2**63), None]
VALUES = [None, math.nan, math.inf, -math.inf, 0.0, 0.3, -0.3, 1.0, 2.5, -7.0, 2.0**63, -(2.0**63)]


@cache
def mechanism(name: str, triggers: int) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


@dataclass(frozen=True)
class Stream:
    plan: Plan
    first: int  # grid trigger
    batches: tuple[tuple[Row, ...], ...]


@st.composite
def plans(draw: st.DrawFn, kind: str | None = None, release: str | None = None) -> Plan:
    triggers = draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9]))
    stride = draw(st.sampled_from([None, 1, 2, triggers]))
    periods = draw(st.sampled_from([None, None, WindowSchedule(triggers + 1, 2)]))
    release = release or draw(st.sampled_from(["every_trigger", "threshold"]))
    records = draw(st.sampled_from([1, 2, 3, 6, 12, 20]))
    least = [1, 2, (records + 1) // 2, records]
    caps = ContributionBounds(
        records,
        min(records, draw(st.sampled_from(least))),
        min(records, draw(st.sampled_from(least))),
    )
    public = draw(st.sampled_from([False] * 6 + [True]))
    selection = None
    if not public:
        minimum = draw(st.sampled_from([0, 0, 1, 2]))
        thresholds = draw(
            st.lists(st.integers(minimum, minimum + 4), min_size=triggers, max_size=triggers)
        )
        sigma = draw(st.sampled_from([0.1, 0.7, 3.0]))
        selection = Selection(minimum, sigma, tuple(thresholds), 0.01)
    processes = []
    for position in range(draw(st.integers(1 if public else 0, 3))):
        what = draw(st.sampled_from(["count", "sum", "distinct"]))
        name, purpose, quantum = f"p{position}", f"process/{position}", 1.0
        sigma = draw(st.sampled_from([1e-9, 0.7, 40.0]))
        if what == "sum":
            process = Process(name, "sum", draw(st.integers(0, 1)), -1.25, 2.0)
            quantum = draw(st.sampled_from([0.5, 2.0**-10]))
        else:
            column = draw(st.sampled_from([None, 0])) if what == "count" else None
            process = Process(name, what, column)  # type: ignore[arg-type]
            if what == "distinct" and selection is not None and release == "every_trigger":
                purpose, sigma = SELECTION, selection.sigma
        processes.append(CalibratedProcess(process, purpose, sigma, quantum))
    return Plan(
        query="random",
        unit_kinds=("integer",),
        key_kinds=("text",),
        windows=WindowSchedule(triggers, stride),
        periods=periods,
        release=release,  # type: ignore[arg-type]
        caps=caps,
        mechanism=mechanism(kind or draw(st.sampled_from(["tree", "blt"])), triggers),
        calibration=Calibration(1.0, 0.1, 1.0, 1.0, 0.05, 0.05, selection, tuple(processes)),
        public_keys=tuple(sorted(canonical(k, ("text",)) for k in KEYS[:2])) if public else None,
    )


@st.composite
def streams(draw: st.DrawFn, kind: str | None = None, release: str | None = None) -> Stream:
    plan = draw(plans(kind, release))
    windows = plan.windows
    first = 1 if windows.stride is None else draw(st.integers(-2, 3))
    length = windows.triggers if windows.stride is None else draw(st.integers(1, 12))
    dice = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.sampled_from([[0, 2], [0, 5, 15], [0, 10, 20], [10, 30]]))
    distinct = draw(st.integers(1, len(KEYS)))
    batches = []
    for trigger in range(first, first + length):
        opened = list(windows.open(trigger))
        near = [*opened, *opened, opened[0] - 1, opened[-1] + 1, None] if opened else [0]
        unit_periods: list[int | None] = [None]
        if plan.periods is not None:
            open_periods = list(plan.periods.open(trigger))
            unit_periods = [*open_periods, *open_periods, -9, 99, None]
        batches.append(
            tuple(
                Row(
                    unit=(dice.choice(UNITS),),
                    key=dice.choice(KEYS[:distinct]),
                    window=dice.choice(near),
                    timestamp=dice.choice([0, 0, 1, 2, -(2**63) + 1, None]),
                    values=tuple(dice.choice(VALUES) for _ in range(plan.value_columns)),
                    period=dice.choice(unit_periods),
                )
                for _ in range(dice.choice(sizes))
            )
        )
    return Stream(plan, first, tuple(batches))


def micro_batch(plan: Plan, rows: tuple[Row, ...]) -> MicroBatch:
    return MicroBatch(
        unit=(pa.array([row.unit[0] for row in rows], pa.int64()),),
        key=(pa.array([row.key[0] for row in rows], pa.string()),),
        window=pa.array([row.window for row in rows], pa.int64()),
        timestamp=pa.array([row.timestamp for row in rows], pa.int64()),
        values=tuple(
            pa.array([row.values[column] for row in rows], pa.float64())
            for column in range(plan.value_columns)
        ),
        period=None if plan.periods is None else pa.array([row.period for row in rows], pa.int64()),
    )


def rows_of(releases: TriggerRelease) -> list[tuple[int, int, bytes, tuple[int, ...]]]:
    return [
        (int(window), int(index), key, tuple(values))
        for window, index, key, values in zip(
            releases.window,
            releases.step,
            releases.key_text.to_arrow().to_pylist(),
            releases.values.tolist(),
            strict=True,
        )
    ]


def run_core(
    stream: Stream, shards: int = 1, batch: Callable[..., MicroBatch] | None = None
) -> list[Any]:
    pipeline, state = Core(stream.plan, SECRET), State(shards)
    made = batch or partial(micro_batch, stream.plan)
    return [
        rows_of(pipeline.run(state, made(rows), trigger))
        for trigger, rows in enumerate(stream.batches, stream.first)
    ]


def run_twin(stream: Stream) -> list[Any]:
    twin = Twin(stream.plan, SECRET.key, SECRET.instance)
    return [
        [(row.window, row.index, row.key, row.values) for row in twin.run(list(rows), trigger)]
        for trigger, rows in enumerate(stream.batches, stream.first)
    ]
