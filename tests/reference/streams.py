"""Random small plans and streams, and the two ways of running them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dpsqlp.accounting.model import (
    DIAGNOSTICS,
    SELECTION,
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Diagnostics,
    Process,
    Selection,
)
from dpsqlp.core import Core, State, TriggerRelease
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.plan import Plan, WindowNoise
from dpsqlp.schedule import CalendarSchedule, Schedule, WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from reference.twin import Row, Twin, canonical
from reference.watched import Watched

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
BINS = [  # edges and the size of coarse bins; values on edges, below, above
    ((-1.0, 0.3, 2.5), 0),
    ((-7.0, -0.3, 0.0, 0.3, 1.0, 2.5), 2),
    (tuple(k / 8 for k in range(-16, 17)), 5),
    ((0.0, 1.0), 0),
]
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
    release = release or draw(st.sampled_from(["every_trigger", "threshold"]))
    public = draw(st.sampled_from([False] * 6 + [True]))
    closes = (
        release == "every_trigger" and not public and draw(st.sampled_from([True, True, False]))
    )
    stride = draw(st.sampled_from([None, 1, 2, triggers]))
    periods = draw(st.sampled_from([None, None, WindowSchedule(triggers + 1, 2)]))
    if closes:
        stride = None if stride is None else min(stride, triggers)
        periods = None if stride is None else WindowSchedule(triggers, stride)
    caps = draw(bounds())
    selection = None
    if not public:
        minimum = draw(st.sampled_from([0, 0, 1, 2]))
        reach = minimum + draw(st.sampled_from([4, 30, 30] if closes else [4]))
        thresholds = draw(
            st.lists(st.integers(minimum, reach), min_size=triggers, max_size=triggers)
        )
        if closes:
            thresholds[-1] = minimum + draw(st.sampled_from([1, 2, 3, 4, reach]))
        sigma = draw(st.sampled_from([0.1, 0.7, 3.0]))
        selection = Selection(minimum, sigma, tuple(thresholds), 0.01)
    processes = []
    for position in range(draw(st.integers(1 if public else 0, 3))):
        what = draw(st.sampled_from(["count", "sum", "squares", "distinct", "histogram"]))
        name, purpose, quantum = f"p{position}", f"process/{position}", 1.0
        sigma = draw(st.sampled_from([1e-9, 0.7, 40.0]))
        if what in ("sum", "squares"):
            column, center = draw(st.integers(0, 1)), draw(st.sampled_from([0.0, 0.375, 3.0]))
            process = Process(name, what, column, -1.25, 2.0, center)  # type: ignore[arg-type]
            quantum = draw(st.sampled_from([0.5, 2.0**-10]))
        elif what == "histogram":
            edges, coarse = draw(st.sampled_from(BINS))
            process = Process(
                name, "histogram", draw(st.integers(0, 1)), edges=edges, coarse=coarse
            )
        else:
            number = draw(st.sampled_from([None, 0])) if what == "count" else None
            process = Process(name, what, number)  # type: ignore[arg-type]
            if what == "distinct" and selection is not None and release == "every_trigger":
                purpose, sigma = SELECTION, selection.sigma
        processes.append(CalibratedProcess(process, purpose, sigma, quantum))
    calibration = Calibration(1.0, 0.1, 1.0, 1.0, 0.05, 0.05, selection, tuple(processes))
    if closes:
        assert selection is not None
        calibration = replace(calibration, closing=draw(closings(caps, selection.minimum)))
    if draw(st.booleans()):
        kept, dropped = (draw(st.sampled_from([1, 2, 3, 255])) for _ in range(2))
        sigmas = tuple(draw(st.sampled_from([1e-9, 0.7, 40.0])) for _ in DIAGNOSTICS)
        calibration = replace(calibration, diagnostics=Diagnostics(0.1, kept, dropped, sigmas))
    return Plan(
        query="random",
        unit_kinds=("integer",),
        key_kinds=("text",),
        windows=WindowSchedule(triggers, stride),
        periods=periods,
        release=release,  # type: ignore[arg-type]
        caps=caps,
        mechanism=mechanism(kind or draw(st.sampled_from(["tree", "blt"])), triggers),
        calibration=calibration,
        public_keys=tuple(sorted(canonical(k, ("text",)) for k in KEYS[:2])) if public else None,
    )


@st.composite
def bounds(draw: st.DrawFn) -> ContributionBounds:
    """Caps, or a norm, or both."""
    squared_norm = draw(st.sampled_from([0, 0, 1, 2, 3, 5, 9, 10, 30, 30]))
    records = squared_norm or 20
    if not squared_norm or draw(st.booleans()):
        records = draw(st.sampled_from([1, 2, 3, 6, 12, 20, 20]))
    least = [1, 2, (records + 1) // 2, records]
    return ContributionBounds(
        records,
        min(records, draw(st.sampled_from([*least, records]))),
        min(records, draw(st.sampled_from(least))),
        squared_norm,
    )


@st.composite
def closings(draw: st.DrawFn, caps: ContributionBounds, minimum: int) -> Closing:
    """A unit that fills its bounds has nothing left. Thresholds are low, and M is small."""
    vote, square = draw(st.sampled_from([(1.0, 0.3), (0.1, 0.7), (0.9, 0.0)]))
    budget = caps.selections * vote + caps.squared_norm * square
    quantum = draw(st.sampled_from([0.25, 2.0**-10, 2.0**-20]))
    part = draw(st.sampled_from([1.0, 1.0, 0.5]))  # of what weights can be
    weights = [
        math.floor(
            part * math.sqrt(max(0.0, budget - vote * min(caps.selections, m) - square * m) / m)
            / quantum
        )
        for m in range(1, 1 + draw(st.sampled_from([1, 1, 1, 2, 3, 32])))
    ]  # fmt: skip
    needed = minimum * weights[0] * quantum + draw(st.sampled_from([0.25, 0.7, 1.5, 4.0]))
    return Closing(budget, vote, square, quantum, tuple(weights), math.ceil(needed / quantum), 0.05)


@st.composite
def streams(
    draw: st.DrawFn,
    kind: str | None = None,
    release: str | None = None,
    plan: Plan | None = None,
) -> Stream:
    plan = plan or draw(plans(kind, release))
    windows = plan.windows
    first = 1 if windows.single else draw(st.integers(-2, 3))
    length = windows.triggers if windows.single else draw(st.integers(1, 12))
    if isinstance(windows, CalendarSchedule):
        first, length = windows.begins[0] + 1, windows.ends[-1] - windows.begins[0]
    dice = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.sampled_from([[0, 2], [0, 5, 15], [0, 10, 20], [10, 30]]))
    distinct = draw(st.sampled_from([1, 2, 4, len(KEYS), len(KEYS)]))
    batches = []
    for trigger in range(first, first + length):
        opened = list(windows.open(trigger))
        near = [*opened, *opened, opened[0] - 1, opened[-1] + 1, None] if opened else [0]
        unit_periods: list[int | None] = [None]
        if plan.periods is not None:
            open_periods = list(plan.periods.open(trigger))
            unit_periods = [*open_periods, *open_periods, -9, 99, None]
        rows = [
            Row(
                unit=(dice.choice(UNITS),),
                key=dice.choice(KEYS[:distinct]),
                window=moment(windows, dice.choice(near), dice),
                timestamp=dice.choice([0, 0, 1, 2, -(2**63) + 1, None]),
                values=tuple(dice.choice(VALUES) for _ in range(plan.value_columns)),
                period=moment(plan.periods, dice.choice(unit_periods), dice),
            )
            for _ in range(dice.choice(sizes))
        ]
        if plan.calibration.closing is not None:  # then others do not count
            rows = [replace(r, period=r.window) if dice.random() < 0.9 else r for r in rows]
        batches.append(tuple(rows))
    return Stream(plan, first, tuple(batches))


def moment(grid: Schedule | None, item: int | None, dice: random.Random) -> int | None:
    """What a row has for a window or a period: with a calendar any moment of it, often an edge."""
    if item is None or not isinstance(grid, CalendarSchedule):
        return item
    if not 0 <= item < len(grid.begins):
        return dice.choice([grid.starts[0] - 1, grid.starts[-1], -(2**63), 2**63 - 1])
    start, stop = grid.starts[item : item + 2]
    return dice.choice([start, stop - 1, dice.randrange(start, stop)])


@st.composite
def calendar_streams(draw: st.DrawFn, kind: str, release: str) -> Stream:
    """A stream over windows of a calendar, of up to four lengths, some late; with no periods, with
    the windows' own or with longer ones.
    """
    plan, late = draw(plans(kind, release)), draw(st.sampled_from([0, 0, 1, 4]))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=5))
    edges = [draw(st.integers(-2, 2))]
    for size in sizes:
        edges.append(edges[-1] + size)
    starts = tuple(10 * edge for edge in edges)
    ends = tuple(edge + late for edge in edges[1:])
    windows = CalendarSchedule(starts, starts, tuple(edges[:-1]), ends)
    periods: Schedule | None = None
    if plan.calibration.closing is not None or draw(st.booleans()):
        periods = windows
        if plan.calibration.closing is None and draw(st.booleans()):
            outer = (starts[0], starts[1], starts[-1])
            periods = CalendarSchedule(outer, outer, tuple(edges[:2]), (ends[0], ends[-1]))
    if plan.calibration.closing is None and periods is None:
        plan = replace(plan, periods=None)
    noises = [scaled(plan, mechanism(kind, triggers)) for triggers in windows.lengths]
    *shorter, longest = noises
    changed = replace(
        plan,
        windows=windows,
        periods=periods,
        mechanism=longest.mechanism,
        calibration=longest.calibration,
        shorter=tuple(shorter),
    )
    return draw(streams(plan=changed))


def scaled(plan: Plan, own: Mechanism) -> WindowNoise:
    """The plan's noise under another mechanism: as costly, with thresholds for its triggers."""
    calibration, factor = plan.calibration, own.sensitivity / plan.mechanism.sensitivity
    selection = calibration.selection
    if selection is not None:
        limits = selection.thresholds
        thresholds = tuple(limits[(own.triggers + i) % len(limits)] for i in range(own.triggers))
        thresholds = (*thresholds[:-1], limits[-1])
        selection = replace(selection, sigma=selection.sigma * factor, thresholds=thresholds)
    processes = tuple(replace(p, sigma=p.sigma * factor) for p in calibration.processes)
    told = calibration.diagnostics
    if told is not None:
        sigmas = tuple(sigma * factor for sigma in told.sigmas)
        calibration = replace(calibration, diagnostics=replace(told, sigmas=sigmas))
    return WindowNoise(own, replace(calibration, selection=selection, processes=processes))


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


def rows_of(releases: TriggerRelease) -> list[tuple[Any, ...]]:
    """The released rows, and the noisy numbers of diagnostics, if any."""
    told = releases.diagnostics
    return ([] if told is None else told.tolist()) + [
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


def run_twin(stream: Stream, seen: Counter[str] | None = None) -> list[Any]:
    """The twin's releases; what happens is counted in `seen`."""
    names = (stream.plan, SECRET.key, SECRET.instance)
    twin = Twin(*names) if seen is None else Watched(*names, seen)
    released = []
    for trigger, rows in enumerate(stream.batches, stream.first):
        run = [
            (row.window, row.index, row.key, row.values) for row in twin.run(list(rows), trigger)
        ]
        released.append([list(told.numbers) for told in twin.diagnostics(trigger)] + run)
    return released
