"""Public time: at which grid triggers a window, or a period of units, is open.

Windows and periods are items with numbers. They follow each other at a fixed stride, or by a table
that a calendar was turned into when the plan was made.

Privacy contract: everything here is a function of the plan and the number of a trigger, except
`numbers`, which places a record by its own timestamp (docs/proof.md, Lemmas 1 and 35).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsqlp.errors import PlanError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowSchedule:
    """Item n is open at the grid triggers n * stride + 1 .. n * stride + triggers; without a stride
    there is one item, number 0.
    """

    triggers: int
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.triggers < 1 or (self.stride is not None and self.stride < 1):
            raise PlanError(
                f"A window schedule needs at least one trigger and a positive stride; got {self}."
            )

    @property
    def single(self) -> bool:
        """Whether there is one item, for the whole stream."""
        return self.stride is None

    @property
    def last(self) -> int | None:
        """There is no last grid trigger of a table."""
        return None

    @property
    def overlaps(self) -> bool:
        """Whether an item stays open until the next one begins."""
        return self.stride is not None and self.triggers >= self.stride

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of triggers that items have, ascending."""
        return (self.triggers,)

    def length(self, item: int) -> int:
        """[T] of an item."""
        return self.triggers

    def lengths_of(self, items: Ints) -> Ints:
        """`length` of many items."""
        return np.full(len(items), self.triggers)

    def first(self, item: int) -> int:
        """The grid trigger before the item's trigger number 1."""
        return 0 if self.stride is None else item * self.stride

    def firsts(self, items: Ints) -> Ints:
        """`first` of many items."""
        return items * (self.stride or 0)

    def open(self, trigger: int) -> range:
        """The items that are open at a grid trigger."""
        if self.stride is None:
            return range(0, 1 if 1 <= trigger <= self.triggers else 0)
        return range(-((self.triggers - trigger) // self.stride), (trigger - 1) // self.stride + 1)

    def ending(self, trigger: int) -> int | None:
        """The item whose last trigger this is, if there is one."""
        if self.stride is None:
            return 0 if trigger == self.triggers else None
        item, rest = divmod(trigger - self.triggers, self.stride)
        return item if rest == 0 else None

    def numbers(self, column: Ints) -> Ints:
        """The items of records: the row query has their numbers."""
        return column


@dataclass(frozen=True, slots=True)
class CalendarSchedule:
    """Item n = 0, 1, ... has the moments from `starts[n]` until `starts[n + 1]`, and is open at the
    grid triggers `begins[n]` + 1 .. `ends[n]`. Moments are microseconds since the epoch.
    """

    starts: tuple[int, ...]  # one more than items
    local: tuple[int, ...]  # the starts on the clock of the zone, as if that were UTC
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    times: tuple[int, ...] | None = None  # of the triggers 0, 1, ...; None: at a fixed interval

    def __post_init__(self) -> None:
        starts, begins, ends, times = self.starts, self.begins, self.ends, self.times or ()
        if not (
            len(starts) == len(self.local) == len(begins) + 1 == len(ends) + 1 >= 2
            and all(a < b for row in (starts, begins, times) for a, b in pairwise(row))
            and all(a <= b for a, b in pairwise(ends))
            and all(begin < end for begin, end in zip(begins, ends, strict=True))
        ):
            raise PlanError(
                "A calendar's table needs items one after another, each with a trigger or more."
                " Restore the plan from a copy, or make it again from the query."
            )

    @property
    def single(self) -> bool:
        """There are as many items as the table has."""
        return False

    @property
    def last(self) -> int | None:
        """The last grid trigger: the table has no further item."""
        return self.ends[-1]

    @property
    def overlaps(self) -> bool:
        """Whether an item stays open until the next one begins."""
        return all(end >= begin for end, begin in zip(self.ends, self.begins[1:], strict=False))

    @property
    def triggers(self) -> int:
        """[T] of the longest items."""
        return self.lengths[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of triggers that items have, ascending."""
        return tuple(sorted({e - b for b, e in zip(self.begins, self.ends, strict=True)}))

    def length(self, item: int) -> int:
        """[T] of an item."""
        return self.ends[item] - self.begins[item]

    def lengths_of(self, items: Ints) -> Ints:
        """`length` of many items."""
        return (np.array(self.ends, np.int64) - np.array(self.begins, np.int64))[items]

    def first(self, item: int) -> int:
        """The grid trigger before the item's trigger number 1."""
        return self.begins[item]

    def firsts(self, items: Ints) -> Ints:
        """`first` of many items."""
        return np.array(self.begins, np.int64)[items]

    def open(self, trigger: int) -> range:
        """The items that are open at a grid trigger."""
        return range(bisect_left(self.ends, trigger), bisect_left(self.begins, trigger))

    def ending(self, trigger: int) -> int | None:
        """The item whose last trigger this is, if there is one."""
        item = bisect_left(self.ends, trigger)
        return item if item < len(self.ends) and self.ends[item] == trigger else None

    def numbers(self, column: Ints) -> Ints:
        """The items of records, by their timestamps. Before and after the table there is none: the
        numbers there are never open.
        """
        return np.searchsorted(np.array(self.starts, np.int64), column, side="right") - 1


Schedule = WindowSchedule | CalendarSchedule


def restore_schedule(description: dict[str, Any]) -> Schedule:
    """The schedule of a description, as `asdict` gives it."""
    if "starts" not in description:
        return WindowSchedule(**description)
    tables = {name: None if row is None else tuple(row) for name, row in description.items()}
    return CalendarSchedule(**tables)  # type: ignore[arg-type]
