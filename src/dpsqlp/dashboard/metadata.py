"""Public metadata of a pipeline, stored with its releases: columns, schedule, privacy guarantee."""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.errors import StateError
from dpsqlp.plan import Plan
from dpsqlp.schedule import CalendarSchedule, Schedule, restore_schedule
from dpsqlp.sql import explain, explain_text
from dpsqlp.sql.query import Hop, Query, Tumble

METADATA = "metadata.json"
WINDOWS_MAX = 1000  # newest windows listed


@dataclass(frozen=True, slots=True)
class Window:
    """A window, and the newest trigger that released it."""

    start_us: int | None  # None: a query without windows
    end_us: int | None
    trigger: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Metadata:
    """Public information only: neither the instance nor the secret is part of it."""

    name: str
    created: int
    keys: tuple[str, ...]  # released columns
    aggregates: tuple[str, ...]
    trigger_grid: TriggerGrid
    window_schedule: Schedule
    hop_us: int | None
    size_us: int | None
    numbers: dict[str, Any]  # from `dpsqlp explain --json`
    text: str  # from `dpsqlp explain`

    @classmethod
    def of(cls, name: str, query: Query, plan: Plan, created: int) -> Metadata:
        """The metadata of a sink's pipeline."""
        return cls(
            name=name,
            created=created,
            keys=tuple(o.name for o in query.outputs if o.kind == "key"),
            aggregates=tuple(o.name for o in query.outputs if o.kind == "aggregate"),
            trigger_grid=TriggerGrid.of(query, plan, created),
            window_schedule=plan.windows,
            hop_us=query.window.hop_us if isinstance(query.window, Tumble | Hop) else None,
            size_us=query.window.size_us if isinstance(query.window, Tumble | Hop) else None,
            numbers=explain(query, plan),
            text=explain_text(name, query, plan),
        )

    @classmethod
    def read(cls, folder: Path) -> Metadata | None:
        """The metadata in a folder of releases; None if there is none."""
        try:
            body = json.loads((folder / METADATA).read_bytes())
            return cls(
                **body
                | {
                    "keys": tuple(body["keys"]),
                    "aggregates": tuple(body["aggregates"]),
                    "trigger_grid": TriggerGrid(**body["trigger_grid"]),
                    "window_schedule": restore_schedule(body["window_schedule"]),
                }
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{folder / METADATA} is damaged. Delete it; `dpsqlp run --dashboard` writes it"
                " again."
            ) from error

    def to_json(self) -> bytes:
        """The content of `metadata.json`."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def windows(self, triggers: Sequence[int]) -> list[Window]:
        """The windows released at some triggers, newest first. Derived from the schedule alone."""
        if not triggers:
            return []
        schedule = self.window_schedule
        first, last = triggers[0], triggers[-1]
        if schedule.single:
            return [Window(None, None, last, last >= schedule.triggers)]
        numbers = range(schedule.open(first).start, schedule.open(last).stop)
        found = []
        for number in reversed(numbers[-WINDOWS_MAX:]):
            end = schedule.first(number) + schedule.length(number)
            at = bisect.bisect_right(triggers, end) - 1
            if at >= 0 and triggers[at] > schedule.first(number):
                found.append(Window(*self._edges(number), triggers[at], last >= end))
        return found

    def trigger_range(self, start_us: int | None) -> tuple[int, int]:
        """The first and last trigger of a window."""
        schedule, number = self.window_schedule, 0
        if start_us is not None and isinstance(schedule, CalendarSchedule):
            last = len(schedule.begins) - 1
            number = min(max(bisect.bisect_right(schedule.starts, start_us) - 1, 0), last)
        elif start_us is not None and self.hop_us is not None:
            number = start_us // self.hop_us
        before = schedule.first(number)
        return before + 1, before + schedule.length(number)

    def thresholds(self, start_us: int | None) -> list[int]:
        """What a key must reach at each trigger of a window. Keys must be selected."""
        first, last = self.trigger_range(start_us)
        selections = [
            self.numbers["selection"],
            *(shorter["selection"] for shorter in self.numbers["shorter_windows"]),
        ]
        return next(
            selection["thresholds"]
            for selection in selections
            if len(selection["thresholds"]) == last - first + 1
        )

    def _edges(self, number: int) -> tuple[int, int]:
        """The start and the end of a window."""
        schedule = self.window_schedule
        if isinstance(schedule, CalendarSchedule):
            return schedule.starts[number], schedule.starts[number + 1]
        assert self.hop_us is not None
        assert self.size_us is not None
        return number * self.hop_us, number * self.hop_us + self.size_us
