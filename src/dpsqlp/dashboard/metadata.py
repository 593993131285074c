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
from dpsqlp.plan import Plan, WindowSchedule
from dpsqlp.sql import explain, explain_text
from dpsqlp.sql.query import Query

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
    window_schedule: WindowSchedule
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
            trigger_grid=TriggerGrid.of(query, plan.triggers, created),
            window_schedule=plan.windows,
            hop_us=None if query.window is None else query.window.hop_us,
            size_us=None if query.window is None else query.window.size_us,
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
                    "window_schedule": WindowSchedule(**body["window_schedule"]),
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
        if self.hop_us is None or self.size_us is None:
            return [Window(None, None, last, last >= schedule.triggers)]
        numbers = range(schedule.open(first).start, schedule.open(last).stop)
        found = []
        for number in reversed(numbers[-WINDOWS_MAX:]):
            end = schedule.first(number) + schedule.triggers
            at = bisect.bisect_right(triggers, end) - 1
            if at >= 0 and triggers[at] > schedule.first(number):
                start = number * self.hop_us
                found.append(Window(start, start + self.size_us, triggers[at], last >= end))
        return found

    def trigger_range(self, start_us: int | None) -> tuple[int, int]:
        """The first and last trigger of a window."""
        schedule, before = self.window_schedule, 0
        if start_us is not None and self.hop_us is not None:
            before = schedule.first(start_us // self.hop_us)
        return before + 1, before + schedule.triggers
