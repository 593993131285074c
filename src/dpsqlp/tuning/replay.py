"""Which trigger each row of a sample belongs to.

The query's own grid decides where it can: a row belongs to the first trigger after its timestamp.
A sample from another time than the query's, and one without timestamps, are placed so that the
windows have the triggers that the query pays for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.errors import SourceError
from dpsqlp.plan import Plan
from dpsqlp.sql.query import Query

_TRIGGERS_MAX = 100_000
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Replay:
    """The triggers that run, and how rows were given to them, in words."""

    first: int
    last: int
    words: str


def assign_triggers(
    query: Query,
    plan: Plan,
    timestamp: NDArray[np.float64] | Ints,
    timed: NDArray[np.bool_],
    window: Ints,
    seed: int,
) -> tuple[Replay, Ints]:
    """The replay of a sample, and the trigger of each row; 0 for a row that has none.

    `timed` tells which rows have a timestamp, in microseconds; `window` has their windows.
    """
    interval, triggers = query.emit.interval_us, plan.triggers
    if not timed.any():
        return _spread(query, triggers, len(timed), seed)
    stamps = timestamp[timed]
    grid = TriggerGrid.of(query, plan, int(stamps.min()))
    number = np.where(timed, (timestamp - grid.origin) // interval + 1, 0).astype(np.int64)
    inside = timed & (number >= grid.first)
    if grid.last is not None:
        inside &= number <= grid.last
    words = "Each row belongs to the first trigger after its timestamp"
    if query.window is None:
        if not inside.any():  # from another time than the query's
            origin = int(stamps.min()) // interval * interval
            number = np.where(timed, (timestamp - origin) // interval + 1, 0).astype(np.int64)
            words += (
                "; the triggers begin with the first row, since the sample is from another time"
            )
        if not query.emit.on_event_time:
            missing = np.flatnonzero(~timed)
            number[missing] = np.random.default_rng(seed).integers(1, triggers + 1, len(missing))
            words += ", as in a replay"
        return Replay(1, triggers, f"{words}."), number
    if grid.last is not None and inside.any():
        return Replay(grid.first, grid.last, f"{words}."), np.where(inside, number, 0)
    if not query.emit.on_event_time:
        words += ", as in a replay"
    known = number[timed]
    first = int(known.min())
    last = max(int(known.max()), plan.windows.first(int(window[timed].max())) + triggers)
    if last - first >= _TRIGGERS_MAX:
        raise SourceError(
            f"The timestamps of the sample span {last - first + 1:,} triggers; at most"
            f" {_TRIGGERS_MAX:,} are simulated. Give a sample of fewer windows, or look for"
            " timestamps that are wrong."
        )
    return Replay(first, last, f"{words}."), number


def _spread(query: Query, triggers: int, rows: int, seed: int) -> tuple[Replay, Ints]:
    """Rows without timestamps, spread evenly over one window."""
    if query.window is not None or query.emit.on_event_time:
        raise SourceError(
            "No row of the sample has a timestamp that can be read, and the query needs one. Give a"
            " sample with the query's timestamps."
        )
    number = np.random.default_rng(seed).integers(1, triggers + 1, rows)
    words = f"The rows have no timestamp: they are spread evenly over the {triggers} triggers."
    return Replay(1, triggers, words), number
